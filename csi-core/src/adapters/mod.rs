//! The five services of the wire, as a table: each RPC with its request, the capability that it needs, and
//! the method that serves it. [`CallPath`] does the rest for all RPCs.
//!
//! [`Core`] is a plugin as it is served, [`Adapter`] implements the five services on it. It imports the
//! services and the call path.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use csi_proto::{Rpc, Service, v1};
use tonic::{Request, Response, Status};

use crate::call::{self, Call, CallPath, Reply, Sent};
use crate::controller::*;
use crate::error::{Error, Result};
use crate::group_controller::*;
use crate::identity::{GetPluginCapabilitiesRequest, GetPluginInfoRequest, Identity, ProbeRequest};
use crate::mode::Mode;
use crate::node::*;
use crate::snapshot_metadata::*;

/// How long the start waits for this node's id and topology.
const NODE_INFO_LIMIT: Duration = Duration::from_secs(5);

/// A plugin as it is served.
pub(crate) struct Core {
    pub(crate) path: CallPath,
    pub(crate) info: v1::GetPluginInfoResponse,
    pub(crate) identity: Arc<dyn Identity>,
    pub(crate) controller: Option<ControllerTable>,
    pub(crate) node: Option<NodeTable>,
    pub(crate) group_controller: Option<Arc<dyn GroupController>>,
    pub(crate) snapshot_metadata: Option<Arc<dyn SnapshotMetadata>>,
    pub(crate) mode: Mode,
}

impl Core {
    #[cfg(any(feature = "grpc-health", feature = "grpc-reflection"))]
    pub(crate) fn serves(&self, service: Service) -> bool {
        let is_registered = match service {
            Service::Identity => true,
            Service::Controller => self.controller.is_some(),
            Service::GroupController => self.group_controller.is_some(),
            Service::SnapshotMetadata => self.snapshot_metadata.is_some(),
            Service::Node => self.node.is_some(),
            _ => false,
        };
        is_registered && self.mode.serves(service)
    }

    /// The table of a service, or the reason why it is not served here.
    fn table<'a, T>(&self, service: Service, table: &'a Option<T>) -> Result<&'a T> {
        if !self.mode.serves(service) {
            let mode = self.mode;
            return Err(Error::Unimplemented(
                format!("the {service} service is not served in mode {mode}").into(),
            ));
        }
        table
            .as_ref()
            .ok_or_else(|| Error::Unimplemented(format!("the driver has no {service} service").into()))
    }

    fn identity(&self) -> Result<&Self> {
        Ok(self)
    }

    fn controller(&self) -> Result<&ControllerTable> {
        self.table(Service::Controller, &self.controller)
    }

    fn group_controller(&self) -> Result<&Arc<dyn GroupController>> {
        self.table(Service::GroupController, &self.group_controller)
    }

    fn snapshot_metadata(&self) -> Result<&Arc<dyn SnapshotMetadata>> {
        self.table(Service::SnapshotMetadata, &self.snapshot_metadata)
    }

    fn node(&self) -> Result<&NodeTable> {
        self.table(Service::Node, &self.node)
    }

    /// Asks the driver for this node's id and topology, before it serves. If they can't be read yet, which is
    /// not a mistake in the configuration, NodeGetInfo will report that.
    ///
    /// # Errors
    /// What NodeGetInfo could never return: the rule, and what breaks it.
    pub(crate) async fn check_node_info(&self) -> Result<(), String> {
        let Ok(table) = self.node() else { return Ok(()) };
        let node = Arc::clone(&table.node);
        let mut asked = tokio::spawn(async move { node.info().await });
        let Ok(Ok(info)) = tokio::time::timeout(NODE_INFO_LIMIT, &mut asked).await else {
            asked.abort();
            tracing::info!(
                "starts without a check of the node's id and topology, which the driver can't read yet"
            );
            return Ok(());
        };
        let checked = match info {
            Ok(info) => {
                NodeGetInfoRequest::reply(info, &v1::NodeGetInfoRequest {}, self.path.offer()).map(drop)
            }
            Err(Error::InvalidArgument { field, reason }) if field == "node_id" => {
                Err(Error::InvalidArgument { field, reason })
            }
            Err(_) => Ok(()),
        };
        checked.map_err(|error| format!("this node can't be served, change its id or topology: {error}"))
    }
}

