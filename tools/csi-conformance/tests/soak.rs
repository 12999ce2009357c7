//! The soak test: its calls, its report, and that it leaves nothing behind. No volume is put on a node, so
//! the test needs no root.
#![cfg(target_os = "linux")]

#[path = "support/memory/mod.rs"]
mod memory;
#[allow(dead_code, reason = "not every test needs each")]
#[path = "support/proxy.rs"]
mod proxy;
mod support;

use std::sync::Arc;
use std::time::Duration;

use csi_conformance::{Kit, Soak, SoakReport};
use csi_core::Rpc;
use proxy::Fault;
use support::*;
use tonic::Status;

async fn soaked(fault: Fault) -> SoakReport {
    let places = Places::new();
    let endpoint = places.endpoint("csi.sock");
    let behind = places.endpoint("behind.sock");
    let kit = Kit::new(endpoint.clone()).size(1 << 20).deadline(Duration::from_secs(30));
    let kit = kit.mutable_parameters([("iops", "100")].into_iter().collect());
    let soak = Soak::new(Duration::from_secs(3)).clients(3);
    let run = kit.soak(soak, std::future::pending());
    let plugin = memory::Memory::directories(places.of("volumes")).plugin();
    with_plugin(plugin, &behind, proxy::with_fault(fault, &endpoint, &behind, run)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_does_all_right_is_all_well() {
    let report =
        soaked(Arc::new(|rpc, bytes, behind| Box::pin(async move { behind.call(rpc, bytes).await }))).await;
    let text = report.to_string();
    assert!(report.is_ok(), "{text}");
    for rpc in
        ["CreateVolume", "DeleteVolume", "CreateSnapshot", "ControllerModifyVolume", "GetVolumeGroupSnapshot"]
    {
        assert!(text.contains(rpc), "{rpc}: {text}");
    }
    assert!(text.contains("passed: "), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_and_what_is_left_is_told_and_ends_it() {
    let report = soaked(Arc::new(|rpc, bytes, behind| {
        Box::pin(async move {
            match rpc {
                Rpc::DeleteVolume => Err(Status::internal("it stays\x1b[2J")),
                _ => behind.call(rpc, bytes).await,
            }
        })
    }))
    .await;
    let text = report.to_string();
    assert!(!report.is_ok(), "{text}");
    assert!(
        text.contains("FAILED  DeleteVolume: Internal")
            && text.contains("not undone: the object that CreateVolume created"),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "{text:?}");
}
