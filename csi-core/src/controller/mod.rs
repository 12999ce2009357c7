//! The Controller service: volumes as the storage system sees them.
//!
//! Every controller implements [`Controller`]. Each optional capability is a trait of its own, with the
//! spec's name, registered with [`ControllerService`]. The module also has helpers that every driver needs:
//! pages ([`Pager`]), the check of a repeated CreateVolume or CreateSnapshot ([`CreateRecord`],
//! [`SnapshotRecord`]), the count of a node's volumes ([`AttachLimit`]).
//!
//! It imports the call path and what lies below it, and no other service.

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
mod snapshot_record;
mod volume;

use std::collections::BTreeSet;

use async_trait::async_trait;
use csi_proto::v1;

pub use attach_limit::{AttachLimit, Reservation};
pub use create_record::CreateRecord;
pub use expand::{ControllerExpandVolume, ControllerExpandVolumeRequest, Expanded};
pub use health::{
    ControllerGetVolumeHealth, ControllerGetVolumeHealthRequest, ControllerListVolumeHealth,
    ControllerListVolumeHealthRequest,
};
pub use list::{
    Capacity, ControllerGetVolume, ControllerGetVolumeRequest, GetCapacity, GetCapacityRequest, ListVolumes,
    ListVolumesRequest, VolumeListing,
};
pub use modify::{ControllerModifyVolume, ControllerModifyVolumeRequest};
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
pub use snapshot_record::SnapshotRecord;
pub(crate) use volume::check_supported;
pub use volume::{CreateDeleteVolume, CreateVolumeRequest, DeleteVolumeRequest};

use crate::admission::{Claim, Key};
use crate::call::request::{question, request};
use crate::call::{Call, Reply};
use crate::error::{Error, Result};
use crate::offer::{ControllerCapability, Offer};
use crate::types::capability;
use crate::types::health::shortened;
use crate::types::{Name, Parameters, Secrets, Volume, VolumeCapability, VolumeContext, VolumeId};

/// What every controller implements. Spec: "Controller Service RPC".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `Controller`",
    label = "needs `impl Controller for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait Controller: Send + Sync + 'static {
    /// Returns the volume with this id, or `None` if it does not exist.
    ///
    /// The framework uses it to answer ValidateVolumeCapabilities, to find that a volume is already deleted,
    /// and before an expansion. An id that this driver cannot have issued is a volume that does not exist.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`], which means the same as `None`; and any failure that prevents an answer.
    /// A failed query must never be reported as "does not exist".
    async fn lookup(&self, volume_id: &VolumeId) -> Result<Option<Volume>>;

    /// [`lookup`](Self::lookup) with the secrets of the call, for a driver that reaches its storage only with
    /// them. The framework calls this method; the default calls `lookup`.
    ///
    /// # Errors
    /// As for [`lookup`](Self::lookup).
    async fn lookup_with_secrets(&self, volume_id: &VolumeId, _secrets: &Secrets) -> Result<Option<Volume>> {
        self.lookup(volume_id).await
    }

    /// Whether this driver's volumes support this capability: block or mount access, access mode,
    /// filesystem.
    ///
    /// The framework calls it for every capability in CreateVolume (an unsupported one is INVALID_ARGUMENT,
    /// with its index) and in ValidateVolumeCapabilities (an unsupported one is not confirmed).
    ///
    /// - spec: `create-volume.all-capabilities`, `validate-volume-capabilities.all-or-none`
    fn supports(&self, capability: &VolumeCapability) -> bool;

    /// The id of the volume that `create_volume` creates for this name, if it follows from the name alone
    /// (as with [`VolumeId::from_name`]). The default is `None`.
    ///
    /// With it, a CreateVolume and an operation on the volume with this id, for example DeleteVolume,
    /// exclude each other: the second of the two is ABORTED, and its caller repeats it. The method must always
    /// return the same id for a name.
    ///
    /// ```
    /// use csi_core::types::Name;
    /// use csi_core::{Result, prelude::*};
    ///
    /// struct Pool;
    ///
    /// #[async_trait]
    /// impl Controller for Pool {
    ///     fn volume_id_of_name(&self, name: &Name) -> Option<VolumeId> {
    ///         VolumeId::from_name(name).ok()
    ///     }
    /// #   async fn lookup(&self, volume_id: &VolumeId) -> Result<Option<Volume>> {
    /// #       Ok(Some(Volume::new(volume_id.clone(), 0)))
    /// #   }
    /// #   fn supports(&self, _: &VolumeCapability) -> bool {
    /// #       true
    /// #   }
    /// }
    ///
    /// #[async_trait]
    /// impl CreateDeleteVolume for Pool {
    ///     /// While this runs, no DeleteVolume of the same volume does.
    ///     async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
    ///         Ok(Volume::new(VolumeId::from_name(&request.name)?, 0))
    ///     }
    ///     async fn delete_volume(&self, _: DeleteVolumeRequest) -> Result<()> {
    ///         Ok(())
    ///     }
    /// }
    /// ```
    fn volume_id_of_name(&self, _name: &Name) -> Option<VolumeId> {
        None
    }

    /// Whether this volume supports this capability, for drivers with several kinds of volumes of which
    /// some support less than [`supports`](Self::supports) says.
    ///
    /// The framework calls it in ValidateVolumeCapabilities, for the volume that [`lookup`](Self::lookup)
    /// found. It compares the filesystem with [`Volume::fs_type`] itself. In CreateVolume the driver itself
    /// refuses what it cannot create.
    ///
    /// - spec: `validate-volume-capabilities.all-or-none`
    fn volume_supports(&self, _volume: &Volume, capability: &VolumeCapability) -> bool {
        self.supports(capability)
    }
}

