//! A driver with one fault: calls are forwarded to the correct driver, changed by the fault.

use std::pin::Pin;
use std::sync::Arc;

use csi_core::client::Client;
use csi_core::{Endpoint, Rpc};
use csi_proto::v1;
use prost::Message;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

/// The bytes of an answer. For a stream, its messages in sequence, each preceded by its length.
pub(crate) type Answer = Result<Vec<u8>, Status>;
/// What a fault does to a call; it can call the correct driver.
pub(crate) type Fault =
    Arc<dyn Fn(Rpc, Vec<u8>, Behind) -> Pin<Box<dyn Future<Output = Answer> + Send>> + Send + Sync>;

/// The correct driver.
#[derive(Clone)]
pub(crate) struct Behind(Client);

#[derive(Clone)]
pub(crate) struct Proxy {
    fault: Fault,
    behind: Behind,
}

/// Decodes a wire message, changes it, and encodes it again.
pub(crate) fn changed<M: Message + Default>(bytes: &[u8], change: impl FnOnce(&mut M)) -> Vec<u8> {
    let mut message = M::decode(bytes).unwrap();
    change(&mut message);
    message.encode_to_vec()
}

/// The same for the messages of a stream.
pub(crate) fn changed_stream<M: Message + Default>(
    bytes: &[u8],
    change: impl FnOnce(&mut Vec<M>),
) -> Vec<u8> {
    let mut messages = taken_apart(bytes);
    change(&mut messages);
    put_together(&messages)
}

fn taken_apart<M: Message + Default>(mut bytes: &[u8]) -> Vec<M> {
    std::iter::from_fn(|| (!bytes.is_empty()).then(|| M::decode_length_delimited(&mut bytes).unwrap()))
        .collect()
}

fn put_together<M: Message>(messages: &[M]) -> Vec<u8> {
    messages.iter().flat_map(Message::encode_length_delimited_to_vec).collect()
}

async fn all_of<M: Message>(stream: Response<tonic::Streaming<M>>) -> Answer {
    let (mut stream, mut messages) = (stream.into_inner(), Vec::new());
    while let Some(message) = stream.message().await? {
        messages.push(message);
    }
    Ok(put_together(&messages))
}

macro_rules! services {
    ($($trait:ident($client:ident) { $($rpc:ident $method:ident $request:ident $answer:ident)+ })+) => {
        $(#[csi_core::async_trait]
        impl $trait for Proxy {
            $(async fn $method(&self, request: Request<v1::$request>) -> Result<Response<v1::$answer>, Status> {
                let bytes = request.into_inner().encode_to_vec();
                let answer = (self.fault)(Rpc::$rpc, bytes, self.behind.clone()).await?;
                Ok(Response::new(v1::$answer::decode(&*answer).unwrap()))
            })+
        })+

        impl Behind {
            pub(crate) async fn call(&self, rpc: Rpc, bytes: Vec<u8>) -> Answer {
                match rpc {
                    $($(Rpc::$rpc => {
                        let request = v1::$request::decode(&*bytes).unwrap();
                        Ok(self.0.$client().$method(request).await?.into_inner().encode_to_vec())
                    })+)+
                    Rpc::GetMetadataAllocated => {
                        let request = v1::GetMetadataAllocatedRequest::decode(&*bytes).unwrap();
                        all_of(self.0.snapshot_metadata().get_metadata_allocated(request).await?).await
                    }
                    Rpc::GetMetadataDelta => {
                        let request = v1::GetMetadataDeltaRequest::decode(&*bytes).unwrap();
                        all_of(self.0.snapshot_metadata().get_metadata_delta(request).await?).await
                    }
                    _ => Err(Status::unimplemented(format!("{rpc} is not known here"))),
                }
            }
        }
    };
}

use v1::controller_server::{Controller, ControllerServer};
use v1::group_controller_server::{GroupController, GroupControllerServer};
use v1::identity_server::{Identity, IdentityServer};
use v1::node_server::{Node, NodeServer};
use v1::snapshot_metadata_server::{SnapshotMetadata, SnapshotMetadataServer};

