//! Many volumes at once, records that are damaged or too many, and definitions that come later.

use std::time::Duration;

use serde_json::json;
use test_support::kube_api::Fault as ApiFault;

use crate::bed::{Bed, DRIVER, NODE, RECORDS, path};
use crate::driver::Fault;

const CLAIM: &str = "persistentvolumeclaims/team/data";

/// One request writes the records of many.
#[tokio::test(start_paused = true)]
async fn volumes_at_once_take_fewer_requests_than_those_of_the_sidecars() {
    let (bed, _process) = Bed::started(&[]).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mark = bed.server.mark();
    let names: Vec<String> = (0..50).map(|at| format!("data-{at}")).collect();
    names.iter().for_each(|name| bed.claim(name));
    for name in &names {
        let volume = bed.bound(name).await;
        bed.attach(&format!("attachment-{name}"), &path("", &volume));
    }
    bed.until("all are attached", || bed.is_settled()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut counts = bed.server.counts_since(mark);
    counts.retain(|request, _| !request.ends_with(" events"));
    let all: usize = counts.values().sum();
    // The sidecars create the object, write two finalizers, and the status.
    assert!(all < 4 * names.len(), "{counts:?}");
    assert!(counts["patch configmaps"] < names.len() / 2, "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn records_that_are_damaged_deleted_or_too_many_stop_no_other_volume() {
    let bed = Bed::new(&[]).await;
    bed.apply(RECORDS, json!({ "data": { "damaged": "{" } }));
    for _ in 0..3 {
        bed.server.fail("get configmaps", ApiFault::Status(403));
    }
    let process = bed.start();
    bed.volume("first").await;
    assert_eq!(bed.get(RECORDS)["data"]["damaged"], "{");
    bed.server.delete(RECORDS);
    bed.volume("second").await;
    assert_ne!(bed.get(RECORDS)["data"], json!({}));
    drop(process);

    let places = (0..800).map(|at| format!("{at:0>60}"));
    let places: Vec<String> = [NODE.to_owned()].into_iter().chain(places).collect();
    let places = json!({ "key": "hostpath.csi.example.org/node", "values": places });
    let long = json!({ "allowedTopologies": [{ "matchLabelExpressions": [places] }] });
    bed.apply("storageclasses/long", long);
    bed.calls.fail("CreateVolume", Fault::Hangs);
    let _process = bed.start();
    for number in 0..20 {
        let class = json!({ "spec": { "storageClassName": "long" } });
        bed.apply(&format!("persistentvolumeclaims/team/{number}"), class);
    }
    let is_full = || bed.events("ProvisioningFailed").iter().any(|event| event.contains("no more can be"));
    bed.until("there is no room", is_full).await;
    for number in 0..20 {
        bed.bound(&number.to_string()).await;
    }
}

/// As of a backup of the driver's namespace.
#[tokio::test(start_paused = true)]
async fn an_old_record_deletes_no_volume_that_an_administrator_kept() {
    let (bed, process) = Bed::started(&[]).await;
    let volume = bed.volume("data").await;
    let records = bed.get(RECORDS);
    let path = path("persistentvolumes/", &volume);
    bed.apply(&path, json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } }));
    bed.server.begin_deletion(CLAIM);
    bed.until("the claim is gone", || bed.server.get(CLAIM).is_none()).await;
    // As long as its object exists, the driver is not asked: it could have changed since.
    drop(process);
    bed.apply(RECORDS, json!({ "data": records["data"] }));
    let process = bed.start();
    let is_removed = || bed.get(RECORDS)["data"] == json!({});
    bed.until("the record is removed", is_removed).await;
    bed.server.begin_deletion(&path);
    bed.until("the object is gone", || bed.server.get(&path).is_none()).await;
    bed.apply("persistentvolumes/kept", json!({ "spec": { "csi": volume["spec"]["csi"] } }));
    drop(process);
    bed.apply(RECORDS, json!({ "data": records["data"] }));
    let _process = bed.start();
    bed.until("the record is removed again", is_removed).await;
    assert_eq!(bed.calls.count("CreateVolume"), 2);
    assert_eq!(bed.calls.count("DeleteVolume"), 0);
    assert_eq!(bed.server.objects("persistentvolumes/").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn deletions_at_once_share_a_list_of_attachments() {
    let (bed, _process) = Bed::started(&[]).await;
    let names: Vec<String> = (0..20).map(|at| format!("data-{at}")).collect();
    names.iter().for_each(|name| bed.claim(name));
    for name in &names {
        bed.bound(name).await;
    }
    let mark = bed.server.mark();
    bed.delete_all("persistentvolumeclaims/").await;
    bed.none_is_left("persistentvolumes/").await;
    let counts = bed.server.counts_since(mark);
    assert!(counts["list volumeattachments"] < 10, "{counts:?}");
    assert_eq!(bed.calls.count("DeleteVolume"), 20);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_snapshots_can_get_them_later() {
    let bed = Bed::new(&[]).await;
    bed.server.lack("snapshot.storage.k8s.io");
    bed.apply("volumesnapshotclasses/kept", json!({}));
    let _process = bed.start();
    bed.volume("data").await;
    bed.server.define("snapshot.storage.k8s.io");
    bed.apply("volumesnapshots/team/night", json!({}));
    bed.until("the snapshot is ready", || bed.is_settled()).await;
}

/// Kubernetes takes 1024 bytes of an error.
#[tokio::test(start_paused = true)]
async fn an_error_of_an_attach_that_is_too_long_is_cut() {
    let (bed, _process) = Bed::started(&[]).await;
    let mode = "é".repeat(2000);
    let spec = json!({ "accessModes": [mode], "csi": { "driver": DRIVER, "volumeHandle": "h" } });
    bed.apply("persistentvolumes/strange", json!({ "spec": spec }));
    bed.attach("va", "strange");
    let message = || bed.get("volumeattachments/va")["status"]["attachError"]["message"].clone();
    let begins = |text: &str| text.starts_with("unsupported access mode \"éé");
    bed.until("the error is written", || message().as_str().is_some_and(begins)).await;
}

/// Kubernetes before 1.34, and an API server that begins to work a little later, and whose machine is gone before it has
/// answered.
#[tokio::test(start_paused = true)]
async fn what_a_cluster_lacks_at_the_start_does_not_stop_the_rest() {
    let bed = Bed::new(&["--without=attach"]).await;
    bed.server.lack("storage.k8s.io/volumeattributesclasses");
    bed.server.fail("get csidrivers", ApiFault::Status(503));
    bed.server.fail("list persistentvolumeclaims", ApiFault::NoAnswer);
    bed.server.fail("watch persistentvolumes", ApiFault::NoAnswer);
    let _process = bed.start();
    let volume = bed.volume("data").await;
    bed.attach("va", &path("", &volume));
    bed.until("it is marked as attached", || bed.is_settled()).await;
}
