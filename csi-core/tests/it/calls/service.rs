//! What a plugin reports about itself, what it answers if something is missing, and how it treats the
//! driver's answers.

use std::sync::Arc;

use csi_core::types::AccessMode;
use csi_core::{Error, Mode, NodeService, Plugin, Volume, VolumeCapability};
use csi_proto::v1;
use tonic::Code;

use crate::common::*;
use crate::driver::{TestDriver, id, plugin, whole_plugin};

// spec: services.capabilities-are-served, get-plugin-info.version
#[tokio::test]
async fn capabilities_are_what_is_registered() {
    let served = Served::start(plugin(&Arc::default())).await;
    let info = served.call(v1::GetPluginInfoRequest {}).await.unwrap();
    assert_eq!((info.name.as_str(), info.vendor_version.as_str()), ("test.csi.example.org", "1.2.3"));
    let probe = served.call(v1::ProbeRequest {}).await.unwrap();
    assert_eq!(probe.ready, Some(true));

    let plugin = served.call(v1::GetPluginCapabilitiesRequest {}).await.unwrap();
    let text = format!("{:?}", plugin.capabilities);
    assert!(text.contains("ControllerService") && text.contains("Online"), "{text}");

    let controller = served.call(v1::ControllerGetCapabilitiesRequest {}).await.unwrap();
    use v1::controller_service_capability::{Type, rpc};
    let offered: Vec<i32> = controller
        .capabilities
        .iter()
        .map(|capability| match capability.r#type.as_ref().unwrap() {
            Type::Rpc(rpc) => rpc.r#type,
        })
        .collect();
    let due = [rpc::Type::CreateDeleteVolume, rpc::Type::PublishUnpublishVolume, rpc::Type::ExpandVolume];
    assert_eq!(offered, due.map(|capability| capability as i32));

    let node = served.call(v1::NodeGetInfoRequest {}).await.unwrap();
    assert_eq!((node.node_id.as_str(), node.max_volumes_per_node), ("node-1", 7));
}

// spec: services.unsupported-is-unimplemented, errors.message
#[tokio::test]
async fn what_is_not_offered_is_unimplemented_with_a_message() {
    let driver = Arc::new(TestDriver::default());
    let bare = Plugin::new("bare.csi.example.org", "1").node(NodeService::new(driver));
    let served = Served::start(bare).await;
    for outcome in [
        served.call(stage("v")).await.map(drop),
        served.call(create("v")).await.map(drop),
        served.call(v1::ListVolumesRequest::default()).await.map(drop),
        served.call(v1::NodeGetStorageHealthRequest::default()).await.map(drop),
        served.call(v1::ControllerGetCapabilitiesRequest {}).await.map(drop),
    ] {
        assert!(!refused(outcome, Code::Unimplemented).message().is_empty());
    }
    // A publish needs no staging path if the driver never stages.
    let mut request = publish("v", "/target");
    request.staging_target_path.clear();
    served.call(request).await.unwrap();
}

// spec: services.identity-everywhere, services.unsupported-is-unimplemented, process.knows-its-mode
// spec: get-plugin-capabilities.same-everywhere
#[tokio::test]
async fn a_mode_hides_services_and_not_capabilities() {
    let served = Served::start(plugin(&Arc::default()).mode(Mode::Node)).await;
    let status = refused(served.call(create("v")).await, Code::Unimplemented);
    assert!(status.message().contains("mode node"), "{status}");
    let plugin = served.call(v1::GetPluginCapabilitiesRequest {}).await.unwrap();
    assert!(format!("{plugin:?}").contains("ControllerService"));
}

// spec: create-volume.same-name-same-volume, create-volume.one-volume-a-name
// spec: create-volume.differs-is-already-exists
#[tokio::test]
async fn a_repeated_create_is_ok_when_it_fits_and_a_conflict_when_not() {
    let driver = Arc::new(TestDriver::default());
    driver.create_volume.answers(|_| Ok(Volume::new(id("v"), 100)));
    let served = Served::start(plugin(&driver)).await;
    let sized = |required_bytes, limit_bytes| v1::CreateVolumeRequest {
        capacity_range: Some(v1::CapacityRange { required_bytes, limit_bytes }),
        ..create("v")
    };
    let first = served.call(sized(100, 200)).await.unwrap();
    let again = served.call(sized(50, 100)).await.unwrap();
    assert_eq!(first, again);
    refused(served.call(sized(101, 0)).await, Code::AlreadyExists);
}

