//! Moves a prepared mount onto a target, at most one, and verifies it there.
//!
//! The kernel has no call that mounts only if nothing is mounted. So this module looks, mounts and looks
//! again, and if another process was faster it removes its own mount and no other. Users of this crate wait
//! for each other, because even a short-lived stack of binds is harmful: what is mounted on a bind of a
//! shared mount is propagated to the bind's source as well.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::mount::UnmountFlags;

use crate::detached::prepared::Prepared;
use crate::detached::scratch;
use crate::error::{Error, ErrorKind, Result};
use crate::mounted::health;
use crate::place::mark::MarkedMount;
use crate::place::target::{OpenTarget, Target};
use crate::place::target_lock::{Purpose, TargetLock};
use crate::sys::attributes::MountAttributes;
use crate::sys::descriptor::{Locked, path_of};
use crate::sys::ids::MountId;
use crate::table::details::{Basics, Details};
use crate::table::facts;
use crate::table::mountinfo::mounts;

/// How many times a target is retried while mounts appear and disappear there.
const MAX_ATTEMPTS: u32 = 5;
/// How long another process that mounted over ours has to notice this and withdraw.
const WITHDRAWAL_TIME_LIMIT: Duration = Duration::from_secs(1);

/// How long to wait for another user of this crate to attach its mount, which takes microseconds.
const LOCK_TIME_LIMIT: Duration = Duration::from_secs(5);

/// What a mount call did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It mounted.
    Mounted,
    /// The same thing was mounted there already, with the same attributes.
    AlreadyMounted,
}

/// Whether the new mount is the one that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attached {
    /// Our mount is on the target.
    Ours,
    /// Another process mounted first, and our mount is removed.
    Lost,
}

/// Mounts with `mount`, unless something is mounted already.
///
/// An existing mount must work, and `accept` either accepts it as the same thing or refuses it.
pub(crate) fn mount_once(
    operation: &'static str,
    target: &Target,
    accept: impl Fn(&OpenTarget, &Details) -> Result<()>,
    mount: impl Fn(OpenTarget) -> Result<Attached>,
) -> Result<Outcome> {
    scratch::remove_abandoned();
    for _ in 0..MAX_ATTEMPTS {
        let lock = TargetLock::take(target, Purpose::Mount);
        let opened = target.open(operation)?;
        if opened.facts.is_mount_root {
            // No details: it was unmounted since, so look again.
            if let Some(details) = Details::from_fd(&opened.fd, operation, target.path())? {
                drop(lock);
                let is_alive = || health::require(operation, target, &opened, &details);
                // A broken filesystem does not report its root, so the comparison is impossible.
                if opened.facts.is_broken() {
                    is_alive()?;
                }
                accept(&opened, &details)?;
                is_alive()?;
                target.mark_existing(operation, &opened.facts)?;
                return Ok(Outcome::AlreadyMounted);
            }
            continue;
        }
        drop(lock);
        if mount(opened)? == Attached::Ours {
            return Ok(Outcome::Mounted);
        }
    }
    Err(busy(operation, target))
}

pub(crate) fn busy(operation: &'static str, target: &Target) -> Error {
    let reason = "another process mounts and unmounts there at the same time";
    Error::new(ErrorKind::Busy, operation, reason).at(target.path())
}

/// The error for a target where something else than the requested mount is mounted.
pub(crate) fn refuse(operation: &'static str, target: &Target, found: &Details, difference: &str) -> Error {
    let reason = format!("{difference}; the existing mount is {found}");
    Error::new(ErrorKind::AlreadyMounted, operation, reason)
        .at(target.path())
        .hint("find out whose mount it is; if nothing needs it, unpublish or unmount it first")
}

/// Refuses an existing mount that has other attributes than these.
pub(crate) fn require_attributes(
    operation: &'static str,
    target: &Target,
    found: &Details,
    asked: MountAttributes,
) -> Result<()> {
    if found.attributes == asked {
        return Ok(());
    }
    let difference = format!("{asked} was requested, but it is mounted with other attributes");
    Err(refuse(operation, target, found, &difference))
}

