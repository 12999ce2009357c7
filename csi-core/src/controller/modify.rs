//! MODIFY_VOLUME.

use async_trait::async_trait;

use csi_proto::v1;

use super::Controller;
use crate::admission::{Claim, Key};
use crate::call::Call;
use crate::call::request::request;
use crate::offer::Offer;
use crate::{MutableParameters, Result, Rpc, Secrets, VolumeId};

/// Changing parameters of volumes that exist. Spec: "ControllerModifyVolume".
#[async_trait]
pub trait ModifyVolume: Controller {
    /// Gives the named parameters these values; parameters that are not named stay. Values that it has already
    /// are `Ok`.
    ///
    /// - spec: `controller-modify-volume.repeated-is-ok`, `controller-modify-volume.absent-keys-stay`
    /// - spec: `controller-modify-volume.invalid-changes-nothing`, `controller-modify-volume.missing`
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) (INVALID_ARGUMENT) for a parameter that can't be
    /// changed so, and then none may have been; [`Error::VolumeNotFound`](crate::Error::VolumeNotFound).
    async fn modify_volume(&self, request: ControllerModifyVolumeRequest) -> Result<()>;
}

request! {
    /// What to change of which volume.
    ControllerModifyVolumeRequest {
        /// The volume.
        volume_id: VolumeId,
        /// Credentials.
        secrets: Secrets,
        /// What to change; at least one.
        mutable_parameters: MutableParameters,
    }
}

impl Call for ControllerModifyVolumeRequest {
    const RPC: Rpc = Rpc::ControllerModifyVolume;
    type Answer = ();
    type Reply = v1::ControllerModifyVolumeResponse;

    fn subject(&self) -> &str {
        self.volume_id.as_str()
    }

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::alone(Key::Volume(self.volume_id.as_str().to_owned()))]
    }

    fn reply((): (), _: &Self::Wire, _: &Offer) -> Result<Self::Reply> {
        Ok(v1::ControllerModifyVolumeResponse {})
    }
}
