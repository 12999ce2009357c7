//! A valid request for every RPC, with every field set. Two requests where a field is a choice (oneof).

use std::collections::BTreeMap;

use csi_core::Rpc;
use csi_proto::v1;
use prost::Message;
use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use v1::volume_content_source::{SnapshotSource, Type, VolumeSource};

/// The text that must not appear in any log or status.
pub const CANARY: &str = "canary-5f2b";

fn map(key: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), value.to_owned())])
}

pub fn secrets() -> BTreeMap<String, String> {
    map("password", CANARY)
}

fn context() -> BTreeMap<String, String> {
    let mut context = map("made", "here");
    context.insert(csi_proto::redact::TOKENS_KEY.to_owned(), format!(r#"{{"aud":{{"token":"{CANARY}"}}}}"#));
    context
}

fn mount() -> v1::VolumeCapability {
    let mount = MountVolume {
        fs_type: "ext4".to_owned(),
        mount_flags: vec!["noatime".to_owned(), format!("password={CANARY}"), format!("{CANARY} {CANARY}")],
        volume_mount_group: "1000".to_owned(),
    };
    v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: 7 }),
        access_type: Some(AccessType::Mount(mount)),
    }
}

fn block() -> v1::VolumeCapability {
    let access_type = Some(AccessType::Block(BlockVolume {}));
    v1::VolumeCapability { access_mode: Some(AccessMode { mode: 1 }), access_type }
}

fn topology() -> v1::Topology {
    v1::Topology { segments: map("zone", "a") }
}

fn range() -> Option<v1::CapacityRange> {
    Some(v1::CapacityRange { required_bytes: 5, limit_bytes: 50 })
}

fn volume_id() -> String {
    "v".to_owned()
}

