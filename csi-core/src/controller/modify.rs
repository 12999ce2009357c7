//! MODIFY_VOLUME.

use async_trait::async_trait;

use csi_proto::v1;

use super::{Controller, changes};
use crate::admission::{Claim, Key};
use crate::call::Call;
use crate::call::request::request;
use crate::offer::Offer;
use crate::{Error, MutableParameters, Result, Rpc, Secrets, Spec, VolumeId};

/// Changes parameters of existing volumes. Spec: "ControllerModifyVolume".
#[async_trait]
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
    ControllerModifyVolumeRequest {
        /// The volume.
        volume_id: VolumeId,
        /// Credentials.
        secrets: Secrets,
        /// The parameters to change; at least one when a driver gets the request.
        mutable_parameters: MutableParameters,
    }
}

impl ControllerModifyVolumeRequest {
    /// Asks the driver for the change. Without parameters there is nothing to change, so only the volume has
    /// to exist; test suites for v1.12.0 call it so.
    // spec: controller-modify-volume.missing
    pub(crate) async fn answer(self, driver: &dyn ControllerModifyVolume) -> Result<()> {
        if self.mutable_parameters.iter().next().is_some() {
            return driver.modify_volume(self).await;
        }
        match driver.lookup_with_secrets(&self.volume_id, &self.secrets).await? {
            Some(_) => Ok(()),
            None => Err(Error::VolumeNotFound(self.volume_id)),
        }
    }
}

impl Call for ControllerModifyVolumeRequest {
    const RPC: Rpc = Rpc::ControllerModifyVolume;
    type Answer = ();
    type Reply = v1::ControllerModifyVolumeResponse;

    fn subject(&self) -> &str {
        self.volume_id.as_str()
    }

    // spec: fields.required-list
    fn permitted(&self, offer: &Offer) -> Result<()> {
        match self.raw.mutable_parameters.is_empty() && offer.spec > Spec::V1_12 {
            true => Err(Error::invalid("mutable_parameters", "is required and must not be empty")),
            false => Ok(()),
        }
    }

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::alone(Key::Volume(self.volume_id.as_str().to_owned()))]
    }

    fn claims_in(&self, offer: &Offer) -> Vec<Claim> {
        match offer.modify_while_expanding {
            true => changes(&self.volume_id, Self::RPC),
            false => self.claims(),
        }
    }

    fn reply((): (), _: &Self::Wire, _: &Offer) -> Result<Self::Reply> {
        Ok(v1::ControllerModifyVolumeResponse {})
    }
}
