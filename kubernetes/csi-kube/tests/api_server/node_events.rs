//! The node's events say what the driver's log alone would say.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use csi_core::node::{
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    StageUnstageVolume,
};
use csi_core::proto::client::Client as Caller;
use csi_core::proto::v1;
use csi_core::{Error, Node, NodeInfo, NodeService, Plugin, Result, async_trait};
use csi_kube::{NodeEvents, rules};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use test_support::kube_api::ApiServer;

use crate::rows;

const UID: &str = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";

struct Busy;

#[async_trait]
impl Node for Busy {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("worker-1")
    }
    async fn publish_volume(&self, _: NodePublishVolumeRequest) -> Result<()> {
        Ok(())
    }
    async fn unpublish_volume(&self, _: NodeUnpublishVolumeRequest) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl StageUnstageVolume for Busy {
    async fn stage_volume(&self, _: NodeStageVolumeRequest) -> Result<()> {
        Ok(())
    }
    async fn unstage_volume(&self, request: NodeUnstageVolumeRequest) -> Result<()> {
        match request.volume_id.as_str() {
            "copied" => Err(Error::InUse(format!("mounted by process 7, pod {UID} – ünd").into())),
            "hidden" => Err(Error::InUse("mounted in a namespace that is not visible".into())),
            _ => Err(Error::Unavailable("soon".into())),
        }
    }
}

fn plugin(server: &ApiServer) -> Plugin {
    let node = NodeService::new(Arc::new(Busy)).stage_unstage_volume();
    let plugin = Plugin::new("block.csi.example.org", "1").node(node);
    NodeEvents::new(server.client(), "block.csi.example.org", "worker-1").watch(plugin)
}

fn server() -> ApiServer {
    let server = ApiServer::new();
    server.allow(&rows(rules::NODE_EVENTS));
    for (name, uid, node) in
        [("backup", UID, "worker-1"), ("other", "b", "worker-1"), ("far", UID, "worker-2")]
    {
        let metadata = json!({ "name": name, "namespace": "ns", "uid": uid });
        server.put(&format!("pods/ns/{name}"), json!({ "metadata": metadata, "spec": { "nodeName": node } }));
    }
    server
}

/// Waits for this many events, and returns their reasons and texts.
async fn events(server: &ApiServer, count: usize) -> Vec<(String, String)> {
    let found = async {
        loop {
            let found: Vec<Value> = server.objects("events/default/");
            if found.len() >= count {
                return found;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    let found = timeout(Duration::from_secs(60), found).await.expect("the events");
    let text = |event: &Value, field: &str| event[field].as_str().unwrap().to_owned();
    for event in &found {
        let regarding = &event["regarding"];
        assert_eq!((&regarding["kind"], &regarding["name"]), (&json!("Node"), &json!("worker-1")));
        assert_eq!((&regarding["uid"], &event["type"]), (&json!("worker-1"), &json!("Warning")));
    }
    found.iter().map(|event| (text(event, "reason"), text(event, "note"))).collect()
}

async fn unstage(socket: &Path, id: &str) -> tonic::Status {
    let endpoint = format!("unix://{}", socket.display()).parse().unwrap();
    let caller = Caller::new(&endpoint);
    let staging_target_path = "/var/lib/kubelet/plugins/kubernetes.io/csi/block/x/globalmount".into();
    let request = v1::NodeUnstageVolumeRequest { volume_id: id.into(), staging_target_path };
    caller.call(request).await.unwrap_err()
}

#[tokio::test]
async fn a_volume_that_stays_in_use_is_an_event_that_names_the_pod() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let socket: PathBuf = folder.path().join("csi.sock");
    let (stop, stopped) = oneshot::channel::<()>();
    let endpoint = format!("unix://{}", socket.display()).parse().unwrap();
    let plugin = plugin(&server);
    let serving =
        tokio::spawn(async move { plugin.serve_until(&endpoint, async { _ = stopped.await }).await });
    while !socket.exists() {
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(unstage(&socket, "later").await.code(), tonic::Code::Unavailable);
    assert_eq!(unstage(&socket, "copied").await.code(), tonic::Code::FailedPrecondition);
    let [(reason, note)] = &events(&server, 1).await[..] else { panic!("one event") };
    assert_eq!(reason, "CSIVolumeInUse");
    assert!(note.contains(": ns/backup: ") && note.contains(&format!("pod {UID} – ünd")), "{note}");
    assert!(!note.contains("ns/other") && !note.contains("ns/far"), "{note}");
    unstage(&socket, "hidden").await;
    let notes = events(&server, 2).await;
    assert!(notes.iter().any(|(_, note)| note.contains("not visible") && !note.contains("ns/")), "{notes:?}");
    unstage(&socket, "copied").await;
    while !server.verbs("events").contains(&"patch".to_owned()) {
        sleep(Duration::from_millis(10)).await;
    }
    server.assert_rules_used(&rows(rules::NODE_EVENTS));
    drop(stop);
    serving.await.unwrap().unwrap();
    assert_eq!(events(&server, 2).await.len(), 2, "an end without an error is no event");
}

#[tokio::test]
async fn a_driver_that_cannot_start_is_an_event() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("unix://{}", folder.path().join("missing/csi.sock").display()).parse().unwrap();
    let error = plugin(&server).serve_until(&endpoint, std::future::pending()).await.unwrap_err();
    assert_eq!(events(&server, 1).await, [("CSIDriverFailed".to_owned(), error.to_string())]);
    // Without the rights the driver ends all the same.
    server.allow(&[]);
    plugin(&server).serve_until(&endpoint, std::future::pending()).await.unwrap_err();
}