/// Each RPC with a valid request, encoded.
pub fn samples() -> Vec<(Rpc, Vec<u8>)> {
    let requisite = v1::TopologyRequirement { requisite: vec![topology()], preferred: vec![] };
    let preferred = v1::TopologyRequirement { requisite: vec![], preferred: vec![topology()] };
    let snapshot = Type::Snapshot(SnapshotSource { snapshot_id: "s".into() });
    let clone = Type::Volume(VolumeSource { volume_id: "origin".into() });
    let create = |capability, source, requirements| v1::CreateVolumeRequest {
        name: "v".into(),
        capacity_range: range(),
        volume_capabilities: vec![capability],
        parameters: map("pool", "fast"),
        secrets: secrets(),
        volume_content_source: Some(v1::VolumeContentSource { r#type: Some(source) }),
        accessibility_requirements: Some(requirements),
        mutable_parameters: map("iops", "9"),
    };
    vec![
        (Rpc::GetPluginInfo, vec![]),
        (Rpc::GetPluginCapabilities, vec![]),
        (Rpc::Probe, vec![]),
        (Rpc::CreateVolume, create(mount(), snapshot, requisite.clone()).encode_to_vec()),
        (Rpc::CreateVolume, create(block(), clone, preferred).encode_to_vec()),
        (
            Rpc::DeleteVolume,
            v1::DeleteVolumeRequest { volume_id: volume_id(), secrets: secrets() }.encode_to_vec(),
        ),
        (
            Rpc::ControllerPublishVolume,
            v1::ControllerPublishVolumeRequest {
                volume_id: volume_id(),
                node_id: "n".into(),
                volume_capability: Some(mount()),
                readonly: true,
                secrets: secrets(),
                volume_context: context(),
            }
            .encode_to_vec(),
        ),
        (
            Rpc::ControllerUnpublishVolume,
            v1::ControllerUnpublishVolumeRequest {
                volume_id: volume_id(),
                node_id: "n".into(),
                secrets: secrets(),
            }
            .encode_to_vec(),
        ),
        (
            Rpc::ValidateVolumeCapabilities,
            v1::ValidateVolumeCapabilitiesRequest {
                volume_id: volume_id(),
                volume_context: context(),
                volume_capabilities: vec![mount()],
                parameters: map("pool", "fast"),
                secrets: secrets(),
                mutable_parameters: map("iops", "9"),
            }
            .encode_to_vec(),
        ),
        (
            Rpc::ListVolumes,
            v1::ListVolumesRequest { max_entries: 2, starting_token: "t".into() }.encode_to_vec(),
        ),
        (
            Rpc::ControllerListVolumeHealth,
            v1::ControllerListVolumeHealthRequest {
                max_entries: 2,
                starting_token: "t".into(),
                secrets: secrets(),
            }
            .encode_to_vec(),
        ),
        (
            Rpc::ControllerGetVolumeHealth,
            v1::ControllerGetVolumeHealthRequest { volume_id: volume_id(), secrets: secrets() }
                .encode_to_vec(),
        ),
        (
            Rpc::GetCapacity,
            v1::GetCapacityRequest {
                volume_capabilities: vec![mount()],
                parameters: map("pool", "fast"),
                accessible_topology: Some(topology()),
            }
            .encode_to_vec(),
        ),
        (Rpc::ControllerGetCapabilities, vec![]),
        (
            Rpc::CreateSnapshot,
            v1::CreateSnapshotRequest {
                source_volume_id: volume_id(),
                name: "s".into(),
                secrets: secrets(),
                parameters: map("pool", "fast"),
                accessibility_requirements: Some(requisite),
            }
            .encode_to_vec(),
        ),
        (
            Rpc::DeleteSnapshot,
            v1::DeleteSnapshotRequest { snapshot_id: "s".into(), secrets: secrets() }.encode_to_vec(),
        ),
        (
            Rpc::ListSnapshots,
            v1::ListSnapshotsRequest {
                max_entries: 2,
                starting_token: "t".into(),
                source_volume_id: volume_id(),
                snapshot_id: "s".into(),
                secrets: secrets(),
            }
            .encode_to_vec(),
        ),
        (
            Rpc::GetSnapshot,
            v1::GetSnapshotRequest { snapshot_id: "s".into(), secrets: secrets() }.encode_to_vec(),
        ),
        (
            Rpc::ControllerExpandVolume,
            v1::ControllerExpandVolumeRequest {
                volume_id: volume_id(),
                capacity_range: range(),
                secrets: secrets(),
                volume_capability: Some(mount()),
            }
            .encode_to_vec(),
        ),
        (Rpc::ControllerGetVolume, v1::ControllerGetVolumeRequest { volume_id: volume_id() }.encode_to_vec()),
        (
            Rpc::ControllerModifyVolume,
            v1::ControllerModifyVolumeRequest {
                volume_id: volume_id(),
                secrets: secrets(),
                mutable_parameters: map("iops", "9"),
            }
            .encode_to_vec(),
        ),
        (Rpc::GroupControllerGetCapabilities, vec![]),
        (
            Rpc::CreateVolumeGroupSnapshot,
            v1::CreateVolumeGroupSnapshotRequest {
                name: "g".into(),
                source_volume_ids: vec![volume_id(), "w".into()],
                secrets: secrets(),
                parameters: map("pool", "fast"),
            }
            .encode_to_vec(),
        ),
        (
            Rpc::DeleteVolumeGroupSnapshot,
            v1::DeleteVolumeGroupSnapshotRequest {
                group_snapshot_id: "g".into(),
                snapshot_ids: vec!["s".into()],
                secrets: secrets(),
            }
            .encode_to_vec(),
        ),
        (
            Rpc::GetVolumeGroupSnapshot,
            v1::GetVolumeGroupSnapshotRequest {
                group_snapshot_id: "g".into(),
                snapshot_ids: vec!["s".into()],
                secrets: secrets(),
            }
            .encode_to_vec(),
        ),
        (
            Rpc::GetMetadataAllocated,
            v1::GetMetadataAllocatedRequest {
                snapshot_id: "s".into(),
                starting_offset: 5,
                max_results: 2,
                secrets: secrets(),
            }
            .encode_to_vec(),
        ),
        (
            Rpc::GetMetadataDelta,
            v1::GetMetadataDeltaRequest {
                base_snapshot_id: "s".into(),
                target_snapshot_id: "t".into(),
                starting_offset: 5,
                max_results: 2,
                secrets: secrets(),
            }
            .encode_to_vec(),
        ),
        (
            Rpc::NodeStageVolume,
            v1::NodeStageVolumeRequest {
                volume_id: volume_id(),
                publish_context: map("device", "sdx"),
                staging_target_path: "/staging".into(),
                volume_capability: Some(mount()),
                secrets: secrets(),
                volume_context: context(),
            }
            .encode_to_vec(),
        ),
        (
            Rpc::NodeUnstageVolume,
            v1::NodeUnstageVolumeRequest { volume_id: volume_id(), staging_target_path: "/staging".into() }
                .encode_to_vec(),
        ),
        (
            Rpc::NodePublishVolume,
            v1::NodePublishVolumeRequest {
                volume_id: volume_id(),
                publish_context: map("device", "sdx"),
                staging_target_path: "/staging".into(),
                target_path: "/target".into(),
                volume_capability: Some(mount()),
                readonly: true,
                secrets: secrets(),
                volume_context: context(),
            }
            .encode_to_vec(),
        ),
        (
            Rpc::NodeUnpublishVolume,
            v1::NodeUnpublishVolumeRequest { volume_id: volume_id(), target_path: "/target".into() }
                .encode_to_vec(),
        ),
        (
            Rpc::NodeGetVolumeStats,
            v1::NodeGetVolumeStatsRequest {
                volume_id: volume_id(),
                volume_path: "/target".into(),
                staging_target_path: "/staging".into(),
            }
            .encode_to_vec(),
        ),
        (
            Rpc::NodeGetVolumeHealth,
            v1::NodeGetVolumeHealthRequest {
                volume_id: volume_id(),
                volume_publish_path: "/target".into(),
                staging_target_path: "/staging".into(),
            }
            .encode_to_vec(),
        ),
        (Rpc::NodeGetStorageHealth, v1::NodeGetStorageHealthRequest { secrets: secrets() }.encode_to_vec()),
        (
            Rpc::NodeExpandVolume,
            v1::NodeExpandVolumeRequest {
                volume_id: volume_id(),
                volume_path: "/target".into(),
                capacity_range: range(),
                staging_target_path: "/staging".into(),
                volume_capability: Some(mount()),
                secrets: secrets(),
            }
            .encode_to_vec(),
        ),
        (Rpc::NodeGetCapabilities, vec![]),
        (Rpc::NodeGetInfo, vec![]),
    ]
}
