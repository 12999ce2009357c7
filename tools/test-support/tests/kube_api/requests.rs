//! Faults, crashes and the record of requests.

use std::time::Duration;

use serde_json::{Value, json};
use test_support::kube_api::{ApiServer, Fault, LinkState};
use tokio::time::timeout;
use tokio_stream::StreamExt as _;

use crate::watches::{next, watch};
use crate::{ATTACHMENTS, NODES, named, send};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn a_fault_is_for_one_request() {
    let server = ApiServer::new();
    let client = server.client();
    server.fail("create volumeattachments", Fault::Status(500));
    send(&client, "POST", NODES, named("a")).await.unwrap();
    assert_eq!(send(&client, "POST", ATTACHMENTS, named("a")).await, Err(500));
    assert_eq!(send(&client, "POST", ATTACHMENTS, named("a")).await, Err(422), "the fault is over");
    server.fail("create", Fault::AnswerLost);
    assert!(timeout(HOUR, send(&client, "POST", NODES, named("b"))).await.is_err());
    assert!(server.get("nodes/b").is_some());
    server.fail("create", Fault::NoAnswer);
    assert!(timeout(HOUR, send(&client, "POST", NODES, named("c"))).await.is_err());
    assert!(server.get("nodes/c").is_none());
    server.fail("patch nodes/status", Fault::Status(503));
    send(&client, "PATCH", &format!("{NODES}/a"), json!({ "spec": { "x": 1 } })).await.unwrap();
    assert_eq!(send(&client, "PATCH", &format!("{NODES}/a/status"), json!({})).await, Err(503));
    server.before("get nodes", |server| server.delete("nodes/a"));
    assert_eq!(send(&client, "GET", &format!("{NODES}/a"), Value::Null).await, Err(404));
}

#[tokio::test(start_paused = true)]
async fn a_client_crashes_between_two_writes() {
    for due in [2, 1] {
        let server = ApiServer::new();
        let (client, link) = server.linked_client();
        match due {
            2 => link.cut_after(2),
            _ => link.cut_before(2),
        }
        send(&client, "POST", NODES, named("a")).await.unwrap();
        send(&client, "GET", &format!("{NODES}/a"), Value::Null).await.unwrap();
        let mut events = watch(&client, "timeoutSeconds=86400").await;
        assert_eq!(next(&mut events).await, "added a");
        tokio::select! {
            answer = send(&client, "POST", NODES, named("b")) => panic!("{answer:?}"),
            () = link.crashed() => {}
        }
        assert!(timeout(HOUR, send(&client, "POST", NODES, named("c"))).await.is_err());
        assert!(timeout(HOUR, send(&client, "GET", NODES, Value::Null)).await.is_err());
        assert_eq!(server.objects("nodes/").len(), due);
        assert!(timeout(HOUR, events.next()).await.is_err(), "it sees nothing of what it did last");
        link.set(LinkState::Delay(Duration::ZERO));
        assert!(timeout(HOUR, send(&client, "GET", NODES, Value::Null)).await.is_err(), "it stays dead");
        send(&server.client(), "GET", NODES, Value::Null).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn requests_are_recorded_and_need_rules() {
    let server = ApiServer::new();
    let (client, _link) = server.linked_client_as("attacher");
    server.create("nodes", named("a"));
    let mark = server.mark();
    let status = format!("{NODES}/a/status");
    send(&client, "PATCH", &status, json!({ "status": { "x": 1 } })).await.unwrap();
    send(&client, "GET", &format!("{NODES}/a"), Value::Null).await.unwrap();
    let calls = server.requests_since(mark);
    assert_eq!(
        calls.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["patch nodes/a/status", "get nodes/a"]
    );
    assert_eq!(calls[0].body, json!({ "status": { "x": 1 } }));
    assert_eq!(calls[0].user_agent, "attacher");
    assert_eq!(server.counts_since(mark)["patch nodes/status"], 1);
    server.allow(&[("", "nodes", &["get", "patch"])]);
    assert_eq!(send(&client, "PATCH", &status, json!({})).await, Err(403));
    send(&client, "GET", &format!("{NODES}/a"), Value::Null).await.unwrap();
    server.assert_rules_used(&[("", "nodes", &["get"]), ("", "nodes/status", &["patch"])]);
    let unused = std::panic::catch_unwind(|| server.assert_rules_used(&[("", "nodes", &["patch"])]));
    assert!(unused.is_err());
}
