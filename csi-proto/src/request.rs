//! Each request with its RPC and the type of its answer, so that one function can make any call.

use std::collections::BTreeMap;

use prost::Message;

use crate::undo::{self, Undo};
use crate::{Rpc, v1};

/// A request of the spec, by its message type: it knows its RPC and its answer.
///
/// ```
/// use csi_proto::{Rpc, RpcRequest, v1};
///
/// /// What a program says before it makes any call.
/// fn announced<R: RpcRequest>(request: &R) -> String {
///     format!("{}: {} bytes", R::RPC, request.encoded_len())
/// }
///
/// let request = v1::DeleteVolumeRequest { volume_id: "v".into(), ..Default::default() };
/// assert_eq!(announced(&request), "DeleteVolume: 3 bytes");
/// ```
pub trait RpcRequest:
    RequestParts<Answered = <Self as RpcRequest>::Answer> + Message + Default + Clone + PartialEq + 'static
{
    /// The message that answers the request. If the RPC answers with a stream, this is one message of it.
    type Answer: Message + Default + Clone + PartialEq + 'static;
    /// The RPC.
    const RPC: Rpc;
}

/// What the toolkit's own crates do with a request of any RPC.
pub trait RequestParts {
    /// [`RpcRequest::Answer`].
    type Answered;

    /// Returns the field for secrets; `None` if the request has none.
    fn secrets_mut(&mut self) -> Option<&mut BTreeMap<String, String>> {
        None
    }

    /// Returns what undoes the call; `None` if it begins nothing. Without the answer, a created volume or
    /// snapshot has to be found first.
    fn undo(&self, _answer: Option<&Self::Answered>) -> Option<Undo> {
        None
    }

    /// Returns the request as what it undoes, without its secrets; `None` if it undoes nothing.
    fn as_undo(&self) -> Option<Undo> {
        None
    }
}

macro_rules! requests {
    ($($rpc:ident $request:ident $answer:ident $(, $secrets:ident)? $(=> $undo:path)? $(as $variant:ident)?;)+) => {
        $(impl RpcRequest for v1::$request {
            type Answer = v1::$answer;
            const RPC: Rpc = Rpc::$rpc;
        }

        impl RequestParts for v1::$request {
            type Answered = v1::$answer;
            $(fn secrets_mut(&mut self) -> Option<&mut BTreeMap<String, String>> {
                Some(&mut self.$secrets)
            })?
            $(fn undo(&self, answer: Option<&Self::Answered>) -> Option<Undo> {
                Some($undo(self, answer))
            })?
            $(fn as_undo(&self) -> Option<Undo> {
                let mut request = self.clone();
                if let Some(secrets) = request.secrets_mut() {
                    secrets.clear();
                }
                Some(Undo::$variant(request))
            })?
        })+

        /// The RPCs of all requests, and whether the request has a field for secrets.
        #[cfg(test)]
        fn table() -> Vec<(Rpc, bool)> {
            vec![$((Rpc::$rpc, v1::$request::default().secrets_mut().is_some())),+]
        }
    };
}

