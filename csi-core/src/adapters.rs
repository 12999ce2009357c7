//! The five services of the wire, as a table: each RPC with its request, the capability that it needs, and the
//! method that serves it. [`CallPath::call`] does the rest, for all of them alike.

use std::sync::Arc;

use csi_proto::v1;
use tonic::{Request, Response, Status};

use crate::call::{Call, CallPath};
use crate::controller::{
    ControllerExpandVolumeRequest, ControllerGetCapabilitiesRequest, ControllerPublishVolumeRequest,
    ControllerTable, ControllerUnpublishVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest,
    ValidateVolumeCapabilitiesRequest, check_supported,
};
use crate::identity::{GetPluginCapabilitiesRequest, GetPluginInfoRequest, Identity, ProbeRequest};
use crate::node::{
    NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeTable, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest,
};
use crate::plugin::Mode;
use crate::{Error, Result, Rpc, Service};

/// A plugin as it is served.
pub(crate) struct Core {
    pub(crate) path: CallPath,
    pub(crate) info: v1::GetPluginInfoResponse,
    pub(crate) identity: Arc<dyn Identity>,
    pub(crate) controller: Option<ControllerTable>,
    pub(crate) node: Option<NodeTable>,
    pub(crate) mode: Mode,
}

impl Core {
    /// The table of a service, or why it is not served here.
    fn table<'a, T>(&self, service: Service, table: &'a Option<T>) -> Result<&'a T> {
        if !self.mode.serves(service) {
            let mode = self.mode;
            return Err(Error::Unimplemented(format!("the {service} service is not served in mode {mode}")));
        }
        table.as_ref().ok_or_else(|| Error::Unimplemented(format!("the driver has no {service} service")))
    }

    fn identity(&self) -> Result<&Self> {
        Ok(self)
    }

    fn controller(&self) -> Result<&ControllerTable> {
        self.table(Service::Controller, &self.controller)
    }

    fn node(&self) -> Result<&NodeTable> {
        self.table(Service::Node, &self.node)
    }
}

fn not_offered(rpc: Rpc) -> Error {
    Error::Unimplemented(format!("the driver does not offer {rpc}"))
}

/// All services of the wire, on one plugin.
#[derive(Clone)]
pub(crate) struct Adapter(pub(crate) Arc<Core>);

/// `method: Request -> Reply = the service's table, the driver's part in it => what that does with the request`.
/// What stands under `declared` has a trait and types, and is served by nothing yet.
macro_rules! serve {
    ($server:path;
        $(unary { $($method:ident: $request:ident -> $reply:ident =
            $table:ident, $part:expr => |$driver:pat_param, $arg:pat_param| $body:expr;)* })?
        $(declared { $($rpc:ident $declared:ident: $wire:ident -> $answer:ident;)* })?
        $(streams { $($stream_rpc:ident $stream:ident $stream_type:ident: $stream_wire:ident -> $item:ident;)* })?
    ) => {
        #[tonic::async_trait]
        impl $server for Adapter {
            $($(async fn $method(&self, request: Request<v1::$request>) -> Result<Response<v1::$reply>, Status> {
                let part = self.0.$table().and_then(|table| {
                    #[allow(clippy::redundant_closure_call, reason = "the table's rows are closures")]
                    ($part)(table).ok_or_else(|| not_offered(<$request as Call>::RPC))
                });
                let handler = part.map(|$driver| move |$arg: $request| async move { $body });
                self.0.path.call::<$request, _>(request, handler).await
            })*)?
            $($(async fn $declared(&self, _: Request<v1::$wire>) -> Result<Response<v1::$answer>, Status> {
                Err(not_offered(Rpc::$rpc).status(Rpc::$rpc))
            })*)?
            $($(
            type $stream_type = tokio_stream::Empty<Result<v1::$item, Status>>;

            async fn $stream(
                &self,
                _: Request<v1::$stream_wire>,
            ) -> Result<Response<Self::$stream_type>, Status> {
                Err(not_offered(Rpc::$stream_rpc).status(Rpc::$stream_rpc))
            })*)?
        }
    };
}

serve!(v1::identity_server::Identity;
    unary {
    get_plugin_info: GetPluginInfoRequest -> GetPluginInfoResponse =
        identity, |core: &Core| Some(core.info.clone()) => |info, _| Ok(info);
    get_plugin_capabilities: GetPluginCapabilitiesRequest -> GetPluginCapabilitiesResponse =
        identity, |_| Some(()) => |(), _| Ok(());
    probe: ProbeRequest -> ProbeResponse =
        identity, |core: &Core| Some(core.identity.clone()) => |identity, _| identity.probe().await;
    }
);

