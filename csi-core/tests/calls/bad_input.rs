//! Requests that are wrong in more than one field (fields that contradict each other), or wrong for the
//! volume's state. `every_field.rs` tests each field alone, `needs_capability.rs` tests the fields that
//! need a capability.

use std::sync::Arc;

use csi_core::VolumeCapability;
use csi_proto::{RpcRequest, v1};
use tonic::Code::{self, FailedPrecondition, InvalidArgument, NotFound, OutOfRange};

use crate::common::*;
use crate::driver::{TestDriver, plugin, volume};

/// Sends the valid request, which must succeed, and then this change of it. Checks the code and the start of
/// the message.
async fn check<R: RpcRequest>(served: &Served, valid: R, change: fn(&mut R), code: Code, begins: &str) {
    served.call(valid.clone()).await.expect("it is valid");
    let mut request = valid;
    change(&mut request);
    let status = refused(served.call(request).await, code);
    assert_eq!(status.message().split(':').next(), Some(begins), "{status}");
    assert!(status.details().is_empty());
}

fn range(required_bytes: i64, limit_bytes: i64) -> Option<v1::CapacityRange> {
    Some(v1::CapacityRange { required_bytes, limit_bytes })
}

// spec: fields.invalid-is-invalid-argument, create-volume.all-capabilities
#[tokio::test]
async fn what_contradicts_itself_is_named() {
    let supports = |capability: &VolumeCapability| capability.is_mount();
    let driver = Arc::new(TestDriver { supports, ..TestDriver::default() });
    driver.lookup.answers(|id| Ok((id.as_str() == "v").then(|| volume(&id))));
    let served = Served::start(plugin(&driver)).await;
    let served = &served;
    let validate = v1::ValidateVolumeCapabilitiesRequest {
        volume_id: "v".into(),
        volume_capabilities: vec![mount_capability(1)],
        ..Default::default()
    };
    let second = "volume_capabilities[1]";
    check(served, create("v"), |r| r.volume_capabilities.push(block_capability(1)), InvalidArgument, second)
        .await;
    check(served, create("v"), |r| r.capacity_range = range(0, 0), InvalidArgument, "capacity_range").await;
    check(served, create("v"), |r| r.capacity_range = range(2, 1), OutOfRange, "capacity_range").await;
    check(served, validate, |r| r.volume_id = "gone".into(), NotFound, "volume gone does not exist").await;
    check(served, expand("v", 5), |r| r.capacity_range = range(0, 0), InvalidArgument, "capacity_range")
        .await;
    check(served, expand("v", 5), |r| r.capacity_range = range(2, 1), OutOfRange, "capacity_range").await;
    let unstaged: fn(&mut v1::NodePublishVolumeRequest) = |r| r.staging_target_path.clear();
    check(served, publish("v", "/target"), unstaged, FailedPrecondition, "staging_target_path").await;
    let relative: fn(&mut v1::NodeGetVolumeStatsRequest) = |r| r.volume_path = "relative".into();
    check(served, stats("v", "/target"), relative, NotFound, "volume v does not exist").await;
}
