//! Binding on kernels before 5.12: prepared where nobody else sees it, then bound from there.
//!
//! A bind of a bind keeps its attributes and is made in one step, so the target is never without them. The
//! preparation must not be seen by anyone, so it lives on a tmpfs of its own that is private.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FileType;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use crate::attach::Attached;
use crate::details::Details;
use crate::lookup;
use crate::sys::mount_api::Depth;
use crate::target::Seen;
use crate::{Error, ErrorKind, MountAttributes, Result, Target};

/// Binds the source to the target, and verifies it.
pub(crate) fn bind(
    operation: &'static str,
    source: &OwnedFd,
    depth: Depth,
    attributes: MountAttributes,
    target: &Target,
    seen: &Seen,
) -> Result<Attached> {
    if depth == Depth::Recursive && !attributes.is_empty() {
        let reason = "attributes of a whole tree of mounts need Linux 5.12";
        return Err(Error::new(ErrorKind::Unsupported, operation, reason).at(target.path()));
    }
    let os = |error: io::Error| target.error(operation, error);
    let place = Scratch::new().map_err(|error| Error::os("prepare a bind in", scratch_base(), error))?;
    let prepared = place.prepare(source, depth, attributes, seen.facts.file_type).map_err(os)?;
    bind_path(&prepared, &lookup::path_of(&seen.fd), depth).map_err(os)?;
    drop(place);
    verify(operation, target, seen, attributes)
}

/// The mount just made is known by its place only: the topmost on the target.
fn verify(
    operation: &'static str,
    target: &Target,
    before: &Seen,
    attributes: MountAttributes,
) -> Result<Attached> {
    let top = target.look(operation)?;
    let Some(details) = Details::of(&top.fd, operation, target.path())? else { return Ok(Attached::Lost) };
    drop(top);
    if details.parent == before.directory.mount && details.attributes == attributes {
        return Ok(Attached::Ours);
    }
    let path = target.kernel_path(operation)?;
    rustix::mount::unmount(&path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
        .map_err(|error| target.error(operation, error))?;
    if details.parent != before.directory.mount {
        return Ok(Attached::Lost);
    }
    let reason = format!("asked for {attributes}, the kernel made it {}", details.attributes);
    Err(Error::new(ErrorKind::Unsupported, operation, reason).at(target.path()))
}

/// A private tmpfs on a directory that only this process's user can enter; both go with it.
#[derive(Debug)]
struct Scratch {
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
    fn new() -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!(".csi-mount-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = scratch_base().join(name);
        DirBuilder::new().mode(0o700).create(&directory)?;
        let scratch = Self { directory };
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
        rustix::mount::mount("csi-mount", &scratch.directory, "tmpfs", flags, c"mode=0700,size=64k")?;
        rustix::mount::mount_change(&scratch.directory, MountPropagationFlags::PRIVATE)?;
        Ok(scratch)
    }

    /// A bind of the source with all its attributes.
    fn prepare(
        &self,
        source: &OwnedFd,
        depth: Depth,
        attributes: MountAttributes,
        file_type: FileType,
    ) -> io::Result<PathBuf> {
        let path = self.directory.join("mount");
        if file_type == FileType::Directory {
            std::fs::create_dir(&path)?;
        } else {
            File::create(&path)?;
        }
        bind_path(&lookup::path_of(source), &path, depth)?;
        rustix::mount::mount_remount(&path, MountFlags::BIND | mount_flags(attributes), c"")?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Detached: nobody waits for it, and what was bound from it lives on.
        let unmounted =
            rustix::mount::unmount(&self.directory, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        let removed = std::fs::remove_dir(&self.directory);
        if let (Err(error), _) | (_, Err(error)) = (unmounted.map_err(io::Error::from), removed) {
            tracing::warn!(%error, directory = %self.directory.display(), "scratch directory not removed");
        }
    }
}

fn bind_path(source: &Path, target: &Path, depth: Depth) -> io::Result<()> {
    Ok(match depth {
        Depth::Single => rustix::mount::mount_bind(source, target),
        Depth::Recursive => rustix::mount::mount_bind_recursive(source, target),
    }?)
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
