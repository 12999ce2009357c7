//! Events are written, counted, summarised and dropped.

use std::time::Duration;

use test_support::kube_api::{ApiServer, Fault};

use crate::rows;
use csi_kube::{Events, Severity, rules};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};
use tokio::time::sleep;

fn claim(name: &str) -> PersistentVolumeClaim {
    let metadata = json!({ "name": name, "namespace": "ns", "uid": format!("uid-{name}") });
    serde_json::from_value(json!({ "metadata": metadata })).unwrap()
}

fn start() -> (ApiServer, Events) {
    let server = ApiServer::new();
    server.allow(&rows(rules::EVENTS));
    let events = Events::new(server.client(), "block.csi.example.org", "controller-0");
    (server, events)
}

/// The events of a namespace: the text, and how often it was counted.
fn written(server: &ApiServer, namespace: &str) -> Vec<(String, u64)> {
    let mut found: Vec<Value> = server.objects(&format!("events/{namespace}/"));
    found.sort_by_key(|event| event["eventTime"].as_str().unwrap().to_owned());
    let row = |event: &Value| {
        (event["note"].as_str().unwrap().to_owned(), event["series"]["count"].as_u64().unwrap_or(1))
    };
    found.iter().map(row).collect()
}

async fn warn(events: &Events, claim: &PersistentVolumeClaim, note: &str) {
    events.publish(claim, Severity::Warning, "PoolFull", note);
    events.flush().await;
}

#[tokio::test(start_paused = true)]
async fn an_event_has_what_the_api_server_requires() {
    let (server, events) = start();
    events.publish(&claim("a"), Severity::Warning, "PoolFull", "ü".repeat(1000));
    let volume: PersistentVolume = serde_json::from_value(json!({ "metadata": { "name": "pv" } })).unwrap();
    events.publish(&volume, Severity::Normal, "Moved", "to another pool");
    events.flush().await;
    let [event] = &server.objects("events/ns/")[..] else { panic!("one event") };
    assert_eq!(event["regarding"]["kind"], "PersistentVolumeClaim");
    assert_eq!(event["regarding"]["uid"], "uid-a");
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["reason"], "PoolFull");
    assert_eq!(event["note"].as_str().unwrap().len(), 1024);
    assert_eq!(event["reportingController"], "block.csi.example.org");
    assert_eq!(event["reportingInstance"], "controller-0");
    assert!(!event["action"].as_str().unwrap().is_empty() && event["eventTime"].is_string());
    // The name of a claim can have as many bytes as that of its event.
    for name in ["a".repeat(253), format!("{}.b", "a".repeat(235))] {
        warn(&events, &claim(&name), "full").await;
    }
    assert_eq!(written(&server, "ns").len(), 3);
    // An object without a namespace.
    assert_eq!(written(&server, "default"), [("to another pool".to_owned(), 1)]);
}

#[tokio::test(start_paused = true)]
async fn the_same_event_is_counted() {
    let (server, events) = start();
    for _ in 0..3 {
        warn(&events, &claim("a"), "full").await;
        warn(&events, &claim("b"), "full").await;
    }
    warn(&events, &claim("a"), "other").await;
    let mut found = written(&server, "ns");
    found.sort();
    assert_eq!(found, [("full", 3), ("full", 3), ("other", 1)].map(|(note, count)| (note.to_owned(), count)));
    server.assert_rules_used(&rows(rules::EVENTS));
    // After a quiet time it is a new event.
    sleep(Duration::from_secs(601)).await;
    warn(&events, &claim("a"), "full").await;
    assert_eq!(written(&server, "ns").len(), 4);
}

#[tokio::test(start_paused = true)]
async fn many_texts_become_one_event() {
    let (server, events) = start();
    for number in 0..15 {
        warn(&events, &claim("a"), &format!("at {number}")).await;
    }
    let found = written(&server, "ns");
    assert_eq!(found.len(), 11);
    assert_eq!(found[10], ("(one of several similar events) at 10".to_owned(), 5));
}

#[tokio::test(start_paused = true)]
async fn one_object_does_not_use_up_the_writes_of_others() {
    let (server, events) = start();
    for _ in 0..100 {
        warn(&events, &claim("a"), "full").await;
    }
    assert_eq!(written(&server, "ns"), [("full".to_owned(), 25)]);
    warn(&events, &claim("b"), "full").await;
    assert_eq!(written(&server, "ns").len(), 2);
    // One more write after five minutes.
    sleep(Duration::from_secs(301)).await;
    warn(&events, &claim("a"), "full").await;
    warn(&events, &claim("a"), "full").await;
    assert_eq!(written(&server, "ns")[0].1, 26);
}

#[tokio::test(start_paused = true)]
async fn faults_delay_nobody_and_are_forgotten() {
    let (server, events) = start();
    for fault in [Fault::Status(500), Fault::Reset, Fault::NoAnswer] {
        server.fail("create", fault);
        warn(&events, &claim("a"), "full").await;
    }
    assert_eq!(written(&server, "ns"), []);
    warn(&events, &claim("a"), "full").await;
    warn(&events, &claim("a"), "full").await;
    assert_eq!(written(&server, "ns"), [("full".to_owned(), 2)]);
    // The API server deletes an event after an hour.
    server.delete_all("events/");
    warn(&events, &claim("a"), "full").await;
    assert_eq!(written(&server, "ns"), [("full".to_owned(), 1)]);
    // The queue is bounded.
    server.fail("patch", Fault::NoAnswer);
    (0..10_000).for_each(|_| events.publish(&claim("a"), Severity::Normal, "X", "y"));
    events.flush().await;
}