// spec: services.unsupported-is-unimplemented
fn not_offered(rpc: Rpc) -> Error {
    Error::Unimplemented(format!("the driver does not offer {rpc}").into())
}

/// All services of the wire, for one plugin.
// spec: services.identity-everywhere, endpoint.all-services
#[derive(Clone)]
pub(crate) struct Adapter(pub(crate) Arc<Core>);

/// `method: Request = its part of the service's table => what that part does with the request`.
macro_rules! serve {
    ($server:path, $table:ident: $table_type:ty;
        $($method:ident: $request:ident = $part:expr => |$driver:pat_param, $arg:pat_param| $body:expr;)*
        $(@streams
        $($stream:ident $stream_type:ident: $asked:ident = |$source:pat_param, $ask:pat_param| $open:expr;)*)?
    ) => {
        #[tonic::async_trait]
        impl $server for Adapter {
            $(async fn $method(&self, request: Request<v1::$request>) -> Result<Response<Reply<$request>>, Status> {
                let part = self.0.$table().and_then(|table| {
                    let part: fn(&$table_type) -> Option<_> = $part;
                    part(table).ok_or_else(|| not_offered(<$request as call::request::Request>::RPC))
                });
                let handler = part.map(|$driver| move |$arg: $request| async move { $body });
                self.0.path.call::<$request, _>(request, handler).await
            })*
            $($(
            type $stream_type = Sent<Reply<$asked>>;

            async fn $stream(&self, request: Request<v1::$asked>) -> Result<Response<Self::$stream_type>, Status> {
                let part = self.0.$table().cloned();
                let handler = part.map(|$source| move |$ask: $asked| async move { $open });
                self.0.path.stream::<$asked, _>(request, handler).await
            })*)?
        }
    };
}

serve!(v1::identity_server::Identity, identity: Core;
    get_plugin_info: GetPluginInfoRequest = |core| Some(core.info.clone()) => |info, _| Ok(info);
    get_plugin_capabilities: GetPluginCapabilitiesRequest = |_| Some(()) => |(), _| Ok(());
    probe: ProbeRequest = |core| Some(core.identity.clone()) => |identity, _| identity.probe().await;
);

serve!(v1::controller_server::Controller, controller: ControllerTable;
    create_volume: CreateVolumeRequest =
        |table| table.create_delete_volume.clone() => |driver, request| {
            check_supported(|one| driver.supports(one), &request.volume_capabilities)?;
            driver.create_volume(request).await
        };
    delete_volume: DeleteVolumeRequest =
        |table| table.create_delete_volume.clone() => |driver, request| {
            // A volume that does not exist counts as deleted, so that no driver has to check it.
            match driver.lookup_with_secrets(&request.volume_id, &request.secrets).await? {
                Some(_) => driver.delete_volume(request).await,
                None => Ok(()),
            }
        };
    controller_publish_volume: ControllerPublishVolumeRequest =
        |table| table.publish_unpublish_volume.clone() => |driver, request| driver.publish_volume(request).await;
    controller_unpublish_volume: ControllerUnpublishVolumeRequest =
        |table| table.publish_unpublish_volume.clone() => |driver, request| driver.unpublish_volume(request).await;
    validate_volume_capabilities: ValidateVolumeCapabilitiesRequest =
        |table| Some((table.controller.clone(), table.offered.clone())) => |(driver, offered), request|
            request.answer(&*driver, &offered).await;
    list_volumes: ListVolumesRequest =
        |table| table.list_volumes.clone().map(|driver| (driver, table.conditions.clone()))
            => |(driver, conditions), request| {
                let plugin = request.plugin().cloned();
                conditions.add_to_page(driver.list_volumes(request).await?, plugin).await
            };
    controller_list_volume_health: ControllerListVolumeHealthRequest =
        |table| table.list_volume_health.clone() => |driver, request| driver.list_volume_health(request).await;
    controller_get_volume_health: ControllerGetVolumeHealthRequest =
        |table| table.get_volume_health.clone() => |driver, request| driver.volume_health(request).await;
    get_capacity: GetCapacityRequest =
        |table| table.get_capacity.clone() => |driver, request| driver.capacity(request).await;
    controller_get_capabilities: ControllerGetCapabilitiesRequest = |_| Some(()) => |(), _| Ok(());
    create_snapshot: CreateSnapshotRequest =
        |table| table.create_delete_snapshot.clone() => |driver, request| driver.create_snapshot(request).await;
    delete_snapshot: DeleteSnapshotRequest =
        |table| table.create_delete_snapshot.clone() => |driver, request| driver.delete_snapshot(request).await;
    list_snapshots: ListSnapshotsRequest =
        |table| table.list_snapshots.clone() => |driver, request| driver.list_snapshots(request).await;
    get_snapshot: GetSnapshotRequest =
        |table| table.get_snapshot.clone() => |driver, request| driver.get_snapshot(request).await;
    controller_expand_volume: ControllerExpandVolumeRequest =
        |table| table.expand_volume.clone() => |driver, request| {
            // spec: controller-expand-volume.missing
            match driver.lookup_with_secrets(&request.volume_id, &request.secrets).await? {
                Some(_) => driver.expand_volume(request).await,
                None => Err(Error::VolumeNotFound(request.volume_id)),
            }
        };
    controller_get_volume: ControllerGetVolumeRequest =
        |table| table.get_volume.clone().map(|driver| (driver, table.conditions.clone()))
            => |(driver, conditions), request| {
                let plugin = request.plugin().cloned();
                conditions.add_to_volume(driver.get_volume(request).await?, plugin).await
            };
    controller_modify_volume: ControllerModifyVolumeRequest =
        |table| table.modify_volume.clone() => |driver, request| request.answer(&*driver).await;
);