/// Moves a prepared mount onto what was seen at the target, and verifies it.
pub(crate) fn attach(
    operation: &'static str,
    mount: Prepared,
    target: &Target,
    opened: &OpenTarget,
    attributes: MountAttributes,
) -> Result<Attached> {
    // Dropped after the mount's descriptor, which keeps the mount busy.
    let _held = TargetLock::take(target, Purpose::Mount);
    let mount = mount;
    let _file_lock = lock(opened);
    if target.open(operation)?.facts.is_mount_root {
        return Ok(Attached::Lost);
    }
    if target.owner().is_some() {
        let root = facts::from_fd(mount.fd()).map_err(|error| target.error(operation, error))?;
        target.set_mark(operation, &opened.fd, MarkedMount::from_facts(&root))?;
    }
    move_and_verify(operation, &mount, target, opened, attributes)
}

/// Moves a prepared mount of a FUSE filesystem onto the target's topmost mount, which must be this one, and verifies it.
pub(crate) fn attach_on_top(
    operation: &'static str,
    mount: Prepared,
    target: &Target,
    below: MountId,
    attributes: MountAttributes,
) -> Result<Attached> {
    let _held = TargetLock::take(target, Purpose::Mount);
    let mount = mount;
    let opened = target.open(operation)?;
    if opened.facts.mount != below {
        return Ok(Attached::Lost);
    }
    // It is true before the move and after it, wherever the process is killed.
    target.mark_covered(operation, MarkedMount::Fuse)?;
    move_and_verify(operation, &mount, target, &opened, attributes)
}

fn move_and_verify(
    operation: &'static str,
    mount: &Prepared,
    target: &Target,
    opened: &OpenTarget,
    attributes: MountAttributes,
) -> Result<Attached> {
    mount.move_onto(&opened.fd).map_err(|error| target.error(operation, error))?;
    let attached = verify(operation, mount.fd(), target, opened, attributes);
    if !matches!(attached, Ok(Attached::Ours)) {
        undo(mount.fd());
    }
    attached
}

/// Locks the bare directory or file, beneath anything that is mounted there, against other users of this
/// crate.
///
/// The lock avoids races but safety does not depend on it. Without it (the filesystem has no locks, or
/// another process keeps the lock) the later verification decides.
fn lock(opened: &OpenTarget) -> Option<Locked<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match opened.facts.file_type {
        FileType::Directory => rustix::fs::openat(&opened.fd, ".", flags | OFlags::DIRECTORY, Mode::empty()),
        FileType::RegularFile => rustix::fs::open(path_of(&opened.fd), flags, Mode::empty()),
        _ => return None,
    };
    Locked::within(file.ok()?, LOCK_TIME_LIMIT).ok()
}

/// Removes this mount wherever it is, and nothing else. It leaves a mount that is no longer attached, and one
/// that another mount covers, because that would be removed too.
fn undo(mount: &OwnedFd) {
    if is_covered(mount) {
        tracing::warn!("our mount stays beneath the mount of another process");
        return;
    }
    let path: PathBuf = path_of(mount);
    // The descriptor's link leads to no other mount. Detached, because the descriptor keeps it busy.
    if let Err(error) = rustix::mount::unmount(&path, UnmountFlags::DETACH) {
        tracing::debug!(%error, "our mount was already unmounted");
    }
}

/// Whether another mount covers the root of this mount. False if the mount table cannot be read.
fn is_covered(mount: &OwnedFd) -> bool {
    let (Ok(facts), Ok(table)) = (facts::from_fd(mount), mounts()) else { return false };
    let Some(own) = table.iter().find(|entry| entry.id == facts.mount) else { return false };
    table.iter().any(|entry| entry.parent == own.id && entry.mount_point == own.mount_point)
}

fn verify(
    operation: &'static str,
    mount: &OwnedFd,
    target: &Target,
    opened: &OpenTarget,
    attributes: MountAttributes,
) -> Result<Attached> {
    let Some(ours) = Basics::from_fd(mount, operation, target.path())? else { return Ok(Attached::Lost) };
    if ours.parent != opened.facts.mount {
        return Ok(Attached::Lost);
    }
    if ours.attributes != attributes {
        let reason = format!("{attributes} was requested, but the kernel mounted it {}", ours.attributes);
        return Err(Error::new(ErrorKind::Unsupported, operation, reason).at(target.path()));
    }
    let deadline = Instant::now() + WITHDRAWAL_TIME_LIMIT;
    while target.open(operation)?.facts.mount != ours.id {
        // Our mount is beneath, so the other process has lost. If it follows the same rules, it is about to
        // withdraw.
        if Instant::now() > deadline {
            let reason = "another process mounted over it";
            let error = Error::new(ErrorKind::AlreadyMounted, operation, reason).at(target.path());
            return Err(error.hint("unmount both mounts"));
        }
        sleep(Duration::from_millis(2));
    }
    Ok(Attached::Ours)
}

