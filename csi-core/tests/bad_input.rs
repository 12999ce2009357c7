//! Requests that are wrong in more than one field (fields that contradict each other), or wrong for the
//! volume's state. `every_field.rs` tests each field alone, `needs_capability.rs` tests the fields that
//! need a capability.

mod common;

use common::*;
use csi_proto::v1;
use tonic::Code;

/// Sends the valid request, which must succeed, and then each change of it. Checks the code and the start
/// of the message.
macro_rules! refused {
    ($client:expr, $method:ident, $valid:expr, { $($change:expr => $code:ident $begins:literal),+ $(,)? }) => {
        let answer = $client.$method($valid).await;
        assert!(answer.is_ok(), "a valid {}: {answer:?}", stringify!($method));
        $({
            let mut request = $valid;
            let change: fn(&mut _) = $change;
            change(&mut request);
            let status = $client.$method(request).await.expect_err(concat!(stringify!($method), ": ", $begins));
            assert_eq!(status.code(), Code::$code, "{} {}: {status}", stringify!($method), $begins);
            let named = status.message().split(':').next().unwrap();
            assert_eq!(named, $begins, "{}: {status}", stringify!($method));
            assert!(status.details().is_empty());
        })+
    };
}

fn range(required_bytes: i64, limit_bytes: i64) -> Option<v1::CapacityRange> {
    Some(v1::CapacityRange { required_bytes, limit_bytes })
}

// spec: fields.invalid-is-invalid-argument, create-volume.all-capabilities
#[tokio::test]
async fn what_contradicts_itself_is_named() {
    let served = Served::start(plugin(Default::default())).await;
    let (mut controller, mut node) = (served.controller(), served.node());

    type Create = v1::CreateVolumeRequest;
    refused!(controller, create_volume, create("v"), {
        |r: &mut Create| r.volume_capabilities.push(block_capability(1))
            => InvalidArgument "volume_capabilities[1]",
        |r: &mut Create| r.capacity_range = range(0, 0) => InvalidArgument "capacity_range",
        |r: &mut Create| r.capacity_range = range(2, 1) => OutOfRange "capacity_range",
    });

    type Validate = v1::ValidateVolumeCapabilitiesRequest;
    let validate = || Validate {
        volume_id: "v".into(),
        volume_capabilities: vec![mount_capability(1)],
        ..Default::default()
    };
    refused!(controller, validate_volume_capabilities, validate(), {
        |r: &mut Validate| r.volume_id = "gone".into() => NotFound "volume gone does not exist",
    });

    type Expand = v1::ControllerExpandVolumeRequest;
    refused!(controller, controller_expand_volume, expand("v", 5), {
        |r: &mut Expand| r.capacity_range = range(0, 0) => InvalidArgument "capacity_range",
        |r: &mut Expand| r.capacity_range = range(2, 1) => OutOfRange "capacity_range",
    });

    type Publish = v1::NodePublishVolumeRequest;
    refused!(node, node_publish_volume, publish("v", "/target"), {
        |r: &mut Publish| r.staging_target_path.clear() => FailedPrecondition "staging_target_path",
    });

    type Stats = v1::NodeGetVolumeStatsRequest;
    let stats = || Stats { volume_id: "v".into(), volume_path: "/target".into(), ..Default::default() };
    refused!(node, node_get_volume_stats, stats(), {
        |r: &mut Stats| r.volume_path = "relative".into() => NotFound "volume v does not exist",
    });
}
