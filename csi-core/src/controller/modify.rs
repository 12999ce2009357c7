//! MODIFY_VOLUME.

use async_trait::async_trait;

use super::{Controller, changes};
use crate::admission::{Claim, Key};
use crate::call::request::request;
use crate::call::{Call, answers_nothing};
use crate::error::{Error, Result};
use crate::offer::Offer;
use crate::types::{Parameters, Secrets, VolumeId};

/// Changes parameters of existing volumes. Spec: "ControllerModifyVolume".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `ControllerModifyVolume`",
    label = "needs `impl ControllerModifyVolume for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait ControllerModifyVolume: Controller {
    /// Sets the named parameters to these values; other parameters stay unchanged. Values that the volume
    /// already has are `Ok`.
    ///
    /// - spec: `controller-modify-volume.repeated-is-ok`, `controller-modify-volume.absent-keys-stay`
    /// - spec: `controller-modify-volume.invalid-changes-nothing`, `controller-modify-volume.missing`
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) (INVALID_ARGUMENT) for a parameter that
    /// can't be changed to this value; then no parameter may have changed;
    /// [`Error::VolumeNotFound`](crate::Error::VolumeNotFound).
    async fn modify_volume(&self, request: ControllerModifyVolumeRequest) -> Result<()>;
}

request! {
    /// Which volume to change, and how.
    ControllerModifyVolumeRequest about volume_id {
        /// The volume.
        volume_id: VolumeId,
        /// Credentials.
        secrets: Secrets,
        /// The parameters to change; at least one when a driver gets the request.
        mutable_parameters: Parameters,
    }
}

impl ControllerModifyVolumeRequest {
    /// Asks the driver for the change. A request without parameters is refused; if its volume does not exist either,
    /// the answer is NOT_FOUND, as test suites expect.
    // spec: controller-modify-volume.missing, fields.required-list
    pub(crate) async fn answer(self, driver: &dyn ControllerModifyVolume) -> Result<()> {
        if self.mutable_parameters.iter().next().is_some() {
            return driver.modify_volume(self).await;
        }
        match driver.lookup_with_secrets(&self.volume_id, &self.secrets).await? {
            Some(_) => Err(Error::invalid("mutable_parameters", "is required and must not be empty")),
            None => Err(Error::VolumeNotFound(self.volume_id)),
        }
    }
}

impl Call for ControllerModifyVolumeRequest {
    answers_nothing!();

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::alone(Key::Volume(self.volume_id.as_str().to_owned()))]
    }

    fn claims_in(&self, offer: &Offer) -> Vec<Claim> {
        if offer.modify_while_expanding { changes::<Self>(&self.volume_id) } else { self.claims() }
    }
}
