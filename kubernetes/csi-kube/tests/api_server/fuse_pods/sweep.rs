//! Sweeps make pods and attachments agree.

use serde_json::{Value, json};
use test_support::kube_api::Fault;

use super::{Cluster, PODS, act, attach, attach_with, during, id, names, node, pods, server, sharing};

#[tokio::test(start_paused = true)]
async fn a_sweep_makes_pods_and_attachments_agree() {
    let server = server();
    let pods = pods(&server);
    for volume in ["kept", "left", "evicted"] {
        during(&server, Cluster::Works, pods.publish(&id(volume), &node())).await.unwrap();
    }
    server.put(&format!("{PODS}other"), json!({ "metadata": { "name": "other" }, "spec": {} }));
    // The external-attacher makes the object before it calls.
    attach(&server, "kept", false);
    attach(&server, "evicted", true);
    attach(&server, "later", false);
    let of = |volume: &str| {
        let all = server.objects(PODS).into_iter();
        all.filter(|pod| pod["metadata"]["annotations"]["csi-kube/volume"] == json!(volume)).count()
    };
    let evicted = server.objects(PODS).into_iter();
    let evicted = evicted.filter(|pod| pod["metadata"]["annotations"]["csi-kube/volume"] == json!("evicted"));
    let name = evicted.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).next().unwrap();
    server.delete(&format!("{PODS}{name}"));
    pods.sweep().await.unwrap();
    act(&server, Cluster::Works);
    assert_eq!(["kept", "left", "evicted", "later"].map(of), [1, 0, 1, 0]);
    assert!(server.get(&format!("{PODS}{name}")).is_some(), "it has the same name");
    assert!(server.get(&format!("{PODS}other")).is_some(), "it is not the driver's");
}

/// A PersistentVolume can be deleted by force while its volume is attached.
#[tokio::test(start_paused = true)]
async fn a_sweep_keeps_the_pod_of_an_attachment_without_a_persistent_volume() {
    let server = server();
    let pods = pods(&server);
    during(&server, Cluster::Works, pods.publish(&id("v"), &node())).await.unwrap();
    attach(&server, "v", true);
    server.delete("persistentvolumes/pv-v");
    pods.sweep().await.unwrap();
    act(&server, Cluster::Works);
    assert_eq!(names(&server).len(), 1);
}

/// A machine that is made again joins with its former name, and the node's part asks for the pod that the attachment names.
#[tokio::test(start_paused = true)]
async fn a_pod_is_made_again_under_the_name_that_its_attachment_has() {
    let server = server();
    let pods = pods(&server);
    during(&server, Cluster::Works, pods.publish(&id("v"), &node())).await.unwrap();
    attach_with(&server, "v", true, json!({ "bucket": "b" }));
    let first = names(&server);
    server.delete_all(PODS);
    server.put("nodes/worker-1", json!({ "metadata": { "name": "worker-1", "uid": "n2" }, "spec": {} }));
    pods.sweep().await.unwrap();
    assert_eq!(names(&server), first);

    // A later version of the driver lets volumes share pods.
    let pods = sharing(&server);
    pods.sweep().await.unwrap();
    assert_eq!(names(&server), first);
    server.edit_status(&format!("{PODS}{}", first[0]), |status| *status = json!({ "phase": "Failed" }));
    for _ in 0..2 {
        pods.sweep().await.unwrap();
        assert_eq!(names(&server), first);
        assert_eq!(server.objects(PODS)[0]["status"]["phase"], Value::Null, "it is another pod");
    }
}

/// For example by a limit of the namespace that one class exceeds.
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_refused_does_not_keep_a_sweep_from_the_others() {
    let server = server();
    let pods = pods(&server);
    for volume in ["a", "b"] {
        during(&server, Cluster::Works, pods.publish(&id(volume), &node())).await.unwrap();
        attach(&server, volume, true);
    }
    server.delete_all(PODS);
    during(&server, Cluster::Works, pods.publish(&id("left"), &node())).await.unwrap();
    server.fail("delete pods", Fault::Status(500));
    server.fail("create pods", Fault::Status(403));
    pods.sweep().await.unwrap_err();
    assert_eq!(names(&server).len(), 2, "one of two is made, and one is not deleted");
    pods.sweep().await.unwrap();
    act(&server, Cluster::Works);
    assert_eq!(names(&server).len(), 2);
}
