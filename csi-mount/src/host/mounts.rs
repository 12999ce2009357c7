//! What is asked about mounts and places, and about the node.

use std::path::{Path, PathBuf};

use super::{OwnedPath, steps};
use crate::error::Result;
use crate::mounted::health::MountHealth;
use crate::mounted::stats::Stats;
use crate::place::owner::OwnerId;
use crate::place::protected::ProtectedPaths;
use crate::place::target::Target;
use crate::preflight::{NodeNeed, Preflight};
use crate::table::facts::MountState;
use crate::table::mountinfo::MountEntry;

steps! {
    /// What a node plugin asks about mounts, and about the node.
    Mounts as mounts;

    /// The mount table; see [`mounts`](crate::mounts).
    pub fn table() -> Result<Vec<MountEntry>> {
        crate::mounts()
    }

    /// What is mounted at a path; see [`mount_state`](crate::mount_state).
    pub fn state(path: &Path) -> Result<MountState> {
        crate::mount_state(path)
    }

    /// The health of the mount at a path; see [`health`](crate::health()).
    pub fn health(path: &Path) -> Result<MountHealth> {
        crate::health(path)
    }

    /// The health of the filesystem that contains a path; see
    /// [`health_of_filesystem`](crate::health_of_filesystem).
    pub fn health_of_filesystem(path: &Path) -> Result<MountHealth> {
        crate::health_of_filesystem(path)
    }

    /// The usage of the filesystem at a path; see [`stats`](crate::stats()).
    pub fn stats(path: &Path) -> Result<Stats> {
        crate::stats(path)
    }

    /// The volume in the mark of a place; see [`Target::marked_owner`].
    pub fn marked_owner(path: &Path) -> Result<Option<OwnerId>> {
        Target::new(path)?.marked_owner()
    }

    /// Refuses a mount that is not known to be its owner's; see [`Target::refuse_foreign`].
    pub fn refuse_foreign(place: &OwnedPath) -> Result<()> {
        place.target()?.refuse_foreign()
    }

    /// Marks an earlier driver's mount as its owner's; see [`Target::adopt`].
    pub fn adopt(place: &OwnedPath) -> Result<bool> {
        place.target()?.adopt()
    }

    /// Returns whether the filesystem mounted at a path has lost its daemon.
    ///
    /// # Errors
    /// Those of [`health`](crate::health()).
    pub fn has_lost_daemon(path: &Path) -> Result<bool> {
        crate::flow::fuse::is_lost(path)
    }

    /// Refuses a protected path; see [`ProtectedPaths::check`].
    pub fn check_protected(protected: &ProtectedPaths, path: &Path) -> Result<()> {
        protected.check(path)
    }

    /// Whether the node has what volumes need; see [`preflight`](crate::preflight()).
    pub fn preflight(roots: &[PathBuf], needs: &[NodeNeed]) -> Preflight {
        crate::preflight(roots, needs)
    }
}
