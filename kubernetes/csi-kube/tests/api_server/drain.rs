//! The driver's pod waits for detached volumes if the node is being drained.

use std::time::Duration;

use test_support::kube_api::{ApiServer, Fault};

use crate::rows;
use csi_kube::{Drain, Drained, rules};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

const DRIVER: &str = "block.csi.example.org";

fn attachment(name: &str, driver: &str, node: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": { "attacher": driver, "nodeName": node, "source": { "persistentVolumeName": format!("pv-{name}") } },
    })
}

fn server(node: Value) -> ApiServer {
    let server = ApiServer::new();
    server.allow(&rows(rules::DRAIN));
    server.put("nodes/worker-1", json!({ "metadata": { "name": "worker-1" }, "spec": node }));
    for (name, driver, node) in [
        ("a", DRIVER, "worker-1"),
        ("b", DRIVER, "worker-1"),
        ("c", DRIVER, "worker-2"),
        ("d", "disk.csi.example.org", "worker-1"),
    ] {
        server.put(&format!("volumeattachments/{name}"), attachment(name, driver, node));
    }
    server
}

fn cordoned() -> ApiServer {
    server(json!({ "unschedulable": true }))
}

async fn run(server: &ApiServer, drain: Drain) -> (csi_kube::Result<Drained>, Vec<usize>) {
    let mut seen = Vec::new();
    let ended = drain.run(&server.client(), |left| seen.push(left.len())).await;
    (ended, seen)
}

fn drain() -> Drain {
    Drain::new(DRIVER, "worker-1").limit(Duration::from_secs(60))
}

/// Detaches a volume after this time.
fn detach(server: &ApiServer, name: &'static str, seconds: u64) {
    let server = server.clone();
    tokio::spawn(async move {
        sleep(Duration::from_secs(seconds)).await;
        server.delete(&format!("volumeattachments/{name}"));
    });
}

#[tokio::test(start_paused = true)]
async fn it_waits_until_the_own_volumes_are_detached() {
    let server = cordoned();
    detach(&server, "c", 5);
    detach(&server, "a", 10);
    detach(&server, "b", 20);
    let start = Instant::now();
    let (ended, seen) = run(&server, drain()).await;
    assert_eq!((ended.unwrap(), seen), (Drained::Detached, vec![2, 1, 0]));
    assert_eq!(start.elapsed().as_secs(), 20);
    server.assert_rules_used(&rows(rules::DRAIN));
}

#[tokio::test(start_paused = true)]
async fn its_time_is_bounded_and_it_names_what_is_left() {
    let server = cordoned();
    detach(&server, "a", 10);
    let start = Instant::now();
    let (ended, _) = run(&server, drain()).await;
    assert_eq!(ended.unwrap(), Drained::Left(vec!["b (pv-b)".to_owned()]));
    assert_eq!(start.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn an_update_of_the_driver_does_not_wait() {
    let server = server(json!({ "taints": [{ "key": "dedicated", "effect": "NoSchedule" }] }));
    let start = Instant::now();
    assert_eq!(run(&server, drain()).await.0.unwrap(), Drained::NotNeeded);
    assert!(start.elapsed().as_secs() < 1);
    let (ended, _) = run(&server, drain().unconditional()).await;
    assert!(matches!(ended.unwrap(), Drained::Left(_)));
}

#[tokio::test(start_paused = true)]
async fn signs_of_a_drain() {
    let taint = |key: &str| json!({ "taints": [{ "key": key, "effect": "NoSchedule" }] });
    for spec in [
        taint("node.kubernetes.io/unschedulable"),
        taint("ToBeDeletedByClusterAutoscaler"),
        taint("karpenter.sh/disrupted"),
        taint("node.kubernetes.io/out-of-service"),
    ] {
        let (ended, _) = run(&server(spec.clone()), drain()).await;
        assert!(matches!(ended.unwrap(), Drained::Left(_)), "{spec}");
    }
    let server = cordoned();
    server.delete("nodes/worker-1");
    assert!(matches!(run(&server, drain()).await.0.unwrap(), Drained::Left(_)));
}

/// A list that is too old, lost connections, an API server that has too much to do.
#[tokio::test(start_paused = true)]
async fn it_survives_faults() {
    let server = cordoned();
    for fault in [Fault::TooMany(1), Fault::Status(500), Fault::Reset] {
        server.fail("list", fault);
        server.fail("watch", fault);
    }
    server.fail("watch", Fault::Status(410));
    for fault in [Fault::TooMany(1), Fault::Status(503), Fault::Reset, Fault::NoAnswer] {
        server.fail("get", fault);
    }
    let other = server.clone();
    tokio::spawn(async move {
        sleep(Duration::from_secs(30)).await;
        other.expire_watches();
        // While nobody watches.
        other.delete("volumeattachments/a");
        other.delete("volumeattachments/b");
    });
    let (ended, _) = run(&server, drain().limit(Duration::MAX)).await;
    assert_eq!(ended.unwrap(), Drained::Detached);
}

#[tokio::test(start_paused = true)]
async fn unknown_is_an_error_and_not_detached() {
    let server = cordoned();
    server.allow(&rows(rules::NODE_LABELS));
    let (ended, seen) = run(&server, drain()).await;
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("403: volumeattachments is forbidden"), "{error}");
    assert_eq!(seen, [0; 0]);
    server.allow(&rows(rules::DRAIN));
    (0..20).for_each(|_| server.fail("list", Fault::NoAnswer));
    let (ended, _) = run(&server, drain()).await;
    assert!(ended.unwrap_err().is_transient());
}
