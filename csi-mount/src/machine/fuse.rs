//! Volumes that a FUSE program serves.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use super::{Kernel, VolumePlace};
use crate::flow::fuse::{self, FuseDaemon};
use crate::{MountAttributes, Outcome, Removed, Result, Unmounted};

/// The steps of [`flow::fuse`](crate::flow::fuse).
#[expect(clippy::missing_errors_doc, reason = "each method names the function whose errors it has")]
pub trait FuseSteps: Send + Sync {
    /// Starts a FUSE daemon; see [`stage`](fuse::stage).
    fn stage(&self, staging: &VolumePlace, daemon: &FuseDaemon) -> Result<Outcome>;

    /// What the FUSE daemon at a path serves; see [`identity_at`](fuse::identity_at).
    fn identity(&self, path: &Path) -> Option<OsString>;

    /// The memory limit that the FUSE daemon of a path was killed over; see
    /// [`exceeded_memory_limit`](fuse::exceeded_memory_limit). By default none.
    fn exceeded_memory_limit(&self, staging: &Path) -> Option<u64> {
        let _ = staging;
        None
    }

    /// Publishes a FUSE filesystem; see [`publish`](fuse::publish).
    fn publish(&self, staging: &Path, target: &VolumePlace, attributes: MountAttributes) -> Result<Outcome>;

    /// Unpublishes a FUSE filesystem; see [`unpublish`](fuse::unpublish).
    fn unpublish(&self, target: &VolumePlace) -> Result<Removed>;

    /// Ends a FUSE daemon; see [`unstage_within`](fuse::unstage_within).
    fn unstage(&self, staging: &VolumePlace, limit: Duration) -> Result<Unmounted>;
}

impl FuseSteps for Kernel {
    fn stage(&self, staging: &VolumePlace, daemon: &FuseDaemon) -> Result<Outcome> {
        fuse::stage(&staging.target()?, daemon)
    }

    fn identity(&self, path: &Path) -> Option<OsString> {
        fuse::identity_at(path)
    }

    fn exceeded_memory_limit(&self, staging: &Path) -> Option<u64> {
        fuse::exceeded_memory_limit(staging)
    }

    fn publish(&self, staging: &Path, target: &VolumePlace, attributes: MountAttributes) -> Result<Outcome> {
        fuse::publish(staging, &target.target()?, attributes)
    }

    fn unpublish(&self, target: &VolumePlace) -> Result<Removed> {
        fuse::unpublish(&target.target()?)
    }

    fn unstage(&self, staging: &VolumePlace, limit: Duration) -> Result<Unmounted> {
        fuse::unstage_within(&staging.target()?, limit)
    }
}
