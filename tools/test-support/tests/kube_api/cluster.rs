//! The controllers of the cluster.

use std::time::Duration;

use serde_json::{Value, json};
use test_support::kube_api::{ApiServer, Cluster};
use tokio::time::sleep;

use crate::{claim, volume};

const CLAIM: &str = "persistentvolumeclaims/ns/a";
const SNAPSHOT: &str = "volumesnapshots/ns/s";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

fn cluster() -> (ApiServer, Cluster) {
    let server = ApiServer::new();
    let cluster = Cluster::start(&server);
    for (name, mode) in [("fast", "Immediate"), ("late", "WaitForFirstConsumer")] {
        let class = json!({ "metadata": { "name": name }, "provisioner": "d", "volumeBindingMode": mode });
        server.create("storageclasses", class);
    }
    (server, cluster)
}

/// Time for all controllers.
async fn settle() {
    sleep(Duration::from_secs(1)).await;
}

fn phase(server: &ApiServer, path: &str) -> Value {
    server.get(path).map_or(json!("gone"), |object| object["status"]["phase"].clone())
}

async fn bound_claim(server: &ApiServer) {
    let created = server.create("persistentvolumeclaims/ns", claim("a", "fast"));
    server.create("persistentvolumes", volume("v", &created));
    settle().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_provisioned_bound_and_released() {
    let (server, _cluster) = cluster();
    let created = server.create("persistentvolumeclaims/ns", claim("a", "fast"));
    settle().await;
    assert_eq!(server.get(CLAIM).unwrap()["metadata"]["annotations"][PROVISIONER], "d");
    server.create("persistentvolumes", volume("v", &created));
    settle().await;
    let bound = server.get(CLAIM).unwrap();
    assert_eq!(bound["spec"]["volumeName"], "v");
    assert_eq!(bound["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"], "yes");
    assert_eq!(bound["status"]["capacity"], json!({ "storage": "1Gi" }));
    assert_eq!(phase(&server, CLAIM), "Bound");
    assert_eq!(phase(&server, "persistentvolumes/v"), "Bound");
    let volumes = json!([{ "persistentVolumeClaim": { "claimName": "a" } }]);
    server.create("pods/ns", json!({ "metadata": { "name": "p" }, "spec": { "volumes": volumes } }));
    server.begin_deletion(CLAIM);
    settle().await;
    assert_eq!(phase(&server, CLAIM), "Bound", "a pod uses it");
    server.delete("pods/ns/p");
    settle().await;
    assert_eq!(phase(&server, CLAIM), "gone");
    assert_eq!(phase(&server, "persistentvolumes/v"), "Released");
    server.begin_deletion("persistentvolumes/v");
    settle().await;
    assert_eq!(phase(&server, "persistentvolumes/v"), "gone");
}

#[tokio::test(start_paused = true)]
async fn a_late_claim_waits_for_its_node() {
    let (server, _cluster) = cluster();
    server.create("persistentvolumeclaims/ns", claim("a", "late"));
    settle().await;
    assert_eq!(server.get(CLAIM).unwrap()["metadata"]["annotations"], Value::Null);
    server.edit(CLAIM, |claim| {
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = json!("n");
    });
    settle().await;
    assert_eq!(server.get(CLAIM).unwrap()["metadata"]["annotations"][PROVISIONER], "d");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_goes_before_its_claim_or_after_it() {
    let (server, _cluster) = cluster();
    bound_claim(&server).await;
    server.begin_deletion("persistentvolumes/v");
    settle().await;
    assert_eq!(phase(&server, "persistentvolumes/v"), "Bound", "it is protected");
    server.delete("persistentvolumes/v");
    settle().await;
    assert_eq!(phase(&server, CLAIM), "Lost");
    let gone = json!({ "metadata": { "name": "b", "uid": "gone" } });
    server.create("persistentvolumes", volume("w", &gone));
    settle().await;
    assert_eq!(phase(&server, "persistentvolumes/w"), "Released");
    let nobody = json!({ "metadata": { "name": "c" } });
    server.create("persistentvolumes", volume("x", &nobody));
    settle().await;
    assert_eq!(phase(&server, "persistentvolumes/x"), "Available");
    server.create("persistentvolumeclaims/ns", claim("c", "none"));
    settle().await;
    assert_eq!(phase(&server, "persistentvolumeclaims/ns/c"), "Bound");
}

#[tokio::test(start_paused = true)]
async fn five_thousand_claims_are_bound() {
    let (server, _cluster) = cluster();
    let names: Vec<String> = (0..5_000).map(|number| format!("a-{number}")).collect();
    for name in &names {
        let created = server.create("persistentvolumeclaims/ns", claim(name, "fast"));
        server.create("persistentvolumes", volume(name, &created));
    }
    settle().await;
    let is_bound = |object: &Value| object["status"]["phase"] == "Bound";
    assert!(server.objects("persistentvolumeclaims/ns/").iter().all(is_bound));
    for name in &names {
        server.begin_deletion(&format!("persistentvolumeclaims/ns/{name}"));
    }
    settle().await;
    assert!(server.objects("persistentvolumeclaims/ns/").is_empty());
    assert!(
        server.objects("persistentvolumes/").iter().all(|object| object["status"]["phase"] == "Released")
    );
}

fn content(server: &ApiServer) -> Option<(String, Value)> {
    let found = server.objects("volumesnapshotcontents/").into_iter().next()?;
    Some((format!("volumesnapshotcontents/{}", found["metadata"]["name"].as_str().unwrap()), found))
}

async fn snapshot(server: &ApiServer, policy: &str) -> String {
    let secret = json!({ "csi.storage.k8s.io/snapshotter-secret-name": "s" });
    let default = json!({ "snapshot.storage.kubernetes.io/is-default-class": "true" });
    server.create(
        "volumesnapshotclasses",
        json!({ "metadata": { "name": "c", "annotations": default }, "driver": "d", "deletionPolicy": policy,
                "parameters": secret }),
    );
    let spec = json!({ "source": { "persistentVolumeClaimName": "a" } });
    server.create("volumesnapshots/ns", json!({ "metadata": { "name": "s" }, "spec": spec }));
    settle().await;
    bound_claim(server).await;
    let (path, made) = content(server).unwrap();
    assert_eq!(made["spec"]["source"], json!({ "volumeHandle": "h" }));
    assert_eq!(made["spec"]["deletionPolicy"], policy);
    assert_eq!(made["metadata"]["annotations"]["snapshot.storage.kubernetes.io/deletion-secret-name"], "s");
    assert!(server.get(CLAIM).unwrap()["metadata"]["finalizers"].to_string().contains("pvc-as-source"));
    let nanos = 1_767_225_600_000_000_000_u64;
    server.edit_status(&path, |status| {
        *status =
            json!({ "snapshotHandle": "x", "creationTime": nanos, "restoreSize": 1024, "readyToUse": true });
    });
    settle().await;
    let due = json!({ "boundVolumeSnapshotContentName": made["metadata"]["name"], "restoreSize": "1024",
                      "readyToUse": true, "creationTime": "2026-01-01T00:00:00Z" });
    assert_eq!(server.get(SNAPSHOT).unwrap()["status"], due);
    assert!(!server.get(CLAIM).unwrap()["metadata"]["finalizers"].to_string().contains("pvc-as-source"));
    path
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_made_and_deleted_after_its_content() {
    let (server, _cluster) = cluster();
    let path = snapshot(&server, "Delete").await;
    let mut restored = claim("b", "fast");
    restored["spec"]["dataSource"] = json!({ "kind": "VolumeSnapshot", "name": "s" });
    server.create("persistentvolumeclaims/ns", restored);
    server.begin_deletion(SNAPSHOT);
    settle().await;
    let deleting = |object: &Value| object["metadata"]["deletionTimestamp"].is_string();
    assert!(!deleting(&server.get(&path).unwrap()), "a claim is being restored");
    server.begin_deletion("persistentvolumeclaims/ns/b");
    settle().await;
    let marked = server.get(&path).unwrap();
    assert!(deleting(&marked));
    let key = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
    assert_eq!(marked["metadata"]["annotations"][key], "yes");
    assert!(server.get(SNAPSHOT).is_some());
    server.edit(&path, |content| content["metadata"]["finalizers"] = json!([]));
    settle().await;
    assert_eq!(server.get(&path), None);
    assert_eq!(server.get(SNAPSHOT), None);
}

#[tokio::test(start_paused = true)]
async fn a_retained_content_outlives_its_snapshot_and_binds_again() {
    let (server, _cluster) = cluster();
    let path = snapshot(&server, "Retain").await;
    server.begin_deletion(SNAPSHOT);
    settle().await;
    assert_eq!(server.get(SNAPSHOT), None);
    assert!(server.get(&path).unwrap()["metadata"]["deletionTimestamp"].is_null());
    let reference = json!({ "namespace": "ns", "name": "t" });
    let spec = json!({ "driver": "d", "deletionPolicy": "Retain", "source": { "snapshotHandle": "x" },
                       "volumeSnapshotRef": reference });
    server.create("volumesnapshotcontents", json!({ "metadata": { "name": "pre" }, "spec": spec }));
    let spec = json!({ "source": { "volumeSnapshotContentName": "pre" } });
    let made = server.create("volumesnapshots/ns", json!({ "metadata": { "name": "t" }, "spec": spec }));
    settle().await;
    let bound = server.get("volumesnapshotcontents/pre").unwrap();
    assert_eq!(bound["spec"]["volumeSnapshotRef"]["uid"], made["metadata"]["uid"]);
    let status = &server.get("volumesnapshots/ns/t").unwrap()["status"];
    assert_eq!(status["boundVolumeSnapshotContentName"], "pre");
}
