//! The client: it waits until a plugin is ready, calls it with a deadline, and reconnects after a
//! lost connection.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::*;
use csi_core::client::Client;
use csi_core::{Endpoint, Error, Identity, Readiness, async_trait};
use csi_proto::v1;
use tonic::Code;

/// Ready from the third probe on, or never healthy.
#[derive(Clone, Default)]
struct Slow {
    probes: Arc<AtomicU32>,
    ill: bool,
}

#[async_trait]
impl Identity for Slow {
    async fn probe(&self) -> csi_core::Result<Readiness> {
        if self.ill {
            return Err(Error::Unhealthy("no array".into()));
        }
        match self.probes.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => Ok(Readiness::Starting),
            _ => Ok(Readiness::Ready),
        }
    }
}

// spec: probe.starting, probe.ready
#[tokio::test]
async fn waits_for_a_plugin_that_is_not_there_yet() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint: Endpoint = format!("{}/a socket", directory.path().display()).parse().unwrap();
    let client = Client::new(&endpoint);
    let error = client.ready(Duration::from_millis(200)).await.unwrap_err().to_string();
    assert!(error.contains("a socket"), "{error}");

    let slow = Arc::new(Slow::default());
    let plugin = plugin(Default::default()).identity(slow.clone());
    let serving = tokio::spawn(async move { plugin.serve_until(&endpoint, std::future::pending()).await });
    client.ready(Duration::from_secs(10)).await.expect("in time");
    assert_eq!(slow.probes.load(Ordering::SeqCst), 3);
    let info = client.node().node_get_info(v1::NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.node_id, "node-1");
    serving.abort();
}

// spec: probe.unhealthy
#[tokio::test]
async fn does_not_wait_for_a_plugin_that_failed() {
    let ill = Arc::new(Slow { ill: true, ..Slow::default() });
    let served = Served::start(plugin(Default::default()).identity(ill)).await;
    let error = Client::new(&served.endpoint).ready(Duration::from_secs(60)).await.unwrap_err();
    assert!(error.to_string().contains("no array"), "{error}");
}

#[tokio::test]
async fn a_deadline_ends_the_wait_and_not_the_work() {
    let memory = Memory::gated();
    let served = Served::start(plugin(memory.clone())).await;
    let client = Client::new(&served.endpoint);
    let hurried = client.clone().deadline(Duration::from_millis(50));
    let status = hurried.node().node_stage_volume(stage("v")).await.unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
    // The request's own deadline has priority over the client's.
    let mut patient = tonic::Request::new(stage("v"));
    patient.set_timeout(Duration::from_secs(60));
    let retry = tokio::spawn(async move { hurried.node().node_stage_volume(patient).await });
    // This is longer than the client's deadline, which does not apply to this request.
    tokio::time::sleep(Duration::from_millis(100)).await;
    memory.gate.as_ref().unwrap().add_permits(2);
    retry.await.unwrap().expect("it waited");
}
