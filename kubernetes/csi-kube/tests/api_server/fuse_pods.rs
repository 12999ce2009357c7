//! A pod for each volume, against a scheduler and kubelets that the test plays.

mod class;
mod sweep;

use std::time::Duration;

use test_support::kube_api::{ApiServer, Fault, Row};

use crate::rows;
use csi_core::Error;
use csi_core::kubernetes::FUSE_POD_KEY;
use csi_core::types::{NodeId, VolumeId};
use csi_kube::{FusePods, rules};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use self::class::sharing;

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
    // The golden file of csi-deploy has all of it.
    let quantities = json!({ "cpu": "50m", "memory": "256Mi" });
    let container = json!({ "name": "mounter", "image": "registry.example.org/s3:1", "resources": { "requests": quantities, "limits": { "memory": "256Mi" } } });
    let template = json!({
        "metadata": { "annotations": { "a": "b" }, "labels": { "c": "d" } },
        "spec": { "containers": [container], "priorityClassName": "high" },
    });
    server.put(
        "podtemplates/s3-fuse/s3-fuse",
        json!({ "metadata": { "name": "s3-fuse" }, "template": template }),
    );
    server
}

fn all_rows() -> Vec<Row> {
    rows(&[rules::FUSE_PODS, rules::FUSE_PODS_NAMESPACE].concat())
}

fn pods(server: &ApiServer) -> FusePods {
    FusePods::new(server.client(), DRIVER, "s3-fuse")
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
    attach_with(server, volume, is_attached, json!({}));
}

fn attach_with(server: &ApiServer, volume: &str, is_attached: bool, context: Value) {
    let name = format!("pv-{volume}");
    let source = json!({ "driver": DRIVER, "volumeHandle": volume, "volumeAttributes": context });
    let claim =
        json!({ "name": format!("claim-{volume}"), "namespace": "ns", "uid": format!("uid-{volume}") });
    server.put(
        &format!("persistentvolumes/{name}"),
        json!({ "metadata": { "name": name }, "spec": { "csi": source, "claimRef": claim } }),
    );
    let spec =
        json!({ "attacher": DRIVER, "nodeName": "worker-1", "source": { "persistentVolumeName": name } });
    let mut status = json!({ "attached": is_attached });
    let uses = |pod: &&Value| {
        let mut annotations = pod["metadata"]["annotations"].as_object().into_iter().flatten();
        annotations.any(|(_, value)| value == volume)
    };
    if let Some(pod) = server.objects(PODS).iter().find(uses) {
        status["attachmentMetadata"] = json!({ FUSE_POD_KEY: pod["metadata"]["name"] });
    }
    let attachment = json!({ "metadata": { "name": name }, "spec": spec, "status": status });
    server.put(&format!("volumeattachments/{name}"), attachment);
}

