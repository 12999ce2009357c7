//! A complete request of each kind, about objects that do not exist, so that it can do no harm.

use csi_proto::Rpc;
use csi_proto::v1;

use crate::context::TestContext;
use csi_proto::RpcRequest;

pub(super) fn samples(ctx: &TestContext) -> Vec<(Rpc, Vec<u8>)> {
    let volume_id = || "csi-conformance-no-such-volume".to_owned();
    let snapshot_id = || "csi-conformance-no-such-snapshot".to_owned();
    let group_snapshot_id = || "csi-conformance-no-such-group".to_owned();
    // The node exists, so that a request without a volume lacks nothing else.
    let node_id = || match ctx.offers.node_id.as_str() {
        "" => "no-such-node".to_owned(),
        known => known.to_owned(),
    };
    let path = |name: &str| format!("/csi-conformance-no-such-directory/{name}");
    let capability = || Some(ctx.capability(ctx.any_kind()));
    let place = ctx.offers.place.clone();
    let accessibility_requirements =
        place.map(|here| v1::TopologyRequirement { requisite: vec![here], preferred: vec![] });
    vec![
        sample(v1::CreateVolumeRequest { accessibility_requirements, ..ctx.create(&ctx.name()) }),
        sample(v1::DeleteVolumeRequest { volume_id: volume_id(), ..Default::default() }),
        sample(v1::ControllerPublishVolumeRequest {
            volume_id: volume_id(),
            node_id: node_id(),
            volume_capability: capability(),
            volume_context: one("a"),
            ..Default::default()
        }),
        sample(v1::ControllerUnpublishVolumeRequest {
            volume_id: volume_id(),
            node_id: "no-such-node".into(),
            ..Default::default()
        }),
        sample(v1::ValidateVolumeCapabilitiesRequest {
            volume_id: volume_id(),
            volume_capabilities: capability().into_iter().collect(),
            volume_context: one("a"),
            parameters: one("a"),
            ..Default::default()
        }),
        sample(v1::ListVolumesRequest { max_entries: 1, ..Default::default() }),
        sample(v1::ControllerGetVolumeRequest { volume_id: volume_id() }),
        sample(v1::GetCapacityRequest { parameters: one("a"), ..Default::default() }),
        sample(v1::CreateSnapshotRequest {
            source_volume_id: volume_id(),
            name: ctx.name(),
            parameters: one("a"),
            ..Default::default()
        }),
        sample(v1::DeleteSnapshotRequest { snapshot_id: snapshot_id(), ..Default::default() }),
        sample(v1::ListSnapshotsRequest {
            max_entries: 1,
            source_volume_id: volume_id(),
            snapshot_id: snapshot_id(),
            ..Default::default()
        }),
        sample(v1::GetSnapshotRequest { snapshot_id: snapshot_id(), ..Default::default() }),
        sample(v1::ControllerExpandVolumeRequest {
            volume_id: volume_id(),
            capacity_range: Some(v1::CapacityRange { required_bytes: ctx.settings.size, limit_bytes: 0 }),
            ..Default::default()
        }),
        sample(v1::ControllerModifyVolumeRequest {
            volume_id: volume_id(),
            mutable_parameters: one("a"),
            ..Default::default()
        }),
        sample(v1::ControllerGetVolumeHealthRequest { volume_id: volume_id(), ..Default::default() }),
        sample(v1::ControllerListVolumeHealthRequest { max_entries: 1, ..Default::default() }),
        sample(v1::CreateVolumeGroupSnapshotRequest {
            name: ctx.name(),
            source_volume_ids: vec![volume_id()],
            parameters: one("a"),
            ..Default::default()
        }),
        sample(v1::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: group_snapshot_id(),
            snapshot_ids: vec![snapshot_id()],
            ..Default::default()
        }),
        sample(v1::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: group_snapshot_id(),
            snapshot_ids: vec![snapshot_id()],
            ..Default::default()
        }),
        sample(v1::GetMetadataAllocatedRequest {
            snapshot_id: snapshot_id(),
            starting_offset: 1,
            max_results: 1,
            ..Default::default()
        }),
        sample(v1::GetMetadataDeltaRequest {
            base_snapshot_id: snapshot_id(),
            target_snapshot_id: "csi-conformance-nor-this".into(),
            starting_offset: 1,
            max_results: 1,
            ..Default::default()
        }),
        sample(v1::NodeStageVolumeRequest {
            volume_id: volume_id(),
            staging_target_path: path("staging"),
            volume_capability: capability(),
            volume_context: one("a"),
            publish_context: one("a"),
            ..Default::default()
        }),
        sample(v1::NodeUnstageVolumeRequest { volume_id: volume_id(), staging_target_path: path("staging") }),
        sample(v1::NodePublishVolumeRequest {
            volume_id: volume_id(),
            staging_target_path: path("staging"),
            target_path: path("target"),
            volume_capability: capability(),
            volume_context: one("a"),
            publish_context: one("a"),
            ..Default::default()
        }),
        sample(v1::NodeUnpublishVolumeRequest { volume_id: volume_id(), target_path: path("target") }),
        sample(v1::NodeGetVolumeStatsRequest {
            volume_id: volume_id(),
            volume_path: path("target"),
            ..Default::default()
        }),
        sample(v1::NodeGetVolumeHealthRequest { volume_id: volume_id(), ..Default::default() }),
        sample(v1::NodeGetStorageHealthRequest::default()),
        sample(v1::NodeExpandVolumeRequest {
            volume_id: volume_id(),
            volume_path: path("target"),
            capacity_range: Some(v1::CapacityRange { required_bytes: ctx.settings.size, limit_bytes: 0 }),
            ..Default::default()
        }),
    ]
}

fn sample<C: RpcRequest>(request: C) -> (Rpc, Vec<u8>) {
    (C::RPC, request.encode_to_vec())
}

fn one(key: &str) -> std::collections::BTreeMap<String, String> {
    [(key.to_owned(), "b".to_owned())].into()
}
