//! A pod for each volume, against a scheduler and kubelets that the test plays.

use std::time::Duration;

use crate::mock::{ApiServer, Fault};
use csi_core::Error;
use csi_core::kubernetes::FUSE_POD_KEY;
use csi_core::types::{NodeId, VolumeId};
use csi_kube::{FusePods, rules};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

const DRIVER: &str = "s3.csi.example.org";
const PODS: &str = "pods/s3-fuse/";

fn id(text: &str) -> VolumeId {
    VolumeId::new(text).unwrap()
}

fn node() -> NodeId {
    NodeId::new("worker-1").unwrap()
}

fn server() -> ApiServer {
    let server = ApiServer::new();
    server.put("nodes/worker-1", json!({ "metadata": { "name": "worker-1", "uid": "n1" }, "spec": {} }));
    server
}

fn pods(server: &ApiServer) -> FusePods {
    FusePods::new(server.client(), DRIVER, "s3-fuse", "registry.example.org/s3:1").memory("256Mi")
}

/// What the scheduler and the kubelets do with pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cluster {
    /// There is room, and a deleted pod ends.
    Works,
    /// No node has room.
    IsFull,
    /// A deleted pod still stores data.
    IsSlow,
}

fn act(server: &ApiServer, cluster: Cluster) {
    for mut pod in server.objects(PODS) {
        let path = format!("{PODS}{}", pod["metadata"]["name"].as_str().unwrap());
        if pod["metadata"]["deletionTimestamp"].is_string() {
            if cluster == Cluster::Works {
                server.delete(&path);
            }
            continue;
        }
        let condition = if cluster == Cluster::IsFull {
            json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available" })
        } else {
            json!({ "type": "PodScheduled", "status": "True" })
        };
        let phase = pod["status"]["phase"].clone();
        let status = json!({ "conditions": [condition], "phase": phase });
        if pod["status"] != status {
            pod["status"] = status;
            server.put(&path, pod);
        }
    }
}

/// Plays the cluster for as long as the call runs.
async fn during<T>(server: &ApiServer, cluster: Cluster, call: impl Future<Output = T>) -> T {
    let plays = async {
        loop {
            sleep(Duration::from_millis(100)).await;
            act(server, cluster);
        }
    };
    tokio::select! {
        result = call => result,
        () = plays => unreachable!("it has no end"),
    }
}

