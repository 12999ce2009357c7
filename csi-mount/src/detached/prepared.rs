//! A mount that is finished, on its way to its place.

use std::os::fd::OwnedFd;

use rustix::mount::{MoveMountFlags, mount_move, move_mount};

use crate::detached::scratch::Scratch;
use crate::sys::fd_path::path_of;

/// A mount that is finished and that nobody sees yet.
#[derive(Debug)]
pub(crate) enum Prepared {
    /// In no mount namespace.
    Detached(OwnedFd),
    /// On kernels that have no detached mounts: in a private place.
    InScratch(Scratch, OwnedFd),
}

impl Prepared {
    pub(crate) fn fd(&self) -> &OwnedFd {
        match self {
            Self::Detached(fd) | Self::InScratch(_, fd) => fd,
        }
    }

    /// In one step, in all namespaces; the mount stays the same mount.
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
