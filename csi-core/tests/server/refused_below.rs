//! Requests that are refused before they reach the call path: their codes, and where they are counted.

use std::sync::Arc;

use csi_proto::v1;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::Code;

use crate::common::*;
use crate::driver::{TestDriver, plugin};
use crate::raw::*;

const UNPUBLISH: &str = "/csi.v1.Node/NodeUnpublishVolume";

async fn metrics(address: std::net::SocketAddr) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("somebody listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

fn counted(metrics: &str, method: &str, code: &str) -> u64 {
    let name = format!("grpc_status_code=\"{code}\",method_name=\"/csi.v1.{method}\"}} ");
    let line = metrics.lines().find(|line| line.contains("_count{") && line.contains(&name));
    line.map_or(0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
}

#[tokio::test]
async fn what_is_refused_below_the_path_of_calls_has_the_right_code_and_is_counted() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let served = Served::start(plugin(&Arc::default()).http(address)).await;

    // The provisioner and the resizer read OUT_OF_RANGE as a problem with the volume's size.
    let mut request = create("v");
    request.parameters.insert("x".into(), "y".repeat(5 << 20));
    let status = refused(served.call(request).await, Code::ResourceExhausted);
    assert!(status.message().contains("too large"), "{status}");

    let call = |message: &'static [u8]| {
        let path = served.endpoint.path().to_owned();
        async move {
            let mut raw = Raw::open(&path).await;
            let mut block = head(UNPUBLISH);
            tail(&mut block);
            raw.call(&block, Travel::Whole, message).await.unwrap_err()
        }
    };
    let why = call(&[0xff; 8]).await;
    assert!(why.starts_with(&format!("status {}: ", Code::InvalidArgument as i32)), "{why}");

    let metrics = metrics(address).await;
    assert_eq!(counted(&metrics, "Controller/CreateVolume", "ResourceExhausted"), 1, "{metrics}");
    assert_eq!(counted(&metrics, "Node/NodeUnpublishVolume", "InvalidArgument"), 1, "{metrics}");
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
    let served = Served::start(plugin(&driver)).await;
    let mut raw = Raw::open(served.endpoint.path()).await;
    let mut block = head("/csi.v1.Node/NodeStageVolume");
    plain(&mut block, "grpc-timeout", "500m");
    tail(&mut block);
    let message = prost::Message::encode_to_vec(&stage("v"));
    let why = raw.call(&block, Travel::Whole, &message).await.unwrap_err();
    assert!(why.starts_with(&format!("status {}: ", Code::DeadlineExceeded as i32)), "{why}");
    driver.release(1);
    let done = || driver.done.load(std::sync::atomic::Ordering::SeqCst) == 1;
    eventually("it goes on", done).await;
}
