//! A finished mount that is not yet at its place, and the close of one that never gets there.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::{FileType, OFlags};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, mount_change, mount_move, move_mount,
};

use crate::detached::scratch::{Scratch, mount_flags};
use crate::error::{Error, ErrorKind, Result};
use crate::path::lookup;
use crate::sys::attributes::MountAttributes;
use crate::sys::descriptor::path_of;
use crate::sys::mount_api::{self, Depth};

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

    /// Takes the mount out of its source's propagation group. Where it is attached to a shared mount it begins one of its own.
    pub(crate) fn make_private(&self) -> io::Result<()> {
        match self {
            Self::Detached(fd) => mount_api::make_private(fd),
            Self::InScratch(scratch, _) => {
                Ok(mount_change(scratch.mount_path(), MountPropagationFlags::PRIVATE)?)
            }
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

impl Scratch {
    /// Opens what was mounted, and keeps it open.
    pub(crate) fn into_prepared(self) -> Result<Prepared> {
        let path = self.mount_path();
        let fd = lookup::open_path(&path, OFlags::NOFOLLOW);
        let fd = fd.map_err(|error| Error::os("open mount", path, error))?;
        Ok(Prepared::InScratch(self, fd))
    }
}

/// A bind of the source with all its attributes, in a scratch directory.
pub(crate) fn bind(
    path: &Path,
    source: &OwnedFd,
    depth: Depth,
    attributes: MountAttributes,
    file_type: FileType,
) -> Result<Prepared> {
    let operation = "bind";
    if depth == Depth::Recursive && !attributes.is_empty() {
        let reason = "attributes of a whole tree of mounts need Linux 5.12";
        return Err(Error::new(ErrorKind::Unsupported, operation, reason).at(path));
    }
    let scratch = Scratch::new(file_type)?;
    let from = path_of(source);
    let onto = scratch.mount_path();
    let bound = match depth {
        Depth::Single => rustix::mount::mount_bind(&from, &onto),
        Depth::Recursive => rustix::mount::mount_bind_recursive(&from, &onto),
    };
    let flags = MountFlags::BIND | mount_flags(attributes);
    let made = bound.and_then(|()| rustix::mount::mount_remount(&onto, flags, c""));
    made.map_err(|error| Error::os(operation, path, error))?;
    scratch.into_prepared()
}

/// How long to wait for a server to release a mount.
const CLOSE_TIME_LIMIT: Duration = Duration::from_secs(5);

/// A mount that is attached nowhere. It is unmounted when its last descriptor is closed.
#[derive(Debug)]
pub(crate) struct DetachedMount(Option<Prepared>);

impl DetachedMount {
    pub(crate) fn new(mount: Prepared) -> Self {
        Self(Some(mount))
    }
}

impl Drop for DetachedMount {
    /// A separate thread closes it, because unmounting a filesystem whose server does not answer can take any
    /// time.
    fn drop(&mut self) {
        let Some(mount) = self.0.take() else { return };
        let (closing, closed) = mpsc::channel::<()>();
        let close = move || {
            drop(mount);
            drop(closing);
        };
        match thread::Builder::new().name("unmount".to_owned()).spawn(close) {
            Ok(_) => {
                if closed.recv_timeout(CLOSE_TIME_LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
                    tracing::warn!("a server does not release a mount; it is unmounted in the background");
                }
            }
            // The failed spawn dropped the closure, which closed the mount on this thread.
            Err(error) => tracing::debug!(%error, "no thread could be started to unmount with"),
        }
    }
}
