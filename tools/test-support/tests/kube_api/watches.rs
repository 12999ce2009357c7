//! What watches send, and when.

use std::pin::Pin;
use std::time::Duration;

use kube::Client;
use kube::core::WatchEvent;
use serde_json::{Value, json};
use test_support::kube_api::{ApiServer, LinkState};
use tokio::time::{Instant, timeout};
use tokio_stream::{Stream, StreamExt as _};

use crate::{NODES, named};

pub(crate) type Events = Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<Value>>>>>;

pub(crate) async fn watch(client: &Client, query: &str) -> Events {
    let request = http::Request::get(format!("{NODES}?watch=true&{query}")).body(Vec::new()).unwrap();
    Box::pin(client.request_events::<Value>(request).await.unwrap())
}

/// The next event within an hour: its kind and the name of its object, version or code.
pub(crate) async fn next(events: &mut Events) -> String {
    let Ok(event) = timeout(Duration::from_secs(3600), events.next()).await else { return "none".to_owned() };
    let name = |object: Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    match event {
        Some(Ok(WatchEvent::Added(object))) => format!("added {}", name(object)),
        Some(Ok(WatchEvent::Modified(object))) => format!("modified {}", name(object)),
        Some(Ok(WatchEvent::Deleted(object))) => format!("deleted {}", name(object)),
        Some(Ok(WatchEvent::Bookmark(bookmark))) => {
            format!("bookmark {}", bookmark.metadata.resource_version)
        }
        Some(Ok(WatchEvent::Error(status))) => format!("error {}", status.code),
        Some(Err(error)) => panic!("{error}"),
        None => "end".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_sends_the_changes_after_its_version() {
    let server = ApiServer::new();
    let client = server.client();
    let first = server.create("nodes", named("a"));
    server.create("nodes", named("b"));
    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    let mut events = watch(&client, &format!("resourceVersion={version}&timeoutSeconds=90")).await;
    assert_eq!(next(&mut events).await, "added b");
    server.edit("nodes/a", |node| node["spec"]["x"] = json!(1));
    assert_eq!(next(&mut events).await, "modified a");
    server.begin_deletion("nodes/a");
    assert_eq!(next(&mut events).await, "deleted a");
    server.edit("nodes/b", |_| {});
    let started = Instant::now();
    assert_eq!(next(&mut events).await, "end", "an edit that changes nothing is no event");
    assert!(started.elapsed() > Duration::from_secs(80));
    let mut events = watch(&client, "allowWatchBookmarks=true").await;
    assert_eq!(next(&mut events).await, "added b");
    assert_eq!(next(&mut events).await, "bookmark 4");
}

#[tokio::test(start_paused = true)]
async fn an_object_enters_and_leaves_a_selection() {
    let server = ApiServer::new();
    server.create("nodes", named("a"));
    let mut events = watch(&server.client(), "labelSelector=x%3D1").await;
    for (label, due) in [("1", "added a"), ("2", "deleted a"), ("1", "added a")] {
        server.edit("nodes/a", |node| node["metadata"]["labels"]["x"] = json!(label));
        assert_eq!(next(&mut events).await, due);
    }
}

#[tokio::test(start_paused = true)]
async fn an_old_watch_is_expired() {
    let server = ApiServer::new();
    let client = server.client();
    server.create("nodes", named("a"));
    let mut events = watch(&client, "resourceVersion=1").await;
    server.expire_watches();
    assert_eq!(next(&mut events).await, "error 410");
    assert_eq!(next(&mut events).await, "end");
    server.hold_watch("nodes");
    let mut events = watch(&client, "resourceVersion=2").await;
    for round in 0..10_001 {
        server.edit("nodes/a", |node| node["spec"]["round"] = json!(round));
    }
    assert_eq!(next(&mut events).await, "error 410", "the changes that are kept are bounded");
}

#[tokio::test(start_paused = true)]
async fn a_cache_is_stale_while_its_watch_is_delayed_or_held() {
    let server = ApiServer::new();
    let client = server.client();
    server.create("nodes", named("a"));
    let mut events = watch(&client, "resourceVersion=1").await;
    server.delay_watch("nodes", Duration::from_secs(5));
    let started = Instant::now();
    server.edit("nodes/a", |node| node["spec"]["x"] = json!(1));
    assert_eq!(next(&mut events).await, "modified a");
    assert!((5..6).contains(&started.elapsed().as_secs()));
    server.hold_watch("nodes");
    server.edit("nodes/a", |node| node["spec"]["x"] = json!(2));
    server.put("pods/ns/other", named("other"));
    assert!(timeout(Duration::from_secs(3000), events.next()).await.is_err());
    server.release_watch("nodes");
    assert_eq!(next(&mut events).await, "modified a");
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_through_the_link() {
    let server = ApiServer::new();
    let (client, link) = server.linked_client();
    let mut events = watch(&client, "").await;
    link.set(LinkState::Held);
    server.create("nodes", named("a"));
    assert!(timeout(Duration::from_secs(3000), events.next()).await.is_err());
    link.set(LinkState::Delay(Duration::ZERO));
    assert_eq!(next(&mut events).await, "added a");
    link.set(LinkState::Cut);
    assert_eq!(next(&mut events).await, "end");
}
