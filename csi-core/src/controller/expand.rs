//! EXPAND_VOLUME on the controller.

use async_trait::async_trait;
use csi_proto::v1;

use super::{Controller, changes};
use crate::admission::{Claim, Key};
use crate::call::request::request;
use crate::call::{Call, Reply};
use crate::error::{Error, Result};
use crate::offer::Offer;
use crate::types::volume::signed;
use crate::types::{CapacityRange, Secrets, VolumeCapability, VolumeId};

/// Expands volumes. Spec: "ControllerExpandVolume".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `ControllerExpandVolume`",
    label = "needs `impl ControllerExpandVolume for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait ControllerExpandVolume: Controller {
    /// Makes the volume at least as large as required. A volume that is already large enough is `Ok`; a
    /// volume never shrinks. With [`Expansion::Online`](crate::Expansion::Online), a published volume grows
    /// too. The framework calls it only for a volume that [`Controller::lookup`] finds.
    ///
    /// - spec: `volume-expansion.online-grows-published`, `controller-expand-volume.grows`
    /// - spec: `controller-expand-volume.large-enough-is-ok`
    /// - spec: `controller-expand-volume.in-use`, `controller-expand-volume.out-of-range`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] (NOT_FOUND); [`Error::OutOfRange`] (OUT_OF_RANGE); [`Error::InUse`]
    /// (FAILED_PRECONDITION) when the volume is published and the driver expands offline only;
    /// [`Error::Unsupported`] (INVALID_ARGUMENT) for a capability that the volume does not support.
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded>;
}

/// The size of a volume after expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Expanded {
    /// In bytes.
    pub capacity_bytes: u64,
    /// Whether the node still has work to do, for example to grow a filesystem.
    pub node_expansion_required: bool,
}

impl Expanded {
    /// Creates the answer for a volume that has this size in bytes, with nothing left to do on the node.
    pub fn complete(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, node_expansion_required: false }
    }

    /// Creates the answer for a volume that has this size in bytes, and which the node still has to expand,
    /// for example to grow its filesystem.
    pub fn node_expansion_required(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, node_expansion_required: true }
    }
}

request! {
    /// The size that a volume is to have.
    ControllerExpandVolumeRequest about volume_id {
        /// The volume.
        volume_id: VolumeId,
        /// The accepted sizes; `required_bytes` can be less than the current size.
        capacity_range: CapacityRange = CapacityRange::read_required,
        /// Credentials.
        secrets: Secrets,
        /// How the volume is used, if the caller said so.
        volume_capability: Option<VolumeCapability>,
    }
}

impl Call for ControllerExpandVolumeRequest {
    type Answer = Expanded;

    // spec: controller-expand-volume.beyond-capabilities
    fn permitted(&self, offer: &Offer) -> Result<()> {
        let capability = self.volume_capability.as_ref();
        capability.map_or(Ok(()), |capability| offer.check_controller_use("volume_capability", capability))
    }

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::alone(Key::Volume(self.volume_id.as_str().to_owned()))]
    }

    fn claims_in(&self, offer: &Offer) -> Vec<Claim> {
        if offer.modify_while_expanding { changes::<Self>(&self.volume_id) } else { self.claims() }
    }

    // spec: controller-expand-volume.grows, controller-expand-volume.out-of-range
    fn reply(answer: Expanded, request: &Self::Wire, _: &Offer) -> Result<Reply<Self>> {
        let range = CapacityRange::asked(request.capacity_range.as_ref())?;
        let bytes = answer.capacity_bytes;
        if range.required_bytes.is_some_and(|required| bytes < required) {
            return Err(Error::broken(format!("capacity_bytes {bytes} is less than was required")));
        }
        let capacity_bytes = signed("capacity_bytes", bytes)?;
        range.check_expanded(bytes)?;
        Ok(v1::ControllerExpandVolumeResponse {
            capacity_bytes,
            node_expansion_required: answer.node_expansion_required,
        })
    }
}
