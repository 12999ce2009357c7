//! Requests that are refused before they reach the call path: their codes, and where they are counted.

use std::sync::Arc;

use csi_proto::v1;
use tonic::Code;

use super::http::{ask, served_with_http};
use crate::common::*;
use crate::driver::{TestDriver, plugin};
use crate::raw::*;

const UNPUBLISH: &str = "/csi.v1.Node/NodeUnpublishVolume";

fn counted(metrics: &str, method: &str, code: &str) -> u64 {
    let name = format!("grpc_status_code=\"{code}\",method_name=\"/csi.v1.{method}\"}} ");
    let line = metrics.lines().find(|line| line.contains("_count{") && line.contains(&name));
    line.map_or(0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
}

#[tokio::test]
async fn what_is_refused_below_the_path_of_calls_has_the_right_code_and_is_counted() {
    let (served, address) = served_with_http(plugin(&Arc::default())).await;

    // The provisioner and the resizer read OUT_OF_RANGE as a problem with the volume's size.
    let mut request = create("v");
    request.parameters.insert("x".into(), "y".repeat(5 << 20));
    let status = refused(served.call(request).await, Code::ResourceExhausted);
    assert!(status.message().contains("too large"), "{status}");

    let call = |message: &'static [u8]| {
        let path = served.endpoint.path().to_owned();
        async move {
            let mut raw = Raw::open(&path).await;
            raw.call(&head(UNPUBLISH), message).await.unwrap_err()
        }
    };
    let why = call(&[0xff; 8]).await;
    assert!(why.starts_with(&format!("status {}: ", Code::InvalidArgument as i32)), "{why}");

    let (_, metrics) = ask(address, "GET /metrics").await;
    assert_eq!(counted(&metrics, "Controller/CreateVolume", "ResourceExhausted"), 1, "{metrics}");
    assert_eq!(counted(&metrics, "Node/NodeUnpublishVolume", "InvalidArgument"), 1, "{metrics}");
}

/// A newer sidecar calls what this spec does not have.
// spec: errors.message
#[tokio::test]
async fn a_method_that_no_service_has_is_named() {
    let served = Served::start(plugin(&Arc::default())).await;
    for path in ["/csi.v1.Controller/ControllerFreezeVolume", "/csi.v2.Node/NodeGetInfo"] {
        let mut raw = Raw::open(served.endpoint.path()).await;
        let why = raw.call(&head(path), &[]).await.unwrap_err();
        let due = format!("status {}: this plugin has no method {path}", Code::Unimplemented as i32);
        assert_eq!(why.replace("%20", " "), due);
    }
}

/// A call that reaches the call path keeps its code: only refusals by gRPC's own layer get another code.
#[tokio::test]
async fn what_reaches_the_path_of_calls_keeps_its_code() {
    let driver = Arc::new(TestDriver::default());
    driver.create_volume.answers(|_| panic!("as the test asked"));
    let served = Served::start(plugin(&driver)).await;
    let mut request = create("v");
    request.capacity_range = Some(v1::CapacityRange { required_bytes: 2, limit_bytes: 1 });
    refused(served.call(request).await, Code::OutOfRange);
    // The volume can exist: with a final code the caller would forget it.
    refused(served.call(create("v")).await, Code::Unavailable);
}

/// A caller that sets a deadline and does not enforce it itself still gets its answer in time, and the
/// operation continues.
#[tokio::test]
async fn a_deadline_is_kept_for_the_caller() {
    let driver = Arc::new(TestDriver::gated());
    let (served, address) = served_with_http(plugin(&driver)).await;
    let mut raw = Raw::open(served.endpoint.path()).await;
    let mut block = head("/csi.v1.Node/NodeStageVolume");
    plain(&mut block, "grpc-timeout", "500m");
    let message = prost::Message::encode_to_vec(&stage("v"));
    let why = raw.call(&block, &message).await.unwrap_err();
    assert!(why.starts_with(&format!("status {}: ", Code::DeadlineExceeded as i32)), "{why}");
    let (_, metrics) = ask(address, "GET /metrics").await;
    assert_eq!(counted(&metrics, "Node/NodeStageVolume", "DeadlineExceeded"), 1, "{metrics}");
    driver.release(1);
    let done = || driver.done.load(std::sync::atomic::Ordering::SeqCst) == 1;
    eventually("it goes on", done).await;
}
