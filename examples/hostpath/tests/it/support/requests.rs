//! The requests that several tests make.

use csi_core::client::Client;
use csi_proto::v1;
pub(crate) use test_support::requests::*;
use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use super::Run;

/// A capability. An empty filesystem name leaves the choice to the driver; None is a raw device.
pub(crate) fn capability(filesystem: Option<&str>, mode: i32) -> v1::VolumeCapability {
    let access_type = match filesystem {
        Some(name) => AccessType::Mount(MountVolume { fs_type: name.to_owned(), ..Default::default() }),
        None => AccessType::Block(BlockVolume {}),
    };
    v1::VolumeCapability { access_mode: Some(AccessMode { mode }), access_type: Some(access_type) }
}

/// A volume of this name and size, for one writer on one node.
pub(crate) fn wanted(name: &str, filesystem: Option<&str>, bytes: u64) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(v1::CapacityRange { required_bytes: bytes as i64, limit_bytes: 0 }),
        volume_capabilities: vec![capability(filesystem, 1)],
        ..Default::default()
    }
}

/// The same with this content.
pub(crate) fn copy(
    source: Option<v1::VolumeContentSource>,
    wanted: v1::CreateVolumeRequest,
) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest { volume_content_source: source, ..wanted }
}

/// A group of snapshots of these volumes.
pub(crate) fn group(name: impl Into<String>, volumes: &[&str]) -> v1::CreateVolumeGroupSnapshotRequest {
    let source_volume_ids = volumes.iter().map(|&id| id.to_owned()).collect();
    v1::CreateVolumeGroupSnapshotRequest { name: name.into(), source_volume_ids, ..Default::default() }
}

/// New mutable parameters of a volume.
pub(crate) fn modification(volume_id: &str, pairs: &[(&str, &str)]) -> v1::ControllerModifyVolumeRequest {
    v1::ControllerModifyVolumeRequest {
        volume_id: volume_id.to_owned(),
        mutable_parameters: map(pairs),
        ..Default::default()
    }
}

pub(crate) fn delete_volume(volume_id: impl Into<String>) -> v1::DeleteVolumeRequest {
    v1::DeleteVolumeRequest { volume_id: volume_id.into(), ..Default::default() }
}

pub(crate) fn delete_snapshot(snapshot_id: impl Into<String>) -> v1::DeleteSnapshotRequest {
    v1::DeleteSnapshotRequest { snapshot_id: snapshot_id.into(), ..Default::default() }
}

/// The publish of an inline volume.
pub(crate) fn inline(run: &Run, id: &str, kind: &str, filesystem: &str) -> v1::NodePublishVolumeRequest {
    let ephemeral = ("csi.storage.k8s.io/ephemeral", "true");
    v1::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        target_path: run.of("target").join(id).to_str().unwrap().to_owned(),
        volume_capability: Some(capability(Some(filesystem), 1)),
        volume_context: map(&[
            ephemeral,
            ("csi.storage.k8s.io/pod.name", "pod"),
            ("kind", kind),
            ("size", "320Mi"),
        ]),
        ..Default::default()
    }
}

/// The ids of all volumes.
pub(crate) async fn volumes(client: &Client) -> Vec<String> {
    let list = client.call(v1::ListVolumesRequest::default()).await.unwrap();
    list.entries.into_iter().filter_map(|entry| Some(entry.volume?.volume_id)).collect()
}

/// The ids of all snapshots.
pub(crate) async fn snapshots(client: &Client) -> Vec<String> {
    let list = client.call(v1::ListSnapshotsRequest::default()).await.unwrap();
    list.entries.into_iter().filter_map(|entry| Some(entry.snapshot?.snapshot_id)).collect()
}