services! {
    Identity(identity) {
        GetPluginInfo get_plugin_info GetPluginInfoRequest GetPluginInfoResponse
        GetPluginCapabilities get_plugin_capabilities GetPluginCapabilitiesRequest GetPluginCapabilitiesResponse
        Probe probe ProbeRequest ProbeResponse
    }
    Controller(controller) {
        CreateVolume create_volume CreateVolumeRequest CreateVolumeResponse
        DeleteVolume delete_volume DeleteVolumeRequest DeleteVolumeResponse
        ControllerPublishVolume controller_publish_volume ControllerPublishVolumeRequest ControllerPublishVolumeResponse
        ControllerUnpublishVolume controller_unpublish_volume ControllerUnpublishVolumeRequest ControllerUnpublishVolumeResponse
        ValidateVolumeCapabilities validate_volume_capabilities ValidateVolumeCapabilitiesRequest ValidateVolumeCapabilitiesResponse
        ListVolumes list_volumes ListVolumesRequest ListVolumesResponse
        ControllerListVolumeHealth controller_list_volume_health ControllerListVolumeHealthRequest ControllerListVolumeHealthResponse
        ControllerGetVolumeHealth controller_get_volume_health ControllerGetVolumeHealthRequest ControllerGetVolumeHealthResponse
        GetCapacity get_capacity GetCapacityRequest GetCapacityResponse
        ControllerGetCapabilities controller_get_capabilities ControllerGetCapabilitiesRequest ControllerGetCapabilitiesResponse
        CreateSnapshot create_snapshot CreateSnapshotRequest CreateSnapshotResponse
        DeleteSnapshot delete_snapshot DeleteSnapshotRequest DeleteSnapshotResponse
        ListSnapshots list_snapshots ListSnapshotsRequest ListSnapshotsResponse
        GetSnapshot get_snapshot GetSnapshotRequest GetSnapshotResponse
        ControllerExpandVolume controller_expand_volume ControllerExpandVolumeRequest ControllerExpandVolumeResponse
        ControllerGetVolume controller_get_volume ControllerGetVolumeRequest ControllerGetVolumeResponse
        ControllerModifyVolume controller_modify_volume ControllerModifyVolumeRequest ControllerModifyVolumeResponse
    }
    GroupController(group_controller) {
        GroupControllerGetCapabilities group_controller_get_capabilities GroupControllerGetCapabilitiesRequest GroupControllerGetCapabilitiesResponse
        CreateVolumeGroupSnapshot create_volume_group_snapshot CreateVolumeGroupSnapshotRequest CreateVolumeGroupSnapshotResponse
        DeleteVolumeGroupSnapshot delete_volume_group_snapshot DeleteVolumeGroupSnapshotRequest DeleteVolumeGroupSnapshotResponse
        GetVolumeGroupSnapshot get_volume_group_snapshot GetVolumeGroupSnapshotRequest GetVolumeGroupSnapshotResponse
    }
    Node(node) {
        NodeStageVolume node_stage_volume NodeStageVolumeRequest NodeStageVolumeResponse
        NodeUnstageVolume node_unstage_volume NodeUnstageVolumeRequest NodeUnstageVolumeResponse
        NodePublishVolume node_publish_volume NodePublishVolumeRequest NodePublishVolumeResponse
        NodeUnpublishVolume node_unpublish_volume NodeUnpublishVolumeRequest NodeUnpublishVolumeResponse
        NodeGetVolumeStats node_get_volume_stats NodeGetVolumeStatsRequest NodeGetVolumeStatsResponse
        NodeGetVolumeHealth node_get_volume_health NodeGetVolumeHealthRequest NodeGetVolumeHealthResponse
        NodeGetStorageHealth node_get_storage_health NodeGetStorageHealthRequest NodeGetStorageHealthResponse
        NodeExpandVolume node_expand_volume NodeExpandVolumeRequest NodeExpandVolumeResponse
        NodeGetCapabilities node_get_capabilities NodeGetCapabilitiesRequest NodeGetCapabilitiesResponse
        NodeGetInfo node_get_info NodeGetInfoRequest NodeGetInfoResponse
    }
}

type Messages<M> = tokio_stream::Iter<std::vec::IntoIter<Result<M, Status>>>;

impl Proxy {
    async fn stream<M: Message + Default>(
        &self,
        rpc: Rpc,
        bytes: Vec<u8>,
    ) -> Result<Response<Messages<M>>, Status> {
        let answer = (self.fault)(rpc, bytes, self.behind.clone()).await?;
        let messages: Vec<_> = taken_apart::<M>(&answer).into_iter().map(Ok).collect();
        Ok(Response::new(tokio_stream::iter(messages)))
    }
}

#[csi_core::async_trait]
impl SnapshotMetadata for Proxy {
    type GetMetadataAllocatedStream = Messages<v1::GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = Messages<v1::GetMetadataDeltaResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<v1::GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        self.stream(Rpc::GetMetadataAllocated, request.into_inner().encode_to_vec()).await
    }

    async fn get_metadata_delta(
        &self,
        request: Request<v1::GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        self.stream(Rpc::GetMetadataDelta, request.into_inner().encode_to_vec()).await
    }
}

/// Serves the faulty driver at `endpoint` until `work` ends. The correct driver serves at `behind`.
pub(crate) async fn with_fault<T>(
    fault: Fault,
    endpoint: &Endpoint,
    behind: &Endpoint,
    work: impl Future<Output = T>,
) -> T {
    let proxy = Proxy { fault, behind: Behind(Client::new(behind)) };
    let listener = tokio::net::UnixListener::bind(endpoint.path()).unwrap();
    let server = tonic::transport::Server::builder()
        .add_service(IdentityServer::new(proxy.clone()))
        .add_service(ControllerServer::new(proxy.clone()))
        .add_service(GroupControllerServer::new(proxy.clone()))
        .add_service(SnapshotMetadataServer::new(proxy.clone()))
        .add_service(NodeServer::new(proxy))
        .serve_with_incoming(UnixListenerStream::new(listener));
    let server = tokio::spawn(server);
    let result = work.await;
    server.abort();
    result
}
