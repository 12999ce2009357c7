//! Fields, modes and values that a caller is allowed to send only if a capability is offered. Without the
//! capability they are refused, and the message names them.

use std::path::Path;
use std::sync::Arc;

use csi_core::client::VolumeUse;
use csi_core::{ControllerService, Expansion, NodeService, Plugin};
use csi_proto::v1;
use tonic::{Code, Status};
use v1::volume_capability::MountVolume;

use crate::common::*;
use crate::driver::{TestDriver, whole_plugin};

async fn served() -> Served {
    let driver = Arc::new(TestDriver::default());
    let controller = ControllerService::new(driver.clone())
        .create_delete_volume()
        .publish_unpublish_volume()
        .get_capacity()
        .create_delete_snapshot()
        .expand_volume(Expansion::Online);
    let node = NodeService::new(driver).stage_unstage_volume().expand_volume();
    Served::start(Plugin::new("test.csi.example.org", "1").controller(controller).node(node)).await
}

fn place() -> v1::Topology {
    v1::Topology { segments: map(&[("zone", "a")]) }
}

fn places() -> v1::TopologyRequirement {
    v1::TopologyRequirement { requisite: vec![place()], preferred: vec![] }
}

#[track_caller]
fn named<A>(answer: Result<A, Status>, field: &str) {
    let status = refused(answer, Code::InvalidArgument);
    assert_eq!(status.message().split(':').next(), Some(field), "{status}");
}

// spec: access-modes.newer-need-capability, validate-volume-capabilities.all-or-none
// spec: controller-expand-volume.beyond-capabilities, node-expand-volume.beyond-capabilities
#[tokio::test]
async fn newer_modes_need_single_node_multi_writer() {
    let served = served().await;
    for mode in [6, 7] {
        let mut request = create("v");
        request.volume_capabilities = vec![mount_capability(1), mount_capability(mode)];
        named(served.call(request).await, "volume_capabilities[1].access_mode.mode");
        let request = v1::GetCapacityRequest {
            volume_capabilities: vec![mount_capability(mode)],
            ..Default::default()
        };
        named(served.call(request).await, "volume_capabilities[0].access_mode.mode");
        let volume = VolumeUse::new("v", mount_capability(mode)).attached_to("n").staged_at(staging("v"));
        let target = Path::new("/target");
        for answer in [
            served.call(volume.controller_publish_volume()).await.map(drop),
            served.call(volume.controller_expand_volume(5)).await.map(drop),
            served.call(volume.node_stage_volume()).await.map(drop),
            served.call(volume.node_publish_volume(target)).await.map(drop),
            served.call(volume.node_expand_volume(target, 5)).await.map(drop),
        ] {
            named(answer, "volume_capability.access_mode.mode");
        }
    }
}

// spec: create-volume.mutable-parameters-need-capability, create-volume.source-not-supported
// spec: create-volume.topology-needs-capability, controller-publish-volume.readonly-needs-capability
// spec: get-capacity.place-needs-capability, create-snapshot.topology-needs-capability, node.mount-group
#[tokio::test]
async fn fields_need_their_capability() {
    let served = served().await;
    let mut request = create("v");
    request.accessibility_requirements = Some(places());
    named(served.call(request).await, "accessibility_requirements");
    let mut request = create("v");
    request.mutable_parameters.insert("iops".into(), "9".into());
    named(served.call(request).await, "mutable_parameters");
    let mut request = create("v");
    request.volume_content_source = Some(v1::VolumeContentSource {
        r#type: Some(v1::volume_content_source::Type::Volume(v1::volume_content_source::VolumeSource {
            volume_id: "w".into(),
        })),
    });
    named(served.call(request).await, "volume_content_source.volume");
    let request = v1::GetCapacityRequest { accessible_topology: Some(place()), ..Default::default() };
    named(served.call(request).await, "accessible_topology");
    let request = v1::CreateSnapshotRequest {
        source_volume_id: "v".into(),
        name: "s".into(),
        accessibility_requirements: Some(places()),
        ..Default::default()
    };
    named(served.call(request).await, "accessibility_requirements");
    let volume = VolumeUse::new("v", mount_capability(1)).attached_to("n");
    let request = v1::ControllerPublishVolumeRequest { readonly: true, ..volume.controller_publish_volume() };
    named(served.call(request).await, "readonly");
    let grouped = mount_with(1, MountVolume { volume_mount_group: "1000".into(), ..Default::default() });
    let volume = VolumeUse::new("v", grouped).staged_at(staging("v"));
    let group = "volume_capability.mount.volume_mount_group";
    named(served.call(volume.node_stage_volume()).await, group);
    named(served.call(volume.node_publish_volume(Path::new("/target"))).await, group);
}

// spec: topology.keys, topology.values, topology.preferred-is-requisite, topology.one-list-is-given
#[tokio::test]
async fn places_keep_the_rules_of_topology() {
    let served = Served::start(whole_plugin(&Arc::default())).await;
    let cases: [(&[(&str, &str)], &str); 6] = [
        (&[("a/b/c", "x")], "requisite[0].segments"),
        (&[("Example.org/zone", "x")], "requisite[0].segments"),
        (&[("zone", "")], "requisite[0].segments"),
        (&[("zone", "x y")], "requisite[0].segments"),
        (&[("zone", "a"), ("Zone", "a")], "requisite[0].segments"),
        (&[("zone", "b")], "preferred[0]"),
    ];
    for (segments, field) in cases {
        let mut request = create("v");
        request.accessibility_requirements = Some(v1::TopologyRequirement {
            requisite: vec![v1::Topology { segments: map(segments) }],
            preferred: vec![place()],
        });
        named(served.call(request).await, &format!("accessibility_requirements.{field}"));
    }
}
