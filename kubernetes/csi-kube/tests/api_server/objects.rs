//! The objects of a call, with and without a cache.

use std::time::Duration;

use test_support::kube_api::{ApiServer, Fault};

use crate::rows;
use csi_core::kubernetes::{ClaimNames, PodInfo};
use csi_kube::{Error, Objects, rules};
use serde_json::{Value, json};
use tokio::time::sleep;

fn object(name: &str, extra: Value) -> Value {
    let mut object = json!({ "metadata": { "name": name }, "spec": {}, "provisioner": "x" });
    for (key, value) in extra.as_object().unwrap() {
        object["metadata"][key] = value.clone();
    }
    object
}

fn server() -> ApiServer {
    let server = ApiServer::new();
    server.put("persistentvolumeclaims/ns/claim", object("claim", json!({ "namespace": "ns", "uid": "c1" })));
    server.put("persistentvolumes/pv", object("pv", json!({ "uid": "v1" })));
    server.put("storageclasses/fast", object("fast", json!({ "uid": "s1" })));
    server.put("namespaces/ns", object("ns", json!({ "uid": "n1" })));
    pod(&server, "p1");
    server
}

fn pod(server: &ApiServer, uid: &str) {
    let mut pod = object("pod", json!({ "namespace": "ns", "uid": uid }));
    pod["spec"] = json!({ "nodeName": "worker-1", "containers": [] });
    server.put("pods/ns/pod", pod);
}

fn publish(uid: &str) -> PodInfo<'_> {
    PodInfo::new("pod", "ns", uid, "default")
}

fn names() -> ClaimNames<'static> {
    let mut names = ClaimNames::default();
    (names.claim, names.namespace) = (Some("claim"), Some("ns"));
    names
}

async fn read_all(objects: &Objects) -> Vec<String> {
    let uids = [
        objects.claim(&names()).await.unwrap().metadata.uid.clone(),
        objects.volume("pv").await.unwrap().metadata.uid.clone(),
        objects.pod(&publish("p1")).await.unwrap().metadata.uid.clone(),
        objects.storage_class("fast").await.unwrap().metadata.uid.clone(),
        objects.namespace("ns").await.unwrap().metadata.uid.clone(),
    ];
    uids.into_iter().flatten().collect()
}

const DIRECT: [&[rules::Rule]; 5] =
    [rules::CLAIMS, rules::VOLUMES, rules::PODS, rules::STORAGE_CLASSES, rules::NAMESPACES];
const CACHED: [&[rules::Rule]; 5] = [
    rules::CACHED_CLAIMS,
    rules::CACHED_VOLUMES,
    rules::CACHED_PODS,
    rules::CACHED_STORAGE_CLASSES,
    rules::CACHED_NAMESPACES,
];

fn cached(server: &ApiServer) -> Objects {
    let objects = Objects::new(server.client()).cache_claims().cache_volumes().cache_pods_of("worker-1");
    objects.cache_storage_classes().cache_namespaces()
}

#[tokio::test(start_paused = true)]
async fn without_a_cache_each_read_is_a_request() {
    let server = server();
    server.allow(&rows(&DIRECT.concat()));
    let objects = Objects::new(server.client());
    for _ in 0..2 {
        assert_eq!(read_all(&objects).await, ["c1", "v1", "p1", "s1", "n1"]);
    }
    assert_eq!(server.verbs("pods"), ["get", "get"]);
    server.assert_rules_used(&rows(&DIRECT.concat()));
}

#[tokio::test(start_paused = true)]
async fn a_cache_answers_without_requests_and_follows_changes() {
    let server = server();
    server.allow(&rows(&CACHED.concat()));
    let objects = cached(&server);
    sleep(Duration::from_secs(1)).await;
    for _ in 0..3 {
        assert_eq!(read_all(&objects).await, ["c1", "v1", "p1", "s1", "n1"]);
    }
    let kinds = ["persistentvolumeclaims", "persistentvolumes", "pods", "storageclasses", "namespaces"];
    for kind in kinds {
        assert_eq!(server.verbs(kind), ["list", "watch"], "{kind}");
    }
    // What a cache does not have is asked for.
    let mut claim = names();
    claim.claim = Some("absent");
    objects.claim(&claim).await.unwrap_err();
    objects.volume("absent").await.unwrap_err();
    objects.pod(&PodInfo::new("absent", "ns", "p1", "default")).await.unwrap_err();
    objects.storage_class("absent").await.unwrap_err();
    objects.namespace("absent").await.unwrap_err();
    for kind in kinds {
        assert_eq!(server.verbs(kind), ["list", "watch", "get"], "{kind}");
    }
    server.assert_rules_used(&rows(&CACHED.concat()));

    server.put("persistentvolumes/pv", object("pv", json!({ "uid": "v2" })));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(objects.volume("pv").await.unwrap().metadata.uid.as_deref(), Some("v2"));
    server.delete("persistentvolumes/pv");
    sleep(Duration::from_secs(1)).await;
    let error = objects.volume("pv").await.unwrap_err();
    assert_eq!(error.to_string(), "persistentvolume pv does not exist");
}

#[tokio::test(start_paused = true)]
async fn a_cache_behind_the_api_server_makes_nothing_missing() {
    let server = server();
    for fault in [Fault::Status(500), Fault::TooMany(2), Fault::Reset] {
        server.fail("list", fault);
    }
    server.fail("watch", Fault::Status(410));
    let objects = cached(&server);
    assert_eq!(read_all(&objects).await.len(), 5);
    sleep(Duration::from_secs(120)).await;
    server.expire_watches();
    server.put("persistentvolumes/new", object("new", json!({ "uid": "v9" })));
    assert_eq!(objects.volume("new").await.unwrap().metadata.uid.as_deref(), Some("v9"));
    sleep(Duration::from_secs(120)).await;
    assert_eq!(read_all(&objects).await.len(), 5);
}

/// The machine of the API server is gone before it has answered, and nothing says so.
#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_does_not_end_a_watch() {
    for verb in ["list", "watch"] {
        let server = server();
        server.fail(&format!("{verb} persistentvolumes"), Fault::NoAnswer);
        let objects = Objects::new(server.client()).cache_volumes();
        sleep(Duration::from_secs(1)).await;
        objects.volume("pv").await.unwrap();
        server.delete("persistentvolumes/pv");
        server.put("persistentvolumes/new", object("new", json!({ "uid": "v9" })));
        sleep(Duration::from_secs(120)).await;
        objects.volume("pv").await.unwrap_err();
        let requests = server.mark();
        objects.volume("new").await.unwrap();
        assert_eq!(server.mark(), requests, "{verb}: it is in memory");
    }
}

/// A StatefulSet's next pod has the same name.
#[tokio::test(start_paused = true)]
async fn a_pod_is_known_by_its_uid() {
    let server = server();
    let objects = cached(&server);
    sleep(Duration::from_secs(1)).await;
    pod(&server, "p2");
    let found = objects.pod(&publish("p2")).await.unwrap();
    assert_eq!(found.metadata.uid.as_deref(), Some("p2"));
    let error = objects.pod(&publish("p0")).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    assert_eq!(error.to_string(), "pod ns/pod does not exist");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_the_provisioner_does_not_name_has_a_fix() {
    let server = server();
    let objects = Objects::new(server.client());
    let error = objects.claim(&ClaimNames::default()).await.unwrap_err();
    let due = "parameters[csi.storage.k8s.io/pvc/namespace] is missing: run external-provisioner with \
               --extra-create-metadata";
    assert_eq!(error.to_string(), due);
}