/// An object that does not exist counts as deleted and matches no filter, even if the driver returns a "not
/// found" error.
// spec: delete-snapshot.missing-is-ok, list-snapshots.unknown-filter
// spec: delete-volume.missing-is-ok, delete-volume-group-snapshot.missing-is-ok
#[tokio::test]
async fn what_is_not_there_is_deleted_and_not_listed() {
    let driver = Arc::new(TestDriver::default());
    driver.delete_volume.answers(|request| Err(Error::VolumeNotFound(request.volume_id)));
    driver.delete_snapshot.answers(|request| Err(Error::SnapshotNotFound(request.snapshot_id)));
    driver.list_snapshots.answers(|request| match (request.snapshot_id, request.source_volume_id) {
        (Some(id), _) => Err(Error::SnapshotNotFound(id)),
        (_, Some(id)) => Err(Error::VolumeNotFound(id)),
        _ => panic!("a filter is set"),
    });
    driver
        .delete_volume_group_snapshot
        .answers(|request| Err(Error::GroupSnapshotNotFound(request.group_snapshot_id)));
    driver
        .get_volume_group_snapshot
        .answers(|request| Err(Error::GroupSnapshotNotFound(request.group_snapshot_id)));
    let served = Served::start(whole_plugin(&driver)).await;

    served.call(delete("never")).await.expect("it is deleted");
    let request = v1::DeleteSnapshotRequest { snapshot_id: "never".into(), ..Default::default() };
    served.call(request).await.expect("it is deleted");
    for (snapshot_id, source_volume_id) in [("never", ""), ("", "never")] {
        let request = v1::ListSnapshotsRequest {
            snapshot_id: snapshot_id.into(),
            source_volume_id: source_volume_id.into(),
            ..Default::default()
        };
        let page = served.call(request).await.expect("an empty page");
        assert!(page.entries.is_empty() && page.next_token.is_empty());
    }
    let request = v1::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: "never".into(),
        snapshot_ids: vec!["never".into()],
        ..Default::default()
    };
    served.call(request).await.expect("it is deleted");
    let request = v1::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: "never".into(),
        snapshot_ids: vec!["never".into()],
        ..Default::default()
    };
    refused(served.call(request).await, Code::NotFound);
}

// spec: create-volume.all-capabilities, validate-volume-capabilities.all-or-none
// spec: validate-volume-capabilities.confirms-what-was-asked, validate-volume-capabilities.missing
#[tokio::test]
async fn capabilities_are_confirmed_all_or_none() {
    let supports = |capability: &VolumeCapability| {
        capability.is_mount() && capability.access_mode != AccessMode::MultiNodeMultiWriter
    };
    let driver = Arc::new(TestDriver { supports, ..TestDriver::default() });
    let served = Served::start(plugin(&driver)).await;
    let ask = |capabilities: Vec<v1::VolumeCapability>| v1::ValidateVolumeCapabilitiesRequest {
        volume_id: "v".into(),
        volume_capabilities: capabilities,
        ..Default::default()
    };
    for mode in 1..=7 {
        let answer = served.call(ask(vec![mount_capability(mode)])).await.unwrap();
        // The driver does not support the mode 5, and lacks SINGLE_NODE_MULTI_WRITER for 6 and 7.
        assert_eq!(answer.confirmed.is_some(), mode < 5, "{mode}");
    }
    let mixed = ask(vec![mount_capability(1), block_capability(1)]);
    let answer = served.call(mixed).await.unwrap();
    assert!(answer.confirmed.is_none());
    assert!(answer.message.contains("volume_capabilities[1]"), "{}", answer.message);
}