fn names(server: &ApiServer) -> Vec<String> {
    server.objects(PODS).iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn attach(server: &ApiServer, volume: &str, is_attached: bool) {
    let name = format!("pv-{volume}");
    let source = json!({ "driver": DRIVER, "volumeHandle": volume });
    server.put(
        &format!("persistentvolumes/{name}"),
        json!({ "metadata": { "name": name }, "spec": { "csi": source } }),
    );
    let spec =
        json!({ "attacher": DRIVER, "nodeName": "worker-1", "source": { "persistentVolumeName": name } });
    let attachment =
        json!({ "metadata": { "name": name }, "spec": spec, "status": { "attached": is_attached } });
    server.put(&format!("volumeattachments/{name}"), attachment);
}

#[tokio::test(start_paused = true)]
async fn a_volume_has_one_pod_from_its_attachment_to_its_detachment() {
    let server = server();
    let all = [rules::FUSE_PODS, rules::FUSE_PODS_NAMESPACE].concat();
    server.allow(&all);
    let pods = pods(&server);
    let published = during(&server, Cluster::Works, pods.publish(&id("v"), &node())).await.unwrap();
    let name = published.publish_context[FUSE_POD_KEY].clone();
    assert_eq!(names(&server), std::slice::from_ref(&name));
    assert_eq!(name, "fuse-3a29c4f7b01aa727", "a later version finds it");
    let pod = server.get(&format!("{PODS}{name}")).unwrap();
    let spec = &pod["spec"];
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    let container = &spec["containers"][0];
    assert_eq!(container["securityContext"]["capabilities"], json!({ "drop": ["ALL"] }));
    assert_eq!(container["resources"]["limits"]["memory"], "256Mi");
    assert!(spec["volumes"].as_array().unwrap().iter().all(|volume| volume["emptyDir"].is_object()));
    assert_eq!(spec["nodeName"], Value::Null, "the scheduler is asked");
    assert!(spec["affinity"].to_string().contains(r#"["worker-1"]"#));

    let again = during(&server, Cluster::Works, pods.publish(&id("v"), &node())).await.unwrap();
    assert_eq!(again, published);
    assert_eq!(server.verbs("pods").iter().filter(|verb| *verb == "create").count(), 1);
    attach(&server, "v", true);
    pods.sweep().await.unwrap();
    assert_eq!(names(&server), [name]);
    for _ in 0..2 {
        during(&server, Cluster::Works, pods.unpublish(&id("v"), Some(&node()))).await.unwrap();
        assert!(names(&server).is_empty());
    }
    server.assert_rules_used(&all);
}

#[tokio::test(start_paused = true)]
async fn a_full_node_is_reported_in_the_schedulers_words_until_it_has_room() {
    let server = server();
    let pods = pods(&server);
    for _ in 0..2 {
        let error = during(&server, Cluster::IsFull, pods.publish(&id("v"), &node())).await.unwrap_err();
        let Error::LimitReached(reason) = &error else { panic!("{error}") };
        assert!(reason.as_str().contains("0/3 nodes are available"), "{error}");
    }
    // The scheduler has found room.
    act(&server, Cluster::Works);
    during(&server, Cluster::Works, pods.publish(&id("v"), &node())).await.unwrap();
    assert_eq!(names(&server).len(), 1);
    // Nobody schedules: the attacher would wait no longer.
    let error = pods.publish(&id("w"), &node()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    let elsewhere = NodeId::new("worker-9").unwrap();
    assert!(matches!(pods.publish(&id("v"), &elsewhere).await.unwrap_err(), Error::NodeNotFound(_)));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ends_is_waited_for_and_an_evicted_one_is_replaced() {
    let server = server();
    let pods = pods(&server);
    during(&server, Cluster::Works, pods.publish(&id("v"), &node())).await.unwrap();
    let unpublished = during(&server, Cluster::IsSlow, pods.unpublish(&id("v"), Some(&node()))).await;
    assert!(matches!(unpublished.unwrap_err(), Error::Pending(_)), "its program stores data");
    let published = during(&server, Cluster::IsSlow, pods.publish(&id("v"), &node())).await;
    assert!(matches!(published.unwrap_err(), Error::Pending(_)));
    act(&server, Cluster::Works);
    assert!(names(&server).is_empty());

    during(&server, Cluster::Works, pods.publish(&id("v"), &node())).await.unwrap();
    let path = format!("{PODS}{}", names(&server)[0]);
    let mut pod = server.get(&path).unwrap();
    pod["status"]["phase"] = json!("Failed");
    server.put(&path, pod);
    during(&server, Cluster::Works, pods.publish(&id("v"), &node())).await.unwrap();
    assert_eq!(server.get(&path).unwrap()["status"]["phase"], Value::Null, "it is another pod");

    // Nothing ends on a node that is out of service.
    server.put(
        "nodes/worker-1",
        json!({
            "metadata": { "name": "worker-1", "uid": "n1" },
            "spec": { "taints": [{ "key": "node.kubernetes.io/out-of-service", "effect": "NoExecute" }] },
        }),
    );
    during(&server, Cluster::IsSlow, pods.unpublish(&id("v"), None)).await.unwrap();
    assert!(names(&server).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_another_volume_is_not_taken_for_its_own() {
    let server = server();
    let pods = pods(&server);
    during(&server, Cluster::Works, pods.publish(&id("v"), &node())).await.unwrap();
    let path = format!("{PODS}{}", names(&server)[0]);
    let mut pod = server.get(&path).unwrap();
    pod["metadata"]["annotations"]["csi-kube/volume"] = json!("w");
    server.put(&path, pod);
    let error = during(&server, Cluster::Works, pods.publish(&id("v"), &node())).await.unwrap_err();
    assert!(matches!(error, Error::Incompatible(_)), "{error}");
}

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
    assert_eq!([of("kept"), of("left"), of("evicted")], [1, 0, 1]);
    assert!(server.get(&format!("{PODS}{name}")).is_some(), "it has the same name");
    assert!(server.get(&format!("{PODS}other")).is_some(), "it is not the driver's");
}

/// The controller is killed after a write: the next one goes on.
#[tokio::test(start_paused = true)]
async fn a_lost_answer_costs_nothing() {
    let server = server();
    let pods = pods(&server);
    for fault in [Fault::AnswerLost, Fault::NoAnswer, Fault::Reset] {
        server.fail("create", fault);
        let cut = tokio::time::timeout(Duration::from_secs(1), pods.publish(&id("v"), &node())).await;
        assert!(cut.is_err() || cut.unwrap().is_err());
        during(&server, Cluster::Works, pods.publish(&id("v"), &node())).await.unwrap();
        assert_eq!(names(&server).len(), 1);
        server.fail("delete", fault);
        let cut = tokio::time::timeout(Duration::from_secs(1), pods.unpublish(&id("v"), Some(&node()))).await;
        assert!(cut.is_err() || cut.unwrap().is_err());
        during(&server, Cluster::Works, pods.unpublish(&id("v"), Some(&node()))).await.unwrap();
        assert!(names(&server).is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn two_controllers_make_one_pod_for_each_of_two_hundred_volumes() {
    let server = server();
    let all = async |is_published: bool| {
        let mut calls = JoinSet::new();
        for number in 0..200 {
            for _ in 0..2 {
                let pods = pods(&server);
                calls.spawn(async move {
                    let volume = id(&format!("v-{number}"));
                    if is_published {
                        pods.publish(&volume, &node()).await.map(drop)
                    } else {
                        pods.unpublish(&volume, Some(&node())).await
                    }
                });
            }
        }
        during(&server, Cluster::Works, async {
            while let Some(done) = calls.join_next().await {
                done.unwrap().unwrap();
            }
        })
        .await;
    };
    all(true).await;
    assert_eq!(names(&server).len(), 200);
    all(false).await;
    assert!(names(&server).is_empty());
}
