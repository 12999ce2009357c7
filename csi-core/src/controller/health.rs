//! GET_VOLUME_HEALTH and LIST_VOLUME_HEALTH, as the controller sees volumes. Alpha, new in spec v1.13.0.

use std::num::NonZeroU32;

use async_trait::async_trait;

use super::{Controller, Page};
use crate::request::request;
use crate::{Result, Secrets, Token, VolumeHealth, VolumeId};

/// One volume's health. Spec: "ControllerGetVolumeHealth".
#[async_trait]
pub trait GetVolumeHealth: Controller {
    /// What is wrong with the volume, as the storage system sees it; nothing, when it is well.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`](crate::Error::VolumeNotFound) (NOT_FOUND).
    async fn volume_health(&self, request: ControllerGetVolumeHealthRequest) -> Result<VolumeHealth>;
}

request! {
    /// Which volume.
    ControllerGetVolumeHealthRequest {
        /// The volume.
        volume_id: VolumeId,
        /// Credentials.
        secrets: Secrets,
    }
}

/// The volumes that are not well. Who lists them can tell of one, too. Spec: "ControllerListVolumeHealth".
#[async_trait]
pub trait ListVolumeHealth: GetVolumeHealth {
    /// A page of the volumes that something is wrong with, and of no others.
    ///
    /// # Errors
    /// [`Error::InvalidToken`](crate::Error::InvalidToken) (ABORTED).
    async fn list_volume_health(
        &self,
        request: ControllerListVolumeHealthRequest,
    ) -> Result<Page<VolumeHealth>>;
}

request! {
    /// Which page.
    ControllerListVolumeHealthRequest {
        /// At most so many entries; `None` leaves it to the driver.
        max_entries: Option<NonZeroU32>,
        /// Where the page starts; `None` at the beginning.
        starting_token: Option<Token>,
        /// Credentials.
        secrets: Secrets,
    }
}