#[tokio::test(start_paused = true)]
async fn a_volume_has_one_pod_from_its_attachment_to_its_detachment() {
    let server = server();
    server.allow(&all_rows());
    let pods = pods(&server);
    let published = during(&server, Cluster::Works, pods.publish(&id("v"), &node())).await.unwrap();
    let name = published.publish_context[FUSE_POD_KEY].clone();
    assert_eq!(names(&server), std::slice::from_ref(&name));
    assert_eq!(name, "fuse-3a29c4f7b01aa727", "a later version finds it");
    let pod = server.get(&format!("{PODS}{name}")).unwrap();
    let template = server.get("podtemplates/s3-fuse/s3-fuse").unwrap()["template"].take();
    let mut spec = pod["spec"].clone();
    let affinity = spec.as_object_mut().unwrap().remove("affinity").unwrap();
    assert!(affinity.to_string().contains(r#"["worker-1"]"#), "{affinity}");
    assert_eq!(spec, template["spec"], "the rest is the template's, and the scheduler is asked");
    let metadata = &pod["metadata"];
    let owner = &metadata["ownerReferences"][0];
    let of_node =
        json!({ "apiVersion": "v1", "kind": "Node", "name": "worker-1", "uid": "n1", "controller": true });
    assert_eq!(*owner, of_node, "`kubectl drain` refuses a pod without a controller");
    assert_eq!((&metadata["annotations"]["a"], &metadata["labels"]["c"]), (&json!("b"), &json!("d")));

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
}

#[tokio::test(start_paused = true)]
async fn without_the_manifests_the_error_says_what_to_apply() {
    let server = server();
    server.delete("podtemplates/s3-fuse/s3-fuse");
    let error = pods(&server).publish(&id("v"), &node()).await.unwrap_err().to_string();
    assert!(
        error.contains("pod template s3-fuse/s3-fuse") && error.contains("--fuse-pods=per-volume"),
        "{error}"
    );
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
    assert!(
        server.verbs("pods").len() < 10,
        "no request is repeated without a pause: {:?}",
        server.verbs("pods")
    );
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
    let lists = server.verbs("pods").iter().filter(|verb| *verb == "list").count();
    assert_eq!(lists, 1, "the other pods of the cluster are not read again and again");
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

/// A node is powered off, marked by its administrator, and comes back later.
#[tokio::test(start_paused = true)]
async fn a_volume_of_a_lost_node_gets_a_pod_on_another_one() {
    let server = server();
    let pods = pods(&server);
    let taint = json!([{ "key": "node.kubernetes.io/out-of-service", "effect": "NoExecute" }]);
    let put_node = |name: &str, taints: &Value| {
        let node = json!({ "metadata": { "name": name, "uid": name }, "spec": { "taints": taints } });
        server.put(&format!("nodes/{name}"), node);
    };
    put_node("worker-1", &json!([]));
    put_node("worker-2", &json!([]));
    during(&server, Cluster::Works, pods.publish(&id("v"), &node())).await.unwrap();
    attach(&server, "v", true);
    let first = names(&server);
    put_node("worker-1", &taint);
    // The controller of attachments detaches by force, and the kubelet ends no pod.
    during(&server, Cluster::IsSlow, pods.unpublish(&id("v"), Some(&node()))).await.unwrap();
    let other = NodeId::new("worker-2").unwrap();
    during(&server, Cluster::Works, pods.publish(&id("v"), &other)).await.unwrap();
    attach(&server, "v", true);
    let mut attachment = server.get("volumeattachments/pv-v").unwrap();
    attachment["spec"]["nodeName"] = json!("worker-2");
    server.put("volumeattachments/pv-v", attachment);
    put_node("worker-1", &json!([]));
    pods.sweep().await.unwrap();
    assert_eq!(names(&server).len(), 1);
    assert_ne!(names(&server), first, "the node that is back has none");
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

/// Something deletes each pod as soon as it exists.
#[tokio::test(start_paused = true)]
async fn a_pod_that_never_stays_is_not_made_without_a_pause() {
    let server = server();
    (0..1000).for_each(|_| server.before("get pods", |server| server.delete_all(PODS)));
    let error = pods(&server).publish(&id("v"), &node()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(server.verbs("pods").len() < 100, "{} requests", server.verbs("pods").len());
}

/// The last end of a container, as the kubelet writes it for a container that has been started again.
fn killed(log: &str, ago: SignedDuration) -> Value {
    let finished = Timestamp::now() - ago;
    let terminated =
        json!({ "reason": "OOMKilled", "exitCode": 137, "message": log, "finishedAt": finished.to_string() });
    let container = json!({
        "name": "mounter", "image": "", "imageID": "", "ready": true, "restartCount": 1,
        "lastState": { "terminated": terminated },
    });
    json!([container])
}

/// The events of claims: the object, the reason, the text, and how often it was counted.
fn events(server: &ApiServer) -> Vec<(String, String, String, u64)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let row = |event: &Value| {
        let object = ["kind", "name", "uid"].map(|field| text(&event["regarding"][field])).join(" ");
        let count = event["series"]["count"].as_u64().unwrap_or(1);
        (object, text(&event["reason"]), text(&event["note"]), count)
    };
    server.objects("events/ns/").iter().map(row).collect()
}

async fn sweep(pods: &FusePods) {
    pods.sweep().await.unwrap();
    // The events are written by a task.
    sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ends_is_an_event_of_the_claim_and_its_users_with_the_reason_and_its_log() {
    let server = server();
    let claim = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "claim-v" } });
    // The name of its claim is claim-w.
    let ephemeral = json!({ "name": "w", "ephemeral": {} });
    let other = json!({ "name": "other", "persistentVolumeClaim": { "claimName": "other" } });
    for (pod, node, volumes) in [
        ("app", "worker-1", json!([other, claim])),
        ("claim", "worker-1", json!([ephemeral])),
        ("elsewhere", "worker-2", json!([claim])),
        ("without", "worker-1", json!([other])),
        ("plain", "worker-1", Value::Null),
    ] {
        let metadata = json!({ "name": pod, "namespace": "ns", "uid": format!("uid-{pod}") });
        let spec = json!({ "containers": [], "nodeName": node, "volumes": volumes });
        server.put(&format!("pods/ns/{pod}"), json!({ "metadata": metadata, "spec": spec }));
    }
    server.allow(&all_rows());
    let pods = sharing(&server).of_class([("bucket", "b")]).unwrap();
    for volume in ["v", "w"] {
        during(&server, Cluster::Works, pods.publish(&id(volume), &node())).await.unwrap();
        attach_with(&server, volume, true, json!({ "bucket": "b" }));
    }
    let path = format!("{PODS}{}", names(&server)[0]);
    sweep(&pods).await;
    assert_eq!(events(&server), [], "it runs");

    let log = format!("early\n{}\ncache is\u{1b}[2J full\nno memory\n", "x".repeat(700));
    for (seconds, count) in [(20, 1), (10, 2)] {
        let end = killed(&log, SignedDuration::from_secs(seconds));
        server.edit_status(&path, |status| status["containerStatuses"] = end);
        for _ in 0..2 {
            sweep(&pods).await;
            let mut events = events(&server);
            events.sort();
            let note = &events[0].2;
            let of = |object: &str| (object.to_owned(), "FusePodEnded".to_owned(), note.clone(), count);
            let objects = [
                "PersistentVolumeClaim claim-v uid-v",
                "PersistentVolumeClaim claim-w uid-w",
                "Pod app uid-app",
                "Pod claim uid-claim",
            ];
            assert_eq!(events, objects.map(of), "each end is reported once to each");
            assert!(note.contains(&format!("s3-fuse/{} has ended: OOMKilled", names(&server)[0])), "{note}");
            assert!(note.contains("exit code 137, memory limit 256Mi. It is started again"), "{note}");
            assert!(note.ends_with(r"xx | cache is\u{1b}[2J full | no memory"), "{note}");
            assert!(!note.contains("early"), "{note}");
        }
    }

    server.edit_status(&path, |status| {
        *status =
            json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on memory. " });
    });
    sweep(&pods).await;
    let evicted = events(&server).pop().unwrap();
    assert!(
        evicted.2.contains("has failed: Evicted: The node was low on memory. Another pod"),
        "{evicted:?}"
    );
    server.assert_rules_used(&all_rows());
}

/// What happened long ago, and what is supposed to end, is no news.
#[tokio::test(start_paused = true)]
async fn only_new_ends_of_attached_volumes_are_events() {
    let server = server();
    let pods = pods(&server);
    for volume in ["old", "detached", "deleted"] {
        during(&server, Cluster::Works, pods.publish(&id(volume), &node())).await.unwrap();
    }
    attach(&server, "old", true);
    attach(&server, "deleted", true);
    for name in names(&server) {
        let path = format!("{PODS}{name}");
        let volume = server.get(&path).unwrap()["metadata"]["annotations"]["csi-kube/volume"].clone();
        let hours = if volume == json!("old") { 2 } else { 0 };
        let end = killed("", SignedDuration::from_hours(hours));
        server.edit_status(&path, |status| status["containerStatuses"] = end);
        if volume == json!("deleted") {
            server.begin_deletion(&path);
        }
    }
    sweep(&pods).await;
    assert_eq!(events(&server), []);
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
        attach(&server, "v", true);
        server.fail("delete", fault);
        let cut = tokio::time::timeout(Duration::from_secs(1), pods.unpublish(&id("v"), Some(&node()))).await;
        assert!(cut.is_err() || cut.unwrap().is_err());
        during(&server, Cluster::Works, pods.unpublish(&id("v"), Some(&node()))).await.unwrap();
        assert!(names(&server).is_empty());
        // The same in a sweep: an attachment has lost its pod, and then a pod its attachment.
        for (verb, left) in [("create", 1), ("delete", 0)] {
            if verb == "delete" {
                server.delete("volumeattachments/pv-v");
            }
            server.fail(verb, fault);
            let cut = tokio::time::timeout(Duration::from_secs(1), pods.sweep()).await;
            assert!(cut.is_err() || cut.unwrap().is_err());
            pods.sweep().await.unwrap();
            act(&server, Cluster::Works);
            assert_eq!(names(&server).len(), left, "{verb}");
        }
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