#[cfg(test)]
mod needs_root {
    use std::path::Path;

    use rustix::fs::FileType;
    use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags};

    use super::*;
    use crate::detached::scratch::Scratch;
    use crate::testing::private_mount_namespace;

    const OPERATION: &str = "mount at";

    /// A mount that is prepared when another one comes first.
    fn prepared(features: Features) -> Prepared {
        match features {
            Features::New => {
                let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
                rustix::mount::fsconfig_set_string(&context, "source", "ours").unwrap();
                rustix::mount::fsconfig_create(&context).unwrap();
                let flags = MountAttrFlags::empty();
                let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags).unwrap();
                Prepared::Detached(mount)
            }
            Features::Old => {
                let scratch = Scratch::new(FileType::Directory).unwrap();
                mount(&scratch.mount_path(), "ours");
                scratch.into_prepared().unwrap()
            }
        }
    }

    #[derive(Clone, Copy)]
    enum Features {
        New,
        Old,
    }

    fn mount(path: &Path, source: &str) {
        rustix::mount::mount(source, path, "tmpfs", MountFlags::empty(), c"").unwrap();
    }

    fn in_directory(test: impl FnOnce(&Target) + Send) {
        let directory = tempfile::tempdir().unwrap();
        private_mount_namespace(|| {
            let target = Target::new(directory.path().join("target")).unwrap();
            target.create_dir().unwrap();
            test(&target);
        });
    }

    fn sources(target: &Target) -> Vec<String> {
        let on_target = mounts().unwrap().into_iter().filter(|entry| entry.mount_point == target.path());
        on_target.map(|entry| entry.source.into_string().unwrap()).collect()
    }

    #[test]
    fn the_second_of_two_removes_only_its_own_mount() {
        for features in [Features::New, Features::Old] {
            in_directory(|target| {
                let opened = target.open(OPERATION).unwrap();
                let ours = prepared(features);
                mount(target.path(), "theirs");
                let attached = move_and_verify(OPERATION, &ours, target, &opened, MountAttributes::empty());
                assert_eq!(attached.unwrap(), Attached::Lost);
                assert_eq!(sources(target), ["theirs"]);
            });
        }
    }

    #[test]
    fn an_undo_removes_no_mount_of_others() {
        for features in [Features::New, Features::Old] {
            in_directory(|target| {
                let opened = target.open(OPERATION).unwrap();
                let ours = prepared(features);
                ours.move_onto(&opened.fd).unwrap();
                mount(target.path(), "theirs");
                undo(ours.fd());
                assert_eq!(sources(target), ["ours", "theirs"]);
                rustix::mount::unmount(target.path(), UnmountFlags::empty()).unwrap();
                undo(ours.fd());
                assert_eq!(sources(target), [""; 0]);
            });
        }
    }

    #[test]
    fn a_mount_without_its_attributes_does_not_stay() {
        in_directory(|target| {
            let opened = target.open(OPERATION).unwrap();
            let ours = prepared(Features::New);
            let error =
                move_and_verify(OPERATION, &ours, target, &opened, MountAttributes::RDONLY).unwrap_err();
            assert!(error.to_string().contains("ro was requested, but the kernel mounted it rw"), "{error}");
            assert_eq!(sources(target), [""; 0]);
        });
    }

    #[test]
    fn the_first_of_two_waits_for_the_second_to_withdraw() {
        in_directory(|target| {
            let opened = target.open(OPERATION).unwrap();
            let ours = prepared(Features::New);
            ours.move_onto(&opened.fd).unwrap();
            mount(target.path(), "theirs");
            let verified = std::thread::scope(|scope| {
                let verify =
                    scope.spawn(|| verify(OPERATION, ours.fd(), target, &opened, MountAttributes::empty()));
                // Detached, as a process that withdraws does it, because the verifying thread can have it
                // open at this moment.
                rustix::mount::unmount(target.path(), UnmountFlags::DETACH).unwrap();
                verify.join().unwrap()
            });
            assert_eq!(verified.unwrap(), Attached::Ours);
            assert_eq!(sources(target), ["ours"]);
        });
    }
}
