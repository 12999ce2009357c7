//! What runs in a child: raw system calls, as those of rustix are, on memory that existed before the fork.

use std::ffi::{CStr, c_int};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, IntoRawFd as _, OwnedFd};
use std::slice;

use nix::libc;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, chmod, fstat, fstatfs, fsync, openat, statx,
    syncfs, unlinkat,
};
use rustix::io::{Errno, Result};
use rustix::mount::{UnmountFlags, unmount};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};
use rustix::process::{Pid, Signal, fchdir, getppid, set_parent_process_death_signal, setpgid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::child_call::{ChildCall, MountElsewhere, Open};
use super::{ANSWER, CLOSED, ChildReply};
use crate::sys::features::{self, Feature};
use crate::sys::ioctl::{self, LoopStatus, Unwritten};
use crate::sys::new_mount::{MountMethod, NewMount, Refusal};

/// Makes only raw system calls: another thread can have held any lock at the time of the fork.
pub(super) fn in_child(question: ChildCall<'_>, socket: BorrowedFd<'_>, parent: Pid) -> ! {
    let (needed, named): (Option<c_int>, &[c_int]) = match question {
        ChildCall::Open(Open { directory: fd, .. })
        | ChildCall::Usage(fd)
        | ChildCall::Health(fd)
        | ChildCall::WaitForThaw(fd)
        | ChildCall::ShutDown(fd, _)
        | ChildCall::Trim(fd, ..)
        | ChildCall::SetPermissions(fd, ..)
        | ChildCall::UnmountElsewhere(MountElsewhere { namespace: fd, .. })
        | ChildCall::Unmount(fd, ..) => (Some(fd.as_raw_fd()), &[]),
        ChildCall::Mount(NewMount { method: MountMethod::Context { context, .. }, named }) => {
            (Some(context.as_raw_fd()), named)
        }
        ChildCall::Mount(NewMount { method: MountMethod::Path { .. }, named }) => (None, named),
        ChildCall::LoopStatus(_) => (None, &[]),
        #[cfg(feature = "remote")]
        ChildCall::Device(call) => (Some(call.descriptor()), &[]),
    };
    // An unmount must finish its writes even if the thread that asked for it ends.
    let is_bound = !matches!(question, ChildCall::Unmount(..));
    if is_bound {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
    // The parent can have died before the signal was requested.
    if getppid() != Some(parent) {
        // SAFETY: it runs nothing of the parent's.
        unsafe { libc::_exit(1) };
    }
    let _ = setpgid(None, None);
    let number = socket.as_raw_fd();
    // SAFETY: the parent's descriptors must not stay open in a child that can get stuck, and it uses no other one.
    unsafe { close_all_but(number, needed.unwrap_or(number), named) };
    let _ = send(socket, &[0; CLOSED], SendFlags::NOSIGNAL);
    let (answer, fd) = match question {
        ChildCall::Open(place) => match open(place) {
            Ok(fd) => (ChildReply::default(), Some(fd)),
            Err(error) => (done(Err(error)), None),
        },
        ChildCall::Usage(fd) => (usage(fd), None),
        ChildCall::Health(fd) => (health(fd), None),
        ChildCall::Unmount(directory, name, flags) => {
            // The child's working directory is its own.
            (done(fchdir(directory).and_then(|()| unmount(name, flags))), None)
        }
        ChildCall::Mount(NewMount { method, .. }) => match method.make() {
            Ok(fd) => (ChildReply::default(), fd),
            Err(Refusal { error, setting }) => (ChildReply { setting, ..done(Err(error)) }, None),
        },
        ChildCall::LoopStatus(node) => (loop_status(node).unwrap_or_else(|error| done(Err(error))), None),
        ChildCall::UnmountElsewhere(place) => (done(unmount_elsewhere(place)), None),
        ChildCall::WaitForThaw(directory) => (done(wait_for_thaw(directory)), None),
        ChildCall::ShutDown(root, unwritten) => (done(shut_down(root, unwritten)), None),
        ChildCall::Trim(root, start, length) => match trim(root, start, length) {
            Ok(blocks) => (ChildReply { blocks, ..ChildReply::default() }, None),
            Err(error) => (done(Err(error)), None),
        },
        #[cfg(feature = "remote")]
        ChildCall::Device(call) => (call.make(), None),
        ChildCall::SetPermissions(directory, link, mode) => {
            (done(set_permissions(directory, link, mode)), None)
        }
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = SendAncillaryBuffer::new(&mut space);
    let fd = fd.as_ref().map(|fd| [fd.as_fd()]);
    if let Some(fd) = &fd {
        attached.push(SendAncillaryMessage::ScmRights(fd));
    }
    // SAFETY: `answer` is live and ANSWER bytes long, without padding; _exit runs nothing of the parent's.
    unsafe {
        let bytes = slice::from_raw_parts((&raw const answer).cast::<u8>(), ANSWER);
        let _ = sendmsg(socket, &[IoSlice::new(bytes)], &mut attached, SendFlags::NOSIGNAL);
        libc::_exit(0)
    }
}

/// Closes all descriptors except these.
///
/// # Safety
/// Only for a process that uses no other descriptor afterwards.
unsafe fn close_all_but(one: c_int, other: c_int, named: &[c_int]) {
    const CLOSE_RANGE: libc::c_long = 436;
    let is_kept = |fd: c_int| fd == one || fd == other || named.contains(&fd);
    // It only reads this thread's own memory.
    let is_there = features::has(Feature::CloseRange);
    let mut from = 0;
    loop {
        let kept = [one, other].into_iter().chain(named.iter().copied()).filter(|fd| *fd >= from).min();
        let to = kept.map_or(c_int::MAX, |kept| kept - 1);
        // SAFETY: as the caller promises; the arguments are integers.
        if from <= to && (!is_there || unsafe { libc::syscall(CLOSE_RANGE, from, to, 0) } != 0) {
            // Before Linux 5.9: closes as many as a process usually has.
            // SAFETY: as above.
            (0..1024).filter(|fd| !is_kept(*fd)).for_each(|fd| _ = unsafe { libc::close(fd) });
            return;
        }
        let Some(kept) = kept else { return };
        from = kept + 1;
    }
}

fn done(result: Result<()>) -> ChildReply {
    ChildReply { error: number_of(result), ..ChildReply::default() }
}

fn number_of(result: Result<()>) -> u64 {
    result.err().map_or(0, |error| error.raw_os_error() as u64)
}

fn open(place: Open<'_>) -> Result<OwnedFd> {
    loop {
        match place.open() {
            // Something was renamed during the walk, so the kernel cannot guarantee the result.
            Err(Errno::AGAIN) => {}
            opened => return opened,
        }
    }
}

pub(super) fn health(fd: BorrowedFd<'_>) -> ChildReply {
    ChildReply { stat_error: number_of(stat(fd)), ..usage(fd) }
}

fn usage(fd: BorrowedFd<'_>) -> ChildReply {
    let found = match fstatfs(fd) {
        Ok(found) => found,
        Err(error) => return done(Err(error)),
    };
    // The counts are in fragments if the filesystem has them.
    let block_size = if found.f_frsize > 0 { found.f_frsize } else { found.f_bsize };
    ChildReply {
        block_size: block_size as u64,
        blocks: found.f_blocks,
        blocks_free: found.f_bfree,
        blocks_available: found.f_bavail,
        inodes: found.f_files,
        inodes_free: found.f_ffree,
        ..ChildReply::default()
    }
}

fn set_permissions(directory: BorrowedFd<'_>, link: &CStr, mode: u32) -> Result<()> {
    let mode = Mode::from_raw_mode(mode & 0o7777);
    if Mode::from_raw_mode(fstat(directory)?.st_mode) == mode {
        return Ok(());
    }
    // `fchmod` refuses an `O_PATH` descriptor.
    chmod(link, mode)
}

/// The kernel asks for write access before it looks up the name. Nothing changes: no directory has this name.
fn wait_for_thaw(directory: BorrowedFd<'_>) -> Result<()> {
    const UNUSED_NAME: &CStr =
        c"csi-mount asks whether this filesystem is frozen; no directory has this name";
    unlinkat(directory, UNUSED_NAME, AtFlags::REMOVEDIR)
}

/// The root is an `O_PATH` descriptor. An XFS that shut down does not even open it.
fn shut_down(root: BorrowedFd<'_>, unwritten: Unwritten) -> Result<()> {
    let directory = match open_for_ioctl(root) {
        Err(Errno::IO) => return Ok(()),
        opened => opened?,
    };
    if is_shut_down(directory) {
        return Ok(());
    }
    if unwritten == Unwritten::WrittenBack {
        syncfs(directory)?;
    }
    ioctl::shut_down(directory, unwritten)?;
    // XFS reports a success also where its device could not be frozen, and it was not shut down.
    if is_shut_down(directory) { Ok(()) } else { Err(Errno::BUSY) }
}

/// Opens a directory for more than `O_PATH` allows. It stays open until the child exits.
fn open_for_ioctl<'a>(root: BorrowedFd<'_>) -> Result<BorrowedFd<'a>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(root, c".", flags, Mode::empty()).map(kept_open)
}

fn kept_open<'a>(opened: OwnedFd) -> BorrowedFd<'a> {
    // SAFETY: it was just opened, and nothing in the child closes it.
    unsafe { BorrowedFd::borrow_raw(opened.into_raw_fd()) }
}

fn trim(root: BorrowedFd<'_>, start: u64, length: u64) -> Result<u64> {
    ioctl::trim(open_for_ioctl(root)?, start, length)
}

/// Whether the filesystem refuses to work: each `fsync(2)` of a directory fails (ext4, btrfs), or its `fstat(2)`
/// (XFS). An error of an earlier write is reported once only.
fn is_shut_down(directory: BorrowedFd<'_>) -> bool {
    let fails = || fsync(directory) == Err(Errno::IO);
    stat(directory) == Err(Errno::IO) || (fails() && fails())
}

/// The open comes first and can hang as well: it reads the partition table of a new device.
fn loop_status(node: &CStr) -> Result<ChildReply> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let fd = openat(CWD, node, flags, Mode::empty()).map(kept_open)?;
    let info = ioctl::loop_status(fd)?;
    let sequence = ioctl::disk_sequence(fd).unwrap_or(0);
    Ok(ChildReply { words: LoopStatus { info, sequence }.to_words(), ..ChildReply::default() })
}

/// A `statx` that the file's server must answer.
fn stat(fd: BorrowedFd<'_>) -> Result<()> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC | AtFlags::NO_AUTOMOUNT;
    statx(fd, c"", flags, StatxFlags::BASIC_STATS).map(drop)
}

/// Does nothing and returns `ESTALE` if a different mount is there.
fn unmount_elsewhere(place: MountElsewhere<'_>) -> Result<()> {
    move_into_link_name_space(place.namespace, Some(LinkNameSpaceType::Mount))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fchdir(openat(CWD, place.directory, flags, Mode::empty())?)?;
    if mount_at(place.name)? != place.mount {
        return Err(Errno::STALE);
    }
    // Without MNT_DETACH and MNT_FORCE, so that the kernel refuses it while the mount is in use.
    unmount(place.name, UnmountFlags::NOFOLLOW)
}

/// The id of the mount whose root has this name in the child's working directory.
fn mount_at(name: &CStr) -> Result<u64> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = statx(CWD, name, flags, StatxFlags::MNT_ID)?;
    let knows_mount = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    if found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) && knows_mount {
        Ok(found.stx_mnt_id)
    } else {
        Err(Errno::STALE)
    }
}
