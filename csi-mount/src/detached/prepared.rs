//! A finished mount that is not yet at its place.

use std::os::fd::OwnedFd;

use rustix::mount::{MoveMountFlags, mount_move, move_mount};

use crate::detached::scratch::Scratch;
use crate::sys::fd_path::path_of;

/// A finished mount that is not visible yet.
#[derive(Debug)]
pub(crate) enum Prepared {
    /// In no mount namespace.
    Detached(OwnedFd),
    /// In a private directory, on kernels without detached mounts.
    InScratch(Scratch, OwnedFd),
}

impl Prepared {
    pub(crate) fn fd(&self) -> &OwnedFd {
        match self {
            Self::Detached(fd) | Self::InScratch(_, fd) => fd,
        }
    }

    /// Moves the mount in one step, in all namespaces. It keeps its identity.
    pub(crate) fn move_onto(&self, place: &OwnedFd) -> rustix::io::Result<()> {
        match self {
            Self::Detached(fd) => {
                let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
                move_mount(fd, c"", place, c"", flags)
            }
            Self::InScratch(scratch, _) => mount_move(scratch.mount_path(), path_of(place)),
        }
    }
}