serve!(v1::controller_server::Controller;
    unary {
    create_volume: CreateVolumeRequest -> CreateVolumeResponse =
        controller, |table: &ControllerTable| table.create_delete_volume.clone() => |driver, request| {
            check_supported(&*driver, &request.volume_capabilities)?;
            driver.create_volume(request).await
        };
    delete_volume: DeleteVolumeRequest -> DeleteVolumeResponse =
        controller, |table: &ControllerTable| table.create_delete_volume.clone() => |driver, request| {
            // Not there is deleted already; a driver need not say so again.
            match driver.lookup(&request.volume_id).await? {
                Some(_) => driver.delete_volume(request).await,
                None => Ok(()),
            }
        };
    controller_publish_volume: ControllerPublishVolumeRequest -> ControllerPublishVolumeResponse =
        controller, |table: &ControllerTable| table.publish_unpublish_volume.clone() => |driver, request|
            driver.publish_volume(request).await;
    controller_unpublish_volume: ControllerUnpublishVolumeRequest -> ControllerUnpublishVolumeResponse =
        controller, |table: &ControllerTable| table.publish_unpublish_volume.clone() => |driver, request|
            driver.unpublish_volume(request).await;
    validate_volume_capabilities: ValidateVolumeCapabilitiesRequest -> ValidateVolumeCapabilitiesResponse =
        controller, |table: &ControllerTable| Some(table.controller.clone()) => |driver, request|
            request.answer(&*driver).await;
    controller_get_capabilities: ControllerGetCapabilitiesRequest -> ControllerGetCapabilitiesResponse =
        controller, |_| Some(()) => |(), _| Ok(());
    controller_expand_volume: ControllerExpandVolumeRequest -> ControllerExpandVolumeResponse =
        controller, |table: &ControllerTable| table.expand_volume.clone() => |driver, request|
            driver.expand_volume(request).await;
    }
    declared {
        ListVolumes list_volumes: ListVolumesRequest -> ListVolumesResponse;
        ControllerListVolumeHealth controller_list_volume_health:
            ControllerListVolumeHealthRequest -> ControllerListVolumeHealthResponse;
        ControllerGetVolumeHealth controller_get_volume_health:
            ControllerGetVolumeHealthRequest -> ControllerGetVolumeHealthResponse;
        GetCapacity get_capacity: GetCapacityRequest -> GetCapacityResponse;
        CreateSnapshot create_snapshot: CreateSnapshotRequest -> CreateSnapshotResponse;
        DeleteSnapshot delete_snapshot: DeleteSnapshotRequest -> DeleteSnapshotResponse;
        ListSnapshots list_snapshots: ListSnapshotsRequest -> ListSnapshotsResponse;
        GetSnapshot get_snapshot: GetSnapshotRequest -> GetSnapshotResponse;
        ControllerGetVolume controller_get_volume: ControllerGetVolumeRequest -> ControllerGetVolumeResponse;
        ControllerModifyVolume controller_modify_volume:
            ControllerModifyVolumeRequest -> ControllerModifyVolumeResponse;
    }
);

serve!(v1::group_controller_server::GroupController;
    declared {
        GroupControllerGetCapabilities group_controller_get_capabilities:
            GroupControllerGetCapabilitiesRequest -> GroupControllerGetCapabilitiesResponse;
        CreateVolumeGroupSnapshot create_volume_group_snapshot:
            CreateVolumeGroupSnapshotRequest -> CreateVolumeGroupSnapshotResponse;
        DeleteVolumeGroupSnapshot delete_volume_group_snapshot:
            DeleteVolumeGroupSnapshotRequest -> DeleteVolumeGroupSnapshotResponse;
        GetVolumeGroupSnapshot get_volume_group_snapshot:
            GetVolumeGroupSnapshotRequest -> GetVolumeGroupSnapshotResponse;
    }
);

serve!(v1::snapshot_metadata_server::SnapshotMetadata;
    streams {
        GetMetadataAllocated get_metadata_allocated GetMetadataAllocatedStream:
            GetMetadataAllocatedRequest -> GetMetadataAllocatedResponse;
        GetMetadataDelta get_metadata_delta GetMetadataDeltaStream:
            GetMetadataDeltaRequest -> GetMetadataDeltaResponse;
    }
);

serve!(v1::node_server::Node;
    unary {
    node_stage_volume: NodeStageVolumeRequest -> NodeStageVolumeResponse =
        node, |table: &NodeTable| table.stage_unstage_volume.clone() => |driver, request|
            driver.stage_volume(request).await;
    node_unstage_volume: NodeUnstageVolumeRequest -> NodeUnstageVolumeResponse =
        node, |table: &NodeTable| table.stage_unstage_volume.clone() => |driver, request|
            driver.unstage_volume(request).await;
    node_publish_volume: NodePublishVolumeRequest -> NodePublishVolumeResponse =
        node, |table: &NodeTable| Some(table.node.clone()) => |driver, request|
            driver.publish_volume(request).await;
    node_unpublish_volume: NodeUnpublishVolumeRequest -> NodeUnpublishVolumeResponse =
        node, |table: &NodeTable| Some(table.node.clone()) => |driver, request|
            driver.unpublish_volume(request).await;
    node_get_volume_stats: NodeGetVolumeStatsRequest -> NodeGetVolumeStatsResponse =
        node, |table: &NodeTable| table.volume_stats.clone() => |driver, request|
            driver.volume_stats(request).await;
    node_expand_volume: NodeExpandVolumeRequest -> NodeExpandVolumeResponse =
        node, |table: &NodeTable| table.expand_volume.clone() => |driver, request|
            driver.expand_volume(request).await;
    node_get_capabilities: NodeGetCapabilitiesRequest -> NodeGetCapabilitiesResponse =
        node, |_| Some(()) => |(), _| Ok(());
    node_get_info: NodeGetInfoRequest -> NodeGetInfoResponse =
        node, |table: &NodeTable| Some(table.node.clone()) => |driver, _| driver.info().await;
    }
    declared {
        NodeGetVolumeHealth node_get_volume_health: NodeGetVolumeHealthRequest -> NodeGetVolumeHealthResponse;
        NodeGetStorageHealth node_get_storage_health: NodeGetStorageHealthRequest -> NodeGetStorageHealthResponse;
    }
);