request! {
    /// ValidateVolumeCapabilities; the framework answers it from [`Controller::lookup`] and
    /// [`Controller::supports`].
    ValidateVolumeCapabilitiesRequest about volume_id {
        /// The volume.
        volume_id: VolumeId,
        /// The context that CreateVolume returned.
        volume_context: VolumeContext,
        /// The requested capabilities; the volume must support all of them.
        volume_capabilities: Vec<VolumeCapability> = capability::read_required,
        /// The parameters that the volume was created with.
        parameters: Parameters,
        /// Credentials.
        secrets: Secrets,
        /// The mutable parameters that the volume was created with.
        mutable_parameters: Parameters,
    }
}

/// Whether the volume supports everything in the request, and if not, why.
pub(crate) enum Validated {
    Confirmed,
    Refused(String),
}

impl ValidateVolumeCapabilitiesRequest {
    /// Answers this RPC in place of a driver.
    ///
    /// `offered` are the controller's capabilities.
    // spec: validate-volume-capabilities.served, validate-volume-capabilities.all-or-none
    // spec: validate-volume-capabilities.missing
    pub(crate) async fn answer(
        self,
        controller: &dyn Controller,
        offered: &BTreeSet<ControllerCapability>,
    ) -> Result<Validated> {
        let Some(volume) = controller.lookup_with_secrets(&self.volume_id, &self.secrets).await? else {
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
        for (at, capability) in self.volume_capabilities.iter().enumerate() {
            if let (Some(asked), Some(has)) = (capability.fs_type(), volume.fs_type.as_deref())
                && asked != has
            {
                let field = format!("volume_capabilities[{at}].mount.fs_type");
                return Ok(Validated::Refused(format!("{field}: is {asked}, the volume has {has}")));
            }
        }
        let supports = |capability: &VolumeCapability| controller.volume_supports(&volume, capability);
        Ok(match check_supported(supports, &self.volume_capabilities) {
            Ok(()) => Validated::Confirmed,
            Err(refused) => Validated::Refused(refused.to_string()),
        })
    }
}

impl Call for ValidateVolumeCapabilitiesRequest {
    type Answer = Validated;

    // spec: validate-volume-capabilities.confirms-what-was-asked
    fn reply(answer: Validated, request: &Self::Wire, _: &Offer) -> Result<Reply<Self>> {
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

/// The claims of a change of a volume that other kinds of changes do not exclude.
fn changes<C: Call>(volume_id: &VolumeId) -> Vec<Claim> {
    let id = volume_id.as_str();
    vec![Claim::change(Key::Volume(id.to_owned())), Claim::alone(Key::Change(id.to_owned(), C::RPC))]
}

question!(ControllerGetCapabilitiesRequest);

impl Call for ControllerGetCapabilitiesRequest {
    type Answer = ();

    fn reply((): (), _: &Self::Wire, offer: &Offer) -> Result<Reply<Self>> {
        Ok(v1::ControllerGetCapabilitiesResponse { capabilities: offer.controller_wire() })
    }
}
