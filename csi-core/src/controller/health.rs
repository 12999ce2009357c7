//! GET_VOLUME_HEALTH and LIST_VOLUME_HEALTH: volumes' health as the controller sees it. Alpha, new in spec
//! v1.13.0.

use std::num::NonZeroU32;

use async_trait::async_trait;
use csi_proto::v1;

use super::{Controller, Page};
use crate::call::request::request;
use crate::call::{Call, Reply};
use crate::error::{Error, Result};
use crate::offer::Offer;
use crate::types::{Secrets, Token, VolumeHealth, VolumeId};

/// Reports one volume's health. Spec: "ControllerGetVolumeHealth".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `ControllerGetVolumeHealth`",
    label = "needs `impl ControllerGetVolumeHealth for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait ControllerGetVolumeHealth: Controller {
    /// Returns the problems of the volume, as the storage system sees them; a healthy volume has no
    /// entries. An entry stays until its condition is gone, even after a newer entry is added.
    ///
    /// - spec: `volume-health.entry-stays`
    /// - spec: `controller-get-volume-health.current`, `controller-get-volume-health.missing`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`](crate::Error::VolumeNotFound) (NOT_FOUND).
    async fn volume_health(&self, request: ControllerGetVolumeHealthRequest) -> Result<VolumeHealth>;
}

request! {
    /// Which volume to check.
    ControllerGetVolumeHealthRequest about volume_id {
        /// The volume.
        volume_id: VolumeId,
        /// Credentials.
        secrets: Secrets,
    }
}

/// Lists the unhealthy volumes. A driver that lists them must also report the health of one. Spec:
/// "ControllerListVolumeHealth".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `ControllerListVolumeHealth`",
    label = "needs `impl ControllerListVolumeHealth for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait ControllerListVolumeHealth: ControllerGetVolumeHealth {
    /// Returns a page of the unhealthy volumes, and of no others.
    ///
    /// - spec: `controller-list-volume-health.only-unwell`, `controller-list-volume-health.pages`
    ///
    /// # Errors
    /// [`Error::InvalidToken`](crate::Error::InvalidToken) (ABORTED).
    async fn list_volume_health(
        &self,
        request: ControllerListVolumeHealthRequest,
    ) -> Result<Page<VolumeHealth>>;
}

request! {
    /// Which page to return.
    ControllerListVolumeHealthRequest {
        /// The maximum number of entries; `None` lets the driver choose.
        max_entries: Option<NonZeroU32>,
        /// Where the page starts; `None` means the beginning.
        starting_token: Option<Token>,
        /// Credentials.
        secrets: Secrets,
    }
}

impl Call for ControllerGetVolumeHealthRequest {
    type Answer = VolumeHealth;

    fn reply(health: VolumeHealth, request: &Self::Wire, _: &Offer) -> Result<Reply<Self>> {
        let volume_health = Some(health.answer_for(&request.volume_id)?);
        Ok(v1::ControllerGetVolumeHealthResponse { volume_health })
    }
}

impl Call for ControllerListVolumeHealthRequest {
    type Answer = Page<VolumeHealth>;

    // spec: controller-list-volume-health.only-unwell
    fn reply(page: Page<VolumeHealth>, request: &Self::Wire, _: &Offer) -> Result<Reply<Self>> {
        let entry = |health: VolumeHealth| {
            if health.entries.is_empty() {
                Err(Error::broken(format!("entries: nothing is wrong with volume {}", health.volume_id)))
            } else {
                health.answer()
            }
        };
        let (entries, next_token) = page.answer(request.max_entries, &request.starting_token, entry)?;
        Ok(v1::ControllerListVolumeHealthResponse { entries, next_token })
    }
}
