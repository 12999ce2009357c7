//! Mounts on kernels before 5.12 (5.2): prepared where nobody else sees them, then moved onto the target.
//!
//! A mount is moved in one step, with its attributes, so the target is never without them. What is prepared
//! must not be seen by anyone, so it lives on a tmpfs of its own that is private.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FileType, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use crate::attach::Prepared;
use crate::lookup;
use crate::sys::mount_api::Depth;
use crate::{Error, ErrorKind, MountAttributes, Result};

/// A bind of the source with all its attributes.
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
    let (from, onto) = (lookup::path_of(source), scratch.mount_path());
    let bound = match depth {
        Depth::Single => rustix::mount::mount_bind(&from, &onto),
        Depth::Recursive => rustix::mount::mount_bind_recursive(&from, &onto),
    };
    let flags = MountFlags::BIND | mount_flags(attributes);
    let made = bound.and_then(|()| rustix::mount::mount_remount(&onto, flags, c""));
    made.map_err(|error| Error::os(operation, path, error))?;
    scratch.into_prepared()
}

/// A private tmpfs on a directory that only this process's user can enter; both go with it.
#[derive(Debug)]
pub(crate) struct Scratch {
    directory: PathBuf,
}

/// On every system /run is writable memory; a container may have /tmp only.
fn scratch_base() -> PathBuf {
    if rustix::fs::access("/run", rustix::fs::Access::WRITE_OK).is_ok() {
        "/run".into()
    } else {
        std::env::temp_dir()
    }
}

impl Scratch {
    /// A place with a directory or an empty file to mount on.
    pub(crate) fn new(file_type: FileType) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!(".csi-mount-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = scratch_base().join(name);
        let os = |error: io::Error| Error::os("prepare a mount in", scratch_base(), error);
        DirBuilder::new().mode(0o700).create(&directory).map_err(os)?;
        let scratch = Self { directory };
        scratch.fill(file_type).map_err(os)?;
        Ok(scratch)
    }

    fn fill(&self, file_type: FileType) -> io::Result<()> {
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
        rustix::mount::mount("csi-mount", &self.directory, "tmpfs", flags, c"mode=0700,size=64k")?;
        // A mount can only be moved away from one that is not shared.
        rustix::mount::mount_change(&self.directory, MountPropagationFlags::PRIVATE)?;
        match file_type {
            FileType::Directory => std::fs::create_dir(self.mount_path()),
            _ => File::create(self.mount_path()).map(drop),
        }
    }

    /// Where to mount.
    pub(crate) fn mount_path(&self) -> PathBuf {
        self.directory.join("mount")
    }

    /// With what was mounted held open.
    pub(crate) fn into_prepared(self) -> Result<Prepared> {
        let path = self.mount_path();
        let fd = lookup::open_path(&path, OFlags::NOFOLLOW);
        let fd = fd.map_err(|error| Error::os("open mount", path, error))?;
        Ok(Prepared::InScratch(self, fd))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Detached: it takes along what was mounted but not moved away, though that is held open.
        let unmounted =
            rustix::mount::unmount(&self.directory, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        let removed = std::fs::remove_dir(&self.directory);
        if let (Err(error), _) | (_, Err(error)) = (unmounted.map_err(io::Error::from), removed) {
            tracing::warn!(%error, directory = %self.directory.display(), "scratch directory not removed");
        }
    }
}

/// The same attributes in the values of `mount(2)`, the access time mode always named.
pub(crate) fn mount_flags(attributes: MountAttributes) -> MountFlags {
    /// `MS_NOSYMFOLLOW`, Linux 5.10.
    const NOSYMFOLLOW: MountFlags = MountFlags::from_bits_retain(256);
    let pairs = [
        (MountAttributes::RDONLY, MountFlags::RDONLY),
        (MountAttributes::NOSUID, MountFlags::NOSUID),
        (MountAttributes::NODEV, MountFlags::NODEV),
        (MountAttributes::NOEXEC, MountFlags::NOEXEC),
        (MountAttributes::NOATIME, MountFlags::NOATIME),
        (MountAttributes::STRICTATIME, MountFlags::STRICTATIME),
        (MountAttributes::NODIRATIME, MountFlags::NODIRATIME),
        (MountAttributes::NOSYMFOLLOW, NOSYMFOLLOW),
    ];
    let flags = pairs.iter().filter(|(attribute, _)| attributes.contains(*attribute));
    let flags = flags.fold(MountFlags::empty(), |all, (_, flag)| all | *flag);
    let is_relatime = !attributes.intersects(MountAttributes::NOATIME | MountAttributes::STRICTATIME);
    if is_relatime { flags | MountFlags::RELATIME } else { flags }
}
