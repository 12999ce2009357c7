//! The topology and the volume limit of a node, from its labels.

use std::time::Duration;

use test_support::kube_api::{ApiServer, Fault};

use crate::rows;
use csi_core::types::Topology;
use csi_kube::{Error, NodeFacts, NodeLabels, Result, rules};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

const DRIVER: &str = "block.csi.example.org";

fn node(labels: Value) -> Value {
    json!({ "metadata": { "name": "worker-1", "labels": labels }, "spec": { "providerID": "cloud:///i-1" } })
}

fn server(labels: Value) -> ApiServer {
    let server = ApiServer::new();
    server.allow(&rows(rules::NODE_LABELS));
    server.put("nodes/worker-1", node(labels));
    server
}

async fn read(server: &ApiServer, labels: NodeLabels) -> Result<NodeFacts> {
    labels.read(&server.client(), "worker-1").await
}

#[tokio::test(start_paused = true)]
async fn labels_become_the_drivers_own_topology() {
    let server = server(json!({
        "topology.kubernetes.io/region": "north", "topology.kubernetes.io/zone": "north-a", "rack": "",
    }));
    let labels = NodeLabels::new(DRIVER).region().zone().optional_segment("rack", "rack");
    let facts = read(&server, labels).await.unwrap();
    let due =
        Topology::new("block.csi.example.org/region", "north").and("block.csi.example.org/zone", "north-a");
    assert_eq!((facts.topology.as_ref(), facts.max_volumes), (Some(&due), None));
    assert_eq!(facts.provider_id.as_deref(), Some("cloud:///i-1"));
    let info = facts.node_info().unwrap();
    assert_eq!((info.node_id.as_str(), info.accessible_topology), ("worker-1", Some(due)));
    server.assert_rules_used(&rows(rules::NODE_LABELS));

    let facts = read(&server, NodeLabels::new(DRIVER)).await.unwrap();
    assert_eq!(facts.topology, None);
}

#[tokio::test(start_paused = true)]
async fn an_absent_node_or_label_is_an_error_that_names_it() {
    let server = server(json!({ "topology.kubernetes.io/zone": "" }));
    let error = read(&server, NodeLabels::new(DRIVER).zone()).await.unwrap_err();
    let text = "node worker-1: label topology.kubernetes.io/zone is missing";
    assert!(error.to_string().starts_with(text), "{error}");
    assert!(matches!(csi_core::Error::from(error), csi_core::Error::Internal(_)));
    let error = NodeLabels::new(DRIVER).read(&server.client(), "worker-2").await.unwrap_err();
    assert_eq!(error.to_string(), "node worker-2 does not exist");
}

#[tokio::test(start_paused = true)]
async fn a_label_that_comes_later_is_waited_for() {
    let server = server(json!({}));
    let other = server.clone();
    tokio::spawn(async move {
        sleep(Duration::from_secs(20)).await;
        other.put("nodes/worker-1", node(json!({ "topology.kubernetes.io/zone": "a" })));
    });
    let start = Instant::now();
    let labels = NodeLabels::new(DRIVER).zone();
    let facts = read(&server, labels.clone().wait(Duration::MAX)).await.unwrap();
    assert_eq!(facts.topology, Some(Topology::new("block.csi.example.org/zone", "a")));
    assert!(start.elapsed() < Duration::from_secs(31), "{:?}", start.elapsed());

    server.put("nodes/worker-1", node(json!({})));
    let start = Instant::now();
    read(&server, labels.wait(Duration::from_secs(60))).await.unwrap_err();
    assert!((60..76).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn limits_come_from_a_label_or_the_instance_type() {
    let server = server(json!({ "node.kubernetes.io/instance-type": "m5.large", "max": "39", "none": "0" }));
    let read = async |labels: NodeLabels| read(&server, labels).await.map(|facts| facts.max_volumes);
    let labels = || NodeLabels::new(DRIVER);
    assert_eq!(read(labels().limit_label("max")).await.unwrap(), Some(39));
    assert_eq!(read(labels().limit_label("absent")).await.unwrap(), None);
    let error = read(labels().limit_label("none")).await.unwrap_err().to_string();
    assert_eq!(error, "node worker-1: label none is \"0\", not a number of volumes above 0");
    let rows = [("m5.large", 25), ("m5.", 27), ("", 20)];
    assert_eq!(read(labels().limits_by_instance_type(rows)).await.unwrap(), Some(25));
    assert_eq!(read(labels().limits_by_instance_type([("m6.", 1)])).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn failures_of_the_api_server_are_told_apart() {
    let server = server(json!({}));
    let labels = NodeLabels::new(DRIVER);
    let wait = |limit| labels.clone().wait(Duration::from_secs(limit));
    for fault in [Fault::NoAnswer, Fault::Status(500), Fault::TooMany(1), Fault::Reset] {
        server.fail("get", fault);
        let error = read(&server, labels.clone()).await.unwrap_err();
        assert!(error.is_transient(), "{fault:?}: {error}");
        assert!(matches!(csi_core::Error::from(error), csi_core::Error::Unavailable(_)), "{fault:?}");
        server.fail("get", fault);
        read(&server, wait(60)).await.unwrap();
    }
    // The API server says when to ask again.
    server.fail("get", Fault::TooMany(40));
    let start = Instant::now();
    read(&server, wait(120)).await.unwrap();
    assert!((40..42).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    // Waiting does not help against a missing rule.
    server.allow(&[]);
    let error = read(&server, wait(60)).await.unwrap_err();
    assert!(matches!(error, Error::Api { .. }) && !error.is_transient());
    let text =
        "read node worker-1: the API server answered 403: nodes is forbidden: cannot get (csi_kube::rules";
    assert!(error.to_string().starts_with(text), "{error}");
}
