//! The Controller service: volumes as the storage system has them.
//!
//! [`Controller`] is what every controller has; each optional capability is a trait of its own, named as the spec
//! names it, and registered with [`ControllerService`]. What drivers write around them is here too: pages
//! ([`Pager`]), the check of a repeated CreateVolume ([`CreateRecord`]), the count of a node's volumes
//! ([`AttachLimit`]).
//!
//! It imports the path of a call and what lies below that, and no other service.

mod attach_limit;
mod condition;
mod create_record;
mod expand;
mod health;
mod list;
mod modify;
mod page;
mod pager;
mod publish;
mod service;
mod snapshot;
mod volume;

use std::collections::BTreeSet;

use async_trait::async_trait;
use csi_proto::v1;

pub use attach_limit::{AttachLimit, Reservation};
pub use create_record::CreateRecord;
pub use expand::{ControllerExpandVolumeRequest, ExpandVolume, Expanded};
pub use health::{
    ControllerGetVolumeHealthRequest, ControllerListVolumeHealthRequest, GetVolumeHealth, ListVolumeHealth,
};
pub use list::{
    Capacity, ControllerGetVolumeRequest, GetCapacity, GetCapacityRequest, GetVolume, ListVolumes,
    ListVolumesRequest, VolumeListing,
};
pub use modify::{ControllerModifyVolumeRequest, ModifyVolume};
pub use page::Page;
pub use pager::Pager;
pub use publish::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, PublishUnpublishVolume, Published,
};
pub use service::ControllerService;
pub(crate) use service::ControllerTable;
pub use snapshot::{
    CreateDeleteSnapshot, CreateSnapshotRequest, DeleteSnapshotRequest, GetSnapshot, GetSnapshotRequest,
    ListSnapshots, ListSnapshotsRequest,
};
pub(crate) use volume::check_supported;
pub use volume::{CreateDeleteVolume, CreateVolumeRequest, DeleteVolumeRequest};

use crate::call::Call;
use crate::call::request::{question, request};
use crate::offer::{ControllerCapability, Offer};
use crate::types::health::shortened;
use crate::{
    Error, Parameters, Result, Rpc, Secrets, Volume, VolumeCapabilities, VolumeCapability, VolumeContext,
    VolumeId,
};

/// What every controller has. Spec: "Controller Service RPC".
#[async_trait]
pub trait Controller: Send + Sync + 'static {
    /// The volume that has this id, or `None` when there is none.
    ///
    /// From it the framework answers ValidateVolumeCapabilities, and knows what needs no deleting. An id that this
    /// driver can't have given is a volume that does not exist.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`], which is as good as `None`; and whatever keeps the driver from knowing: "can't
    /// tell" must never come out as "is not there".
    async fn lookup(&self, volume_id: &VolumeId) -> Result<Option<Volume>>;

    /// Whether this driver's volumes can be used in this way: block or mounted, by whom at once, with which
    /// filesystem.
    ///
    /// Asked for every capability in CreateVolume (what is not supported is INVALID_ARGUMENT, by index) and in
    /// ValidateVolumeCapabilities (what is not supported is not confirmed).
    ///
    /// - spec: `create-volume.all-capabilities`, `validate-volume-capabilities.all-or-none`
    fn supports(&self, capability: &VolumeCapability) -> bool;

    /// Whether this volume can be used in this way, for drivers with several kinds of volumes, not all of which do all
    /// that [`supports`](Self::supports) says.
    ///
    /// Asked in ValidateVolumeCapabilities, about the volume that [`lookup`](Self::lookup) found. What CreateVolume can't
    /// make, it refuses itself.
    ///
    /// - spec: `validate-volume-capabilities.all-or-none`
    fn volume_supports(&self, _volume: &Volume, capability: &VolumeCapability) -> bool {
        self.supports(capability)
    }
}

request! {
    /// ValidateVolumeCapabilities, which the framework answers from [`Controller::lookup`] and
    /// [`Controller::supports`].
    ValidateVolumeCapabilitiesRequest {
        /// The volume.
        volume_id: VolumeId,
        /// What CreateVolume said of it.
        volume_context: VolumeContext,
        /// The ways in which it is to be used; all of them have to be supported.
        volume_capabilities: VolumeCapabilities,
        /// The parameters that it was created with.
        parameters: Parameters,
        /// Credentials.
        secrets: Secrets,
        /// The mutable parameters that it was created with.
        mutable_parameters: Parameters,
    }
}

/// Whether all that was asked about holds, and if not, why.
pub(crate) enum Validated {
    Confirmed,
    Refused(String),
}

impl ValidateVolumeCapabilitiesRequest {
    /// The framework's own method for this RPC.
    ///
    /// `offered` are the controller's capabilities.
    // spec: validate-volume-capabilities.served, validate-volume-capabilities.all-or-none
    // spec: validate-volume-capabilities.missing
    pub(crate) async fn answer(
        self,
        controller: &dyn Controller,
        offered: &BTreeSet<ControllerCapability>,
    ) -> Result<Validated> {
        let Some(volume) = controller.lookup(&self.volume_id).await? else {
            return Err(Error::VolumeNotFound(self.volume_id));
        };
        let context = &self.raw.volume_context;
        let differs = volume
            .volume_context
            .iter()
            .find(|(key, value)| context.get(*key).is_some_and(|given| given != *value));
        if let Some((key, _)) = differs {
            return Ok(Validated::Refused(format!("volume_context[{key}]: is not the volume's")));
        }
        if !offered.contains(&ControllerCapability::SingleNodeMultiWriter)
            && let Some(capability) = self
                .volume_capabilities
                .iter()
                .find(|capability| capability.access_mode.needs_single_node_multi_writer())
        {
            let mode = capability.access_mode;
            return Ok(Validated::Refused(format!("{mode} is not supported: no SINGLE_NODE_MULTI_WRITER")));
        }
        let supports = |capability: &VolumeCapability| controller.volume_supports(&volume, capability);
        Ok(match check_supported(supports, &self.volume_capabilities) {
            Ok(()) => Validated::Confirmed,
            Err(refused) => Validated::Refused(refused.to_string()),
        })
    }
}

impl Call for ValidateVolumeCapabilitiesRequest {
    const RPC: Rpc = Rpc::ValidateVolumeCapabilities;
    type Answer = Validated;
    type Reply = v1::ValidateVolumeCapabilitiesResponse;

    fn subject(&self) -> &str {
        self.volume_id.as_str()
    }

    // spec: validate-volume-capabilities.confirms-what-was-asked
    fn reply(answer: Validated, request: &Self::Wire, _: &Offer) -> Result<Self::Reply> {
        use v1::validate_volume_capabilities_response::Confirmed;
        Ok(match answer {
            Validated::Confirmed => v1::ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: request.volume_context.clone(),
                    volume_capabilities: request.volume_capabilities.clone(),
                    parameters: request.parameters.clone(),
                    mutable_parameters: request.mutable_parameters.clone(),
                }),
                message: String::new(),
            },
            Validated::Refused(message) => {
                v1::ValidateVolumeCapabilitiesResponse { confirmed: None, message: shortened(message) }
            }
        })
    }
}

question!(ControllerGetCapabilitiesRequest);

impl Call for ControllerGetCapabilitiesRequest {
    const RPC: Rpc = Rpc::ControllerGetCapabilities;
    type Answer = ();
    type Reply = v1::ControllerGetCapabilitiesResponse;

    fn reply((): (), _: &Self::Wire, offer: &Offer) -> Result<Self::Reply> {
        Ok(v1::ControllerGetCapabilitiesResponse { capabilities: offer.controller_wire() })
    }
}
