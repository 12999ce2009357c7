//! What is asked about mounts and places, and about the node.

use std::path::{Path, PathBuf};

use super::{Kernel, VolumePlace};
use crate::{
    MountEntry, MountHealth, MountState, NodeNeed, OwnerId, ProtectedPaths, Result, SelfCheck, Stats, Target,
};

/// What a node plugin asks about mounts, and about the node.
#[expect(clippy::missing_errors_doc, reason = "each method names the function whose errors it has")]
pub trait MountQuestions: Send + Sync {
    /// The mount table; see [`mounts`](crate::mounts).
    fn table(&self) -> Result<Vec<MountEntry>>;

    /// What is mounted at a path; see [`mount_state`](crate::mount_state).
    fn state(&self, path: &Path) -> Result<MountState>;

    /// The health of the mount at a path; see [`health`](crate::health()).
    fn health(&self, path: &Path) -> Result<MountHealth>;

    /// The health of the filesystem that contains a path; see
    /// [`health_of_filesystem`](crate::health_of_filesystem).
    fn health_of_filesystem(&self, path: &Path) -> Result<MountHealth>;

    /// The usage of the filesystem at a path; see [`stats`](crate::stats()).
    fn stats(&self, path: &Path) -> Result<Stats>;

    /// The volume in the mark of a place; see [`Target::marked_owner`].
    fn marked_owner(&self, path: &Path) -> Result<Option<OwnerId>>;

    /// Refuses a mount that is not known to be its owner's; see [`Target::refuse_foreign`].
    fn refuse_foreign(&self, place: &VolumePlace) -> Result<()>;

    /// Whether a FUSE filesystem has lost its daemon; see [`fuse::is_lost`](crate::flow::fuse::is_lost).
    fn has_lost_daemon(&self, path: &Path) -> Result<bool>;

    /// Refuses a protected path; see [`ProtectedPaths::check`].
    fn check_protected(&self, protected: &ProtectedPaths, path: &Path) -> Result<()>;

    /// Whether the node has what volumes need; see [`self_check`](crate::self_check()).
    fn self_check(&self, roots: &[PathBuf], needs: &[NodeNeed]) -> SelfCheck;
}

impl MountQuestions for Kernel {
    fn table(&self) -> Result<Vec<MountEntry>> {
        crate::mounts()
    }

    fn state(&self, path: &Path) -> Result<MountState> {
        crate::mount_state(path)
    }

    fn health(&self, path: &Path) -> Result<MountHealth> {
        crate::health(path)
    }

    fn health_of_filesystem(&self, path: &Path) -> Result<MountHealth> {
        crate::health_of_filesystem(path)
    }

    fn stats(&self, path: &Path) -> Result<Stats> {
        crate::stats(path)
    }

    fn marked_owner(&self, path: &Path) -> Result<Option<OwnerId>> {
        Target::new(path)?.marked_owner()
    }

    fn refuse_foreign(&self, place: &VolumePlace) -> Result<()> {
        place.target()?.refuse_foreign()
    }

    fn has_lost_daemon(&self, path: &Path) -> Result<bool> {
        crate::flow::fuse::is_lost(path)
    }

    fn check_protected(&self, protected: &ProtectedPaths, path: &Path) -> Result<()> {
        protected.check(path)
    }

    fn self_check(&self, roots: &[PathBuf], needs: &[NodeNeed]) -> SelfCheck {
        crate::self_check(roots, needs)
    }
}