requests! {
    GetPluginInfo GetPluginInfoRequest GetPluginInfoResponse;
    GetPluginCapabilities GetPluginCapabilitiesRequest GetPluginCapabilitiesResponse;
    Probe ProbeRequest ProbeResponse;
    CreateVolume CreateVolumeRequest CreateVolumeResponse, secrets => undo::created_volume;
    DeleteVolume DeleteVolumeRequest DeleteVolumeResponse, secrets as DeleteVolume;
    ControllerPublishVolume ControllerPublishVolumeRequest ControllerPublishVolumeResponse, secrets => undo::attached;
    ControllerUnpublishVolume ControllerUnpublishVolumeRequest ControllerUnpublishVolumeResponse, secrets as Detach;
    ValidateVolumeCapabilities ValidateVolumeCapabilitiesRequest ValidateVolumeCapabilitiesResponse, secrets;
    ListVolumes ListVolumesRequest ListVolumesResponse;
    ControllerListVolumeHealth ControllerListVolumeHealthRequest ControllerListVolumeHealthResponse, secrets;
    ControllerGetVolumeHealth ControllerGetVolumeHealthRequest ControllerGetVolumeHealthResponse, secrets;
    GetCapacity GetCapacityRequest GetCapacityResponse;
    ControllerGetCapabilities ControllerGetCapabilitiesRequest ControllerGetCapabilitiesResponse;
    CreateSnapshot CreateSnapshotRequest CreateSnapshotResponse, secrets => undo::created_snapshot;
    DeleteSnapshot DeleteSnapshotRequest DeleteSnapshotResponse, secrets as DeleteSnapshot;
    ListSnapshots ListSnapshotsRequest ListSnapshotsResponse, secrets;
    GetSnapshot GetSnapshotRequest GetSnapshotResponse, secrets;
    ControllerExpandVolume ControllerExpandVolumeRequest ControllerExpandVolumeResponse, secrets;
    ControllerGetVolume ControllerGetVolumeRequest ControllerGetVolumeResponse;
    ControllerModifyVolume ControllerModifyVolumeRequest ControllerModifyVolumeResponse, secrets;
    GroupControllerGetCapabilities GroupControllerGetCapabilitiesRequest GroupControllerGetCapabilitiesResponse;
    CreateVolumeGroupSnapshot CreateVolumeGroupSnapshotRequest CreateVolumeGroupSnapshotResponse, secrets;
    DeleteVolumeGroupSnapshot DeleteVolumeGroupSnapshotRequest DeleteVolumeGroupSnapshotResponse, secrets;
    GetVolumeGroupSnapshot GetVolumeGroupSnapshotRequest GetVolumeGroupSnapshotResponse, secrets;
    GetMetadataAllocated GetMetadataAllocatedRequest GetMetadataAllocatedResponse, secrets;
    GetMetadataDelta GetMetadataDeltaRequest GetMetadataDeltaResponse, secrets;
    NodeStageVolume NodeStageVolumeRequest NodeStageVolumeResponse, secrets => undo::staged;
    NodeUnstageVolume NodeUnstageVolumeRequest NodeUnstageVolumeResponse as Unstage;
    NodePublishVolume NodePublishVolumeRequest NodePublishVolumeResponse, secrets => undo::published;
    NodeUnpublishVolume NodeUnpublishVolumeRequest NodeUnpublishVolumeResponse as Unpublish;
    NodeGetVolumeStats NodeGetVolumeStatsRequest NodeGetVolumeStatsResponse;
    NodeGetVolumeHealth NodeGetVolumeHealthRequest NodeGetVolumeHealthResponse;
    NodeGetStorageHealth NodeGetStorageHealthRequest NodeGetStorageHealthResponse, secrets;
    NodeExpandVolume NodeExpandVolumeRequest NodeExpandVolumeResponse, secrets;
    NodeGetCapabilities NodeGetCapabilitiesRequest NodeGetCapabilitiesResponse;
    NodeGetInfo NodeGetInfoRequest NodeGetInfoResponse;
}

#[cfg(test)]
mod tests {
    use prost_reflect::DescriptorPool;

    use super::*;

    #[test]
    fn every_rpc_has_its_request_and_its_secrets() {
        let pool = DescriptorPool::decode(crate::FILE_DESCRIPTOR_SET).unwrap();
        let is_secret = pool.get_extension_by_name("csi.v1.csi_secret").unwrap();
        let mut due = Vec::new();
        for service in pool.services().filter(|service| service.package_name() == "csi.v1") {
            for method in service.methods() {
                let rpc = Rpc::ALL.iter().copied().find(|rpc| rpc.name() == method.name()).unwrap();
                let input = method.input();
                let has_secrets = input.fields().any(|field| field.options().has_extension(&is_secret));
                due.push((rpc, has_secrets));
            }
        }
        let mut found = table();
        due.sort();
        found.sort();
        assert_eq!(found, due);
    }
}
