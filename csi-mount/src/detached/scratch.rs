//! Mounts on kernels without the new mount API (binds before Linux 5.12, filesystems before 5.2): prepared in
//! a private directory, then moved onto the target.
//!
//! The move is one step and includes the attributes, so the target never shows the mount without them. A
//! mount in preparation must not be visible to others, so it is on a private tmpfs of its own.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FileType, Mode, OFlags, fstat, lstat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use crate::error::{Error, ErrorKind, Result};
use crate::sys::attributes::MountAttributes;
use crate::sys::descriptor::Locked;
use crate::sys::features::{self, Feature};

/// A private tmpfs on a directory that only this process's user can enter. Both are removed when it is
/// dropped.
///
/// Invariant: while it lives, both the directory and the root of the tmpfs on it are locked (`flock`). If one
/// of them is not locked, its process was killed, and every process is allowed to remove it.
#[derive(Debug)]
pub(crate) struct Scratch {
    directory: PathBuf,
    _locks: [Locked<OwnedFd>; 2],
}

const PREFIX: &str = ".csi-mount-";
const PREPARE: &str = "prepare a mount in";
/// How many names are tried if other processes have them or remove them.
const MAX_ATTEMPTS: u32 = 64;

/// /run is writable memory on every system; a container can have only /tmp.
fn scratch_base() -> PathBuf {
    if rustix::fs::access("/run", rustix::fs::Access::WRITE_OK).is_ok() {
        "/run".into()
    } else {
        std::env::temp_dir()
    }
}

impl Scratch {
    /// Makes a private place with a directory or an empty file to mount on.
    pub(crate) fn new(file_type: FileType) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let base = scratch_base();
        let os = |error: io::Error| Error::os(PREPARE, &base, error);
        for _ in 0..MAX_ATTEMPTS {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let directory = base.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&directory) {
                // It belongs to another process with our pid, in another container or earlier.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made.map_err(os)?,
            }
            if let Some(scratch) = Self::on(directory).map_err(os)? {
                scratch.fill(file_type).map_err(os)?;
                return Ok(scratch);
            }
        }
        let reason = format!("{MAX_ATTEMPTS} directories in a row were taken by other processes");
        Err(Error::new(ErrorKind::Busy, PREPARE, reason).at(base))
    }

    /// None if the directory was removed before it was locked.
    fn on(directory: PathBuf) -> io::Result<Option<Self>> {
        let Some(below) = claim(&directory)? else { return Ok(None) };
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
        rustix::mount::mount("csi-mount", &directory, "tmpfs", flags, c"mode=0700,size=64k")?;
        // Another process that found it unlocked in this moment owns it now, and removes it.
        Ok(claim(&directory)?.map(|root| Self { directory, _locks: [below, root] }))
    }

    fn fill(&self, file_type: FileType) -> io::Result<()> {
        // A mount can be moved only away from a parent mount that is not shared.
        rustix::mount::mount_change(&self.directory, MountPropagationFlags::PRIVATE)?;
        match file_type {
            FileType::Directory => std::fs::create_dir(self.mount_path()),
            _ => File::create(self.mount_path()).map(drop),
        }
    }

    pub(crate) fn mount_path(&self) -> PathBuf {
        self.directory.join("mount")
    }
}

/// Locks a directory, or what is mounted on it. None if another process has the lock, or the directory is
/// gone.
fn claim(directory: &Path) -> io::Result<Option<Locked<OwnedFd>>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match rustix::fs::open(directory, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        fd => fd?,
    };
    let fd = match Locked::now(fd) {
        Err(Errno::WOULDBLOCK) => return Ok(None),
        locked => locked?,
    };
    let same = |found: rustix::fs::Stat| {
        fstat(&fd).is_ok_and(|own| (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino))
    };
    Ok(lstat(directory).is_ok_and(same).then_some(fd))
}

/// Removes what killed processes left where mounts are prepared: a prepared mount would keep a volume's
/// device in use. Does nothing on kernels that need no such place.
pub(crate) fn remove_abandoned() {
    if features::has(Feature::FsContext) && features::has(Feature::MountSetattr) {
        return;
    }
    remove_abandoned_in(&scratch_base());
}

fn remove_abandoned_in(base: &Path) {
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())) {
        let directory = entry.path();
        // First what is mounted on it, then the directory itself, each while it is locked.
        while let Ok(Some(_lock)) = claim(&directory) {
            match remove(&directory) {
                Ok(()) => {
                    tracing::info!(directory = %directory.display(), "removed the scratch directory of a \
                        killed process");
                }
                Err(error) => {
                    tracing::warn!(%error, directory = %directory.display(), "scratch directory not removed");
                    break;
                }
            }
        }
    }
}

/// Detaches a mount with all mounts in it; if nothing is mounted, removes the directory.
fn remove(directory: &Path) -> rustix::io::Result<()> {
    match rustix::mount::unmount(directory, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Err(Errno::INVAL) => rustix::fs::rmdir(directory),
        unmounted => unmounted,
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // This also detaches what was mounted but not moved away, although it is held open.
        if let Err(error) = remove(&self.directory).and_then(|()| rustix::fs::rmdir(&self.directory)) {
            tracing::warn!(%error, directory = %self.directory.display(), "scratch directory not removed");
        }
    }
}

/// The attributes as flags of `mount(2)`, always with an access time mode.
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

#[cfg(test)]
mod needs_root {
    use super::*;
    use crate::testing::private_mount_namespace;

    fn mount(path: &Path) {
        rustix::mount::mount("volume", path, "tmpfs", MountFlags::empty(), c"").unwrap();
    }

    #[test]
    fn only_scratch_directories_of_killed_processes_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let place = |name: &str| {
            let place = base.path().join(format!("{PREFIX}{name}"));
            std::fs::create_dir(&place).unwrap();
            place
        };
        private_mount_namespace(|| {
            let living = Scratch::on(place("living")).unwrap().unwrap();
            living.fill(FileType::Directory).unwrap();
            mount(&living.mount_path());
            let bare = place("bare");
            let prepared = place("prepared");
            mount(&prepared);
            std::fs::create_dir(prepared.join("mount")).unwrap();
            mount(&prepared.join("mount"));

            remove_abandoned_in(base.path());
            assert!(!bare.exists() && !prepared.exists());
            assert!(living.mount_path().exists());
            drop(living);
        });
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 0);
    }
}
