//! Volumes that are shared filesystems.

use std::path::Path;
use std::time::Duration;

use super::{Kernel, VolumePlace};
use crate::flow::shared::{self, SharedSource};
use crate::{MountAttributes, Outcome, Removed, Result, Unmounted};

/// The steps of [`flow::shared`](crate::flow::shared).
#[expect(clippy::missing_errors_doc, reason = "each method names the function whose errors it has")]
pub trait SharedSteps: Send + Sync {
    /// Mounts a shared filesystem; see [`stage`](shared::stage). With attributes other than none also at a
    /// target; see [`publish_directly`](shared::publish_directly).
    fn mount(
        &self,
        place: &VolumePlace,
        source: &SharedSource,
        attributes: MountAttributes,
    ) -> Result<Outcome>;

    /// Publishes a staged shared filesystem; see [`publish`](shared::publish).
    fn publish(&self, staging: &Path, target: &VolumePlace, attributes: MountAttributes) -> Result<Outcome>;

    /// Unpublishes a shared filesystem; see [`unpublish_within`](shared::unpublish_within).
    fn unpublish(&self, target: &VolumePlace, limit: Duration) -> Result<Removed>;

    /// Unstages a shared filesystem; see [`unstage_within`](shared::unstage_within).
    fn unstage(&self, staging: &VolumePlace, limit: Duration) -> Result<Unmounted>;
}

impl SharedSteps for Kernel {
    fn mount(
        &self,
        place: &VolumePlace,
        source: &SharedSource,
        attributes: MountAttributes,
    ) -> Result<Outcome> {
        shared::publish_directly(&place.target()?, source, attributes)
    }

    fn publish(&self, staging: &Path, target: &VolumePlace, attributes: MountAttributes) -> Result<Outcome> {
        shared::publish(staging, &target.target()?, attributes)
    }

    fn unpublish(&self, target: &VolumePlace, limit: Duration) -> Result<Removed> {
        shared::unpublish_within(&target.target()?, limit)
    }

    fn unstage(&self, staging: &VolumePlace, limit: Duration) -> Result<Unmounted> {
        shared::unstage_within(&staging.target()?, limit)
    }
}