serve!(v1::group_controller_server::GroupController, group_controller: Arc<dyn GroupController>;
    group_controller_get_capabilities: GroupControllerGetCapabilitiesRequest = |_| Some(()) => |(), _| Ok(());
    create_volume_group_snapshot: CreateVolumeGroupSnapshotRequest =
        |driver| Some(driver.clone()) => |driver, request| driver.create_volume_group_snapshot(request).await;
    delete_volume_group_snapshot: DeleteVolumeGroupSnapshotRequest =
        |driver| Some(driver.clone()) => |driver, request| request.answer(&*driver).await;
    get_volume_group_snapshot: GetVolumeGroupSnapshotRequest =
        |driver| Some(driver.clone()) => |driver, request| driver.volume_group_snapshot(request).await;
);

serve!(v1::snapshot_metadata_server::SnapshotMetadata, snapshot_metadata: Arc<dyn SnapshotMetadata>;
    @streams
    get_metadata_allocated GetMetadataAllocatedStream:
        GetMetadataAllocatedRequest =
        |driver, request| driver.metadata_allocated(request).await;
    get_metadata_delta GetMetadataDeltaStream: GetMetadataDeltaRequest =
        |driver, request| driver.metadata_delta(request).await;
);

serve!(v1::node_server::Node, node: NodeTable;
    node_stage_volume: NodeStageVolumeRequest =
        |table| table.stage_unstage_volume.clone() => |driver, request| driver.stage_volume(request).await;
    node_unstage_volume: NodeUnstageVolumeRequest =
        |table| table.stage_unstage_volume.clone() => |driver, request| driver.unstage_volume(request).await;
    node_publish_volume: NodePublishVolumeRequest =
        |table| Some((table.node.clone(), table.rule(), table.one_at_a_time.clone()))
            => |(driver, rule, one_at_a_time), request| request.answer(&*driver, rule, &one_at_a_time).await;
    node_unpublish_volume: NodeUnpublishVolumeRequest =
        |table| Some(table.node.clone()) => |driver, request| driver.unpublish_volume(request).await;
    node_get_volume_stats: NodeGetVolumeStatsRequest =
        |table| table.get_volume_stats.clone().map(|driver| (driver, table.condition.clone()))
            => |(driver, health), request| request.answer(&*driver, health).await;
    node_get_volume_health: NodeGetVolumeHealthRequest =
        |table| table.get_volume_health.clone() => |driver, request| driver.volume_health(request).await;
    node_get_storage_health: NodeGetStorageHealthRequest =
        |table| table.get_storage_health.clone() => |driver, request| driver.storage_health(request).await;
    node_expand_volume: NodeExpandVolumeRequest =
        |table| table.expand_volume.clone() => |driver, request| driver.expand_volume(request).await;
    node_get_capabilities: NodeGetCapabilitiesRequest = |_| Some(()) => |(), _| Ok(());
    node_get_info: NodeGetInfoRequest = |table| Some(table.node.clone()) => |driver, _| driver.info().await;
);
