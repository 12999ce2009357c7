//! The client: it waits until a plugin is ready, calls it with a deadline, and reconnects after a
//! lost connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use csi_core::client::Client;
use csi_core::identity::Readiness;
use csi_core::{Endpoint, Error};
use csi_proto::v1;
use tonic::Code;

use crate::common::*;
use crate::driver::{TestDriver, plugin};

// spec: probe.starting, probe.ready
#[tokio::test]
async fn waits_for_a_plugin_that_is_not_there_yet() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint: Endpoint = format!("{}/a socket", directory.path().display()).parse().unwrap();
    let client = Client::new(&endpoint);
    let error = client.ready(Duration::from_millis(200)).await.unwrap_err().to_string();
    assert_eq!(error.matches("No such file").count(), 1, "a cause is named once: {error}");
    assert!(error.contains("a socket"), "{error}");

    let driver = Arc::new(TestDriver::default());
    let probes = AtomicU32::new(0);
    driver.probe.answers(move |()| match probes.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => Ok(Readiness::Starting),
        _ => Ok(Readiness::Ready),
    });
    let plugin = plugin(&driver);
    let serving = tokio::spawn(async move { plugin.serve_until(&endpoint, std::future::pending()).await });
    client.ready(PATIENCE).await.expect("in time");
    assert_eq!(driver.probe.calls(), 3);
    let info = client.call(v1::NodeGetInfoRequest {}).await.unwrap();
    assert_eq!(info.node_id, "node-1");
    serving.abort();
}

#[tokio::test]
async fn a_time_limit_can_have_no_end() {
    let served = Served::start(plugin(&Arc::new(TestDriver::default()))).await;
    let client = Client::new(&served.endpoint).deadline(Duration::MAX);
    client.ready(Duration::MAX).await.unwrap();
    client.call(v1::NodeGetInfoRequest {}).await.unwrap();
}

// spec: probe.unhealthy
#[tokio::test]
async fn does_not_wait_for_a_plugin_that_failed() {
    let driver = Arc::new(TestDriver::default());
    driver.probe.answers(|()| Err(Error::Unhealthy("no array".into())));
    let served = Served::start(plugin(&driver)).await;
    let error = Client::new(&served.endpoint).ready(Duration::from_secs(60)).await.unwrap_err();
    assert!(error.to_string().contains("no array"), "{error}");
}

#[tokio::test]
async fn a_deadline_ends_the_wait_and_not_the_work() {
    let driver = Arc::new(TestDriver::gated());
    let served = Served::start(plugin(&driver)).await;
    let client = Client::new(&served.endpoint);
    let hurried = client.clone().deadline(Duration::from_millis(50));
    let status = hurried.call(stage("v")).await.unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
    // The request's own deadline has priority over the client's.
    let mut patient = tonic::Request::new(stage("v"));
    patient.set_timeout(Duration::from_secs(60));
    let retry = tokio::spawn(async move { hurried.call::<v1::NodeStageVolumeRequest>(patient).await });
    // This is longer than the client's deadline, which does not apply to this request.
    tokio::time::sleep(Duration::from_millis(100)).await;
    driver.release(2);
    retry.await.unwrap().expect("it waited");
}
