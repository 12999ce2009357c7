//! The soak test: its calls, its report, and that it leaves nothing behind. No volume is put on a node, so
//! the test needs no root.

use std::time::Duration;

use csi_conformance::{Kit, Soak, SoakReport};
use csi_core::Rpc;
use tonic::Status;

use crate::memory::Memory;
use crate::proxy::{self, fault};
use crate::support::*;

async fn soaked(places: &Places) -> SoakReport {
    let kit = Kit::new(places.endpoint("csi.sock")).size(1 << 20).deadline(Duration::from_secs(30));
    let kit = kit.mutable_parameters([("iops", "100")].into_iter().collect());
    let soak = Soak::new(Duration::from_secs(3)).clients(3);
    kit.soak(soak, std::future::pending()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_does_all_right_is_all_well() {
    let places = Places::new();
    let plugin = Memory::directories(places.of("volumes")).plugin();
    let report = with_plugin(plugin, &places.endpoint("csi.sock"), soaked(&places)).await;
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
    let stays = fault(|rpc, bytes, behind| async move {
        match rpc {
            Rpc::DeleteVolume => Err(Status::internal("it stays\x1b[2J")),
            _ => behind.call(rpc, bytes).await,
        }
    });
    let places = Places::new();
    let report = proxy::faulty(&places, stays, soaked(&places)).await;
    let text = report.to_string();
    assert!(!report.is_ok(), "{text}");
    assert!(
        text.contains("FAILED  DeleteVolume: Internal")
            && text.contains("not undone: the object that CreateVolume created"),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "{text:?}");
}
