//! Every RPC that is wired, with each of its fields missing or malformed: the code, and the field that is named.

mod common;

use common::*;
use csi_proto::v1;
use tonic::Code;

/// Sends each request and compares the code and the field that the message begins with.
macro_rules! refused {
    ($cases:ident, $client:expr, $method:ident, $valid:expr, { $($change:expr => $code:ident $field:literal),+ $(,)? }) => {
        let answer = $client.$method($valid).await;
        assert!(answer.is_ok(), "a valid {}: {answer:?}", stringify!($method));
        $({
            let mut request = $valid;
            let change: fn(&mut _) = $change;
            change(&mut request);
            let status = $client.$method(request).await.expect_err(concat!(stringify!($method), " without ", $field));
            assert_eq!(status.code(), Code::$code, "{} {}: {status}", stringify!($method), $field);
            let named = status.message().split(':').next().unwrap();
            assert_eq!(named, $field, "{}: {status}", stringify!($method));
            assert!(status.details().is_empty());
            $cases += 1;
        })+
    };
}

#[tokio::test]
async fn each_field_is_named() {
    let served = Served::start(plugin(Default::default())).await;
    let (mut controller, mut node) = (served.controller(), served.node());
    let mut cases = 0;

    type Create = v1::CreateVolumeRequest;
    refused!(cases, controller, create_volume, create("v"), {
        |r: &mut Create| r.name.clear() => InvalidArgument "name",
        |r: &mut Create| r.name = "x".repeat(129) => InvalidArgument "name",
        |r: &mut Create| r.name = "a\u{7}".into() => InvalidArgument "name",
        |r: &mut Create| r.volume_capabilities.clear() => InvalidArgument "volume_capabilities",
        |r: &mut Create| r.volume_capabilities[0].access_mode = None
            => InvalidArgument "volume_capabilities[0].access_mode.mode",
        |r: &mut Create| r.volume_capabilities[0] = mount_capability(0)
            => InvalidArgument "volume_capabilities[0].access_mode.mode",
        |r: &mut Create| r.volume_capabilities[0] = mount_capability(99)
            => InvalidArgument "volume_capabilities[0].access_mode.mode",
        |r: &mut Create| r.volume_capabilities[0].access_type = None
            => InvalidArgument "volume_capabilities[0].access_type",
        |r: &mut Create| r.volume_capabilities.push(block_capability(1))
            => InvalidArgument "volume_capabilities[1]",
        |r: &mut Create| r.capacity_range = Some(Default::default()) => InvalidArgument "capacity_range",
        |r: &mut Create| r.capacity_range = Some(v1::CapacityRange { required_bytes: -1, limit_bytes: 0 })
            => InvalidArgument "capacity_range.required_bytes",
        |r: &mut Create| r.capacity_range = Some(v1::CapacityRange { required_bytes: 2, limit_bytes: 1 })
            => OutOfRange "capacity_range",
        |r: &mut Create| drop(r.parameters.insert("k".into(), "x".repeat(4096))) => InvalidArgument "parameters",
        |r: &mut Create| drop(r.secrets.insert("k".into(), "x".repeat(4096))) => InvalidArgument "secrets",
        |r: &mut Create| drop(r.mutable_parameters.insert("k".into(), "v".into()))
            => InvalidArgument "mutable_parameters",
        |r: &mut Create| r.volume_content_source = Some(Default::default())
            => InvalidArgument "volume_content_source",
        |r: &mut Create| r.volume_content_source = Some(v1::VolumeContentSource {
            r#type: Some(v1::volume_content_source::Type::Volume(v1::volume_content_source::VolumeSource {
                volume_id: "other".into(),
            })),
        }) => InvalidArgument "volume_content_source.volume",
        |r: &mut Create| r.accessibility_requirements = Some(v1::TopologyRequirement {
            requisite: vec![v1::Topology { segments: [("zone".to_owned(), "a".to_owned())].into() }],
            preferred: vec![],
        }) => InvalidArgument "accessibility_requirements",
    });

    type Delete = v1::DeleteVolumeRequest;
    let delete = || Delete { volume_id: "v".into(), ..Default::default() };
    refused!(cases, controller, delete_volume, delete(), {
        |r: &mut Delete| r.volume_id.clear() => InvalidArgument "volume_id",
        |r: &mut Delete| r.volume_id = "x".repeat(129) => InvalidArgument "volume_id",
    });

    controller.create_volume(create("v")).await.unwrap();
    type Validate = v1::ValidateVolumeCapabilitiesRequest;
    let validate = || Validate {
        volume_id: "v".into(),
        volume_capabilities: vec![mount_capability(1)],
        ..Default::default()
    };
    refused!(cases, controller, validate_volume_capabilities, validate(), {
        |r: &mut Validate| r.volume_id.clear() => InvalidArgument "volume_id",
        |r: &mut Validate| r.volume_capabilities.clear() => InvalidArgument "volume_capabilities",
        |r: &mut Validate| r.volume_capabilities[0].access_type = None
            => InvalidArgument "volume_capabilities[0].access_type",
        |r: &mut Validate| r.volume_id = "gone".into() => NotFound "volume gone does not exist",
    });

    type Attach = v1::ControllerPublishVolumeRequest;
    let attach = || Attach {
        volume_id: "v".into(),
        node_id: "n".into(),
        volume_capability: Some(mount_capability(1)),
        ..Default::default()
    };
    refused!(cases, controller, controller_publish_volume, attach(), {
        |r: &mut Attach| r.volume_id.clear() => InvalidArgument "volume_id",
        |r: &mut Attach| r.node_id.clear() => InvalidArgument "node_id",
        |r: &mut Attach| r.node_id = "x".repeat(257) => InvalidArgument "node_id",
        |r: &mut Attach| r.volume_capability = None => InvalidArgument "volume_capability",
        |r: &mut Attach| r.volume_capability = Some(mount_capability(0))
            => InvalidArgument "volume_capability.access_mode.mode",
        |r: &mut Attach| r.readonly = true => InvalidArgument "readonly",
    });

    type Detach = v1::ControllerUnpublishVolumeRequest;
    let detach = || Detach { volume_id: "v".into(), ..Default::default() };
    refused!(cases, controller, controller_unpublish_volume, detach(), {
        |r: &mut Detach| r.volume_id.clear() => InvalidArgument "volume_id",
    });

    type Expand = v1::ControllerExpandVolumeRequest;
    refused!(cases, controller, controller_expand_volume, expand("v", 5), {
        |r: &mut Expand| r.volume_id.clear() => InvalidArgument "volume_id",
        |r: &mut Expand| r.capacity_range = None => InvalidArgument "capacity_range",
        |r: &mut Expand| r.capacity_range = Some(Default::default()) => InvalidArgument "capacity_range",
    });

    type Stage = v1::NodeStageVolumeRequest;
    refused!(cases, node, node_stage_volume, stage("v"), {
        |r: &mut Stage| r.volume_id.clear() => InvalidArgument "volume_id",
        |r: &mut Stage| r.staging_target_path.clear() => InvalidArgument "staging_target_path",
        |r: &mut Stage| r.staging_target_path = "relative".into() => InvalidArgument "staging_target_path",
        |r: &mut Stage| r.staging_target_path = "/a/../b".into() => InvalidArgument "staging_target_path",
        |r: &mut Stage| r.volume_capability = None => InvalidArgument "volume_capability",
    });

    type Unstage = v1::NodeUnstageVolumeRequest;
    let unstage = || Unstage { volume_id: "v".into(), staging_target_path: "/staging".into() };
    refused!(cases, node, node_unstage_volume, unstage(), {
        |r: &mut Unstage| r.volume_id.clear() => InvalidArgument "volume_id",
        |r: &mut Unstage| r.staging_target_path.clear() => InvalidArgument "staging_target_path",
    });

    type Publish = v1::NodePublishVolumeRequest;
    refused!(cases, node, node_publish_volume, publish("v", "/target"), {
        |r: &mut Publish| r.volume_id.clear() => InvalidArgument "volume_id",
        |r: &mut Publish| r.target_path.clear() => InvalidArgument "target_path",
        |r: &mut Publish| r.target_path = "t".into() => InvalidArgument "target_path",
        |r: &mut Publish| r.target_path = "/t\0".into() => InvalidArgument "target_path",
        |r: &mut Publish| r.volume_capability = None => InvalidArgument "volume_capability",
        |r: &mut Publish| r.staging_target_path.clear() => FailedPrecondition "staging_target_path",
    });

    type Unpublish = v1::NodeUnpublishVolumeRequest;
    let unpublish = || Unpublish { volume_id: "v".into(), target_path: "/target".into() };
    refused!(cases, node, node_unpublish_volume, unpublish(), {
        |r: &mut Unpublish| r.volume_id.clear() => InvalidArgument "volume_id",
        |r: &mut Unpublish| r.target_path.clear() => InvalidArgument "target_path",
    });

    type Stats = v1::NodeGetVolumeStatsRequest;
    let stats = || Stats { volume_id: "v".into(), volume_path: "/target".into(), ..Default::default() };
    refused!(cases, node, node_get_volume_stats, stats(), {
        |r: &mut Stats| r.volume_id.clear() => InvalidArgument "volume_id",
        |r: &mut Stats| r.volume_path.clear() => InvalidArgument "volume_path",
        |r: &mut Stats| r.volume_path = "relative".into() => NotFound "volume v does not exist",
    });

    type Grow = v1::NodeExpandVolumeRequest;
    let grow = || Grow { volume_id: "v".into(), volume_path: "/target".into(), ..Default::default() };
    refused!(cases, node, node_expand_volume, grow(), {
        |r: &mut Grow| r.volume_id.clear() => InvalidArgument "volume_id",
        |r: &mut Grow| r.volume_path.clear() => InvalidArgument "volume_path",
        |r: &mut Grow| r.volume_capability = Some(Default::default())
            => InvalidArgument "volume_capability.access_mode.mode",
    });
    println!("{cases} malformed requests were refused by name");
}

#[tokio::test]
async fn long_paths_are_not_capped() {
    let served = Served::start(plugin(Default::default())).await;
    let long = format!("/{}", "deep/".repeat(60));
    served.node().node_publish_volume(publish("v", &long)).await.expect("a path of 300 bytes is fine");
}
