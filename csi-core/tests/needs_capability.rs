//! Fields, modes and values that a caller is allowed to send only if a capability is offered. Without the
//! capability they are refused, and the message names them.

mod common;
mod whole;

use std::sync::Arc;

use common::*;
use csi_core::{ControllerService, NodeService, Plugin};
use csi_proto::v1;
use tonic::Code;
use whole::Whole;

async fn served() -> Served {
    let driver = Arc::new(Whole);
    let controller = ControllerService::new(driver.clone())
        .create_delete_volume()
        .publish_unpublish_volume()
        .get_capacity()
        .create_delete_snapshot()
        .expand_volume(csi_core::Expansion::Online);
    let node = NodeService::new(driver).stage_unstage_volume().expand_volume();
    Served::start(Plugin::new("plain.csi.example.org", "1").controller(controller).node(node)).await
}

fn place() -> v1::Topology {
    v1::Topology { segments: [("zone".to_owned(), "a".to_owned())].into() }
}

fn places() -> v1::TopologyRequirement {
    v1::TopologyRequirement { requisite: vec![place()], preferred: vec![] }
}

fn named<T: std::fmt::Debug>(answer: Result<tonic::Response<T>, tonic::Status>, field: &str) {
    let status = answer.expect_err(field);
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert_eq!(status.message().split(':').next(), Some(field), "{status}");
}

// spec: access-modes.newer-need-capability, validate-volume-capabilities.all-or-none
// spec: controller-expand-volume.beyond-capabilities, node-expand-volume.beyond-capabilities
#[tokio::test]
async fn newer_modes_need_single_node_multi_writer() {
    let served = served().await;
    let (mut controller, mut node) = (served.controller(), served.node());
    for mode in [6, 7] {
        let mut request = create("v");
        request.volume_capabilities = vec![mount_capability(1), mount_capability(mode)];
        named(controller.create_volume(request).await, "volume_capabilities[1].access_mode.mode");
        let request = v1::ControllerPublishVolumeRequest {
            volume_id: "v".into(),
            node_id: "n".into(),
            volume_capability: Some(block_capability(mode)),
            ..Default::default()
        };
        named(controller.controller_publish_volume(request).await, "volume_capability.access_mode.mode");
        let mut request = expand("v", 5);
        request.volume_capability = Some(mount_capability(mode));
        named(controller.controller_expand_volume(request).await, "volume_capability.access_mode.mode");
        let request = v1::GetCapacityRequest {
            volume_capabilities: vec![mount_capability(mode)],
            ..Default::default()
        };
        named(controller.get_capacity(request).await, "volume_capabilities[0].access_mode.mode");
        let mut request = stage("v");
        request.volume_capability = Some(mount_capability(mode));
        named(node.node_stage_volume(request).await, "volume_capability.access_mode.mode");
        let mut request = publish("v", "/target");
        request.volume_capability = Some(mount_capability(mode));
        named(node.node_publish_volume(request).await, "volume_capability.access_mode.mode");
        let request = v1::NodeExpandVolumeRequest {
            volume_id: "v".into(),
            volume_path: "/target".into(),
            volume_capability: Some(mount_capability(mode)),
            ..Default::default()
        };
        named(node.node_expand_volume(request).await, "volume_capability.access_mode.mode");
    }
}

// spec: create-volume.mutable-parameters-need-capability, create-volume.source-not-supported
// spec: create-volume.topology-needs-capability, controller-publish-volume.readonly-needs-capability
// spec: get-capacity.place-needs-capability, create-snapshot.topology-needs-capability, node.mount-group
#[tokio::test]
async fn fields_need_their_capability() {
    let served = served().await;
    let (mut controller, mut node) = (served.controller(), served.node());
    let mut request = create("v");
    request.accessibility_requirements = Some(places());
    named(controller.create_volume(request).await, "accessibility_requirements");
    let mut request = create("v");
    request.mutable_parameters.insert("iops".into(), "9".into());
    named(controller.create_volume(request).await, "mutable_parameters");
    let mut request = create("v");
    request.volume_content_source = Some(v1::VolumeContentSource {
        r#type: Some(v1::volume_content_source::Type::Volume(v1::volume_content_source::VolumeSource {
            volume_id: "w".into(),
        })),
    });
    named(controller.create_volume(request).await, "volume_content_source.volume");
    let request = v1::GetCapacityRequest { accessible_topology: Some(place()), ..Default::default() };
    named(controller.get_capacity(request).await, "accessible_topology");
    let request = v1::CreateSnapshotRequest {
        source_volume_id: "v".into(),
        name: "s".into(),
        accessibility_requirements: Some(places()),
        ..Default::default()
    };
    named(controller.create_snapshot(request).await, "accessibility_requirements");
    let request = v1::ControllerPublishVolumeRequest {
        volume_id: "v".into(),
        node_id: "n".into(),
        volume_capability: Some(mount_capability(1)),
        readonly: true,
        ..Default::default()
    };
    named(controller.controller_publish_volume(request).await, "readonly");
    let mut grouped = mount_capability(1);
    if let Some(v1::volume_capability::AccessType::Mount(mount)) = &mut grouped.access_type {
        mount.volume_mount_group = "1000".into();
    }
    let mut request = stage("v");
    request.volume_capability = Some(grouped.clone());
    named(node.node_stage_volume(request).await, "volume_capability.mount.volume_mount_group");
    let mut request = publish("v", "/target");
    request.volume_capability = Some(grouped);
    named(node.node_publish_volume(request).await, "volume_capability.mount.volume_mount_group");
}

// spec: topology.keys, topology.values, topology.preferred-is-requisite, topology.one-list-is-given
#[tokio::test]
async fn places_keep_the_rules_of_topology() {
    let served = Served::start(whole::plugin()).await;
    let mut controller = served.controller();
    let cases: [(&[(&str, &str)], &str); 6] = [
        (&[("a/b/c", "x")], "requisite[0].segments"),
        (&[("Example.org/zone", "x")], "requisite[0].segments"),
        (&[("zone", "")], "requisite[0].segments"),
        (&[("zone", "x y")], "requisite[0].segments"),
        (&[("zone", "a"), ("Zone", "a")], "requisite[0].segments"),
        (&[("zone", "b")], "preferred[0]"),
    ];
    for (segments, field) in cases {
        let segments = segments.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let mut request = create("v");
        request.accessibility_requirements = Some(v1::TopologyRequirement {
            requisite: vec![v1::Topology { segments }],
            preferred: vec![place()],
        });
        named(controller.create_volume(request).await, &format!("accessibility_requirements.{field}"));
    }
}
