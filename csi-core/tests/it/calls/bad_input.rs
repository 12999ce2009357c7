//! Requests that are wrong in more than one field (fields that contradict each other), or wrong for the
//! volume's state. `every_field.rs` tests each field alone, `needs_capability.rs` tests the fields that
//! need a capability.

use std::sync::Arc;

use csi_core::VolumeCapability;
use csi_proto::{RpcRequest, v1};
use tonic::Code::{self, InvalidArgument, NotFound, OutOfRange};

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

fn empty_range() -> Option<v1::CapacityRange> {
    Some(v1::CapacityRange { required_bytes: 2, limit_bytes: 1 })
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
    check(served, create("v"), |r| r.capacity_range = empty_range(), OutOfRange, "capacity_range").await;
    check(served, validate, |r| r.volume_id = "gone".into(), NotFound, "volume gone does not exist").await;
    check(served, expand("v", 5), |r| r.capacity_range = empty_range(), OutOfRange, "capacity_range").await;
}
