//! What runs in a child: raw system calls, on memory that existed before the fork.

use std::ffi::{CStr, c_int};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::libc;

use super::child_call::{ChildCall, MountElsewhere, Open};
use super::{ANSWER, CLOSED, ChildReply};
use crate::sys::descriptor::send_descriptor;
use crate::sys::features::{self, Feature, OPENAT2};
use crate::sys::ioctl::{self, LoopStatus, Unwritten};
use crate::sys::new_mount::{self, MountMethod, NewMount};

/// Makes only raw system calls: another thread can have held any lock at the time of the fork.
pub(super) fn in_child(question: ChildCall<'_>, socket: c_int, parent: libc::pid_t) -> ! {
    let (needed, named): (Option<c_int>, &[c_int]) = match question {
        ChildCall::Open(Open { directory, .. }) => (directory.map(|fd| fd.as_raw_fd()), &[]),
        ChildCall::Usage(fd)
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
    // SAFETY: plain integers. The parent's descriptors must not stay open in a child that can get stuck.
    unsafe {
        if is_bound {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        }
        // The parent can have died before the signal was requested.
        if libc::getppid() != parent {
            libc::_exit(1);
        }
        libc::setpgid(0, 0);
        close_all_but(socket, needed.unwrap_or(socket), named);
        libc::send(socket, [0_u8; CLOSED].as_ptr().cast(), CLOSED, libc::MSG_NOSIGNAL);
    }
    let (answer, fd) = match question {
        ChildCall::Open(place) => match open(place) {
            Ok(fd) => (ChildReply::default(), Some(fd)),
            Err(number) => (ChildReply { error: number, ..ChildReply::default() }, None),
        },
        ChildCall::Usage(fd) => (usage(fd), None),
        ChildCall::Health(fd) => (ChildReply { stat_error: stat(fd), ..usage(fd) }, None),
        ChildCall::Unmount(directory, name, flags) => (unmount(directory, name, flags), None),
        ChildCall::Mount(NewMount { method, .. }) => match new_mount::make(method) {
            Ok(fd) => (ChildReply::default(), fd),
            Err(refusal) => {
                (ChildReply { error: refusal.error, setting: refusal.setting, ..ChildReply::default() }, None)
            }
        },
        ChildCall::LoopStatus(node) => (loop_status(node), None),
        ChildCall::UnmountElsewhere(place) => {
            let error = unmount_elsewhere(place).err().unwrap_or(0);
            (ChildReply { error, ..ChildReply::default() }, None)
        }
        ChildCall::WaitForThaw(directory) => (wait_for_thaw(directory), None),
        ChildCall::ShutDown(root, unwritten) => {
            let error = shut_down(root, unwritten).err().unwrap_or(0);
            (ChildReply { error, ..ChildReply::default() }, None)
        }
        ChildCall::Trim(root, start, length) => (trim(root, start, length), None),
        #[cfg(feature = "remote")]
        ChildCall::Device(call) => (call.make(), None),
        ChildCall::SetPermissions(directory, link, mode) => (set_permissions(directory, link, mode), None),
    };
    let bytes: *const ChildReply = &raw const answer;
    // SAFETY: `answer` is live and ANSWER bytes long, without padding; _exit runs nothing of the parent's.
    unsafe {
        match fd {
            Some(fd) => send_descriptor(socket, bytes.cast(), ANSWER, fd),
            None => libc::send(socket, bytes.cast(), ANSWER, libc::MSG_NOSIGNAL),
        };
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

/// `struct open_how`.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

fn open(place: Open<'_>) -> Result<c_int, u64> {
    let directory = place.directory.map_or(libc::AT_FDCWD, |fd| fd.as_raw_fd());
    let flags = place.flags | libc::O_PATH | libc::O_CLOEXEC;
    loop {
        let how = OpenHow { flags: flags as u64, mode: 0, resolve: place.resolve };
        // SAFETY: the path is a C string that the parent keeps, `how` a live struct of the size that is
        // passed.
        let fd = unsafe {
            if place.resolve == 0 {
                libc::openat(directory, place.path.as_ptr(), flags)
            } else {
                let how = &raw const how;
                let size = size_of::<OpenHow>();
                libc::syscall(OPENAT2, directory, place.path.as_ptr(), how, size) as c_int
            }
        };
        match Errno::last_raw() {
            _ if fd >= 0 => return Ok(fd),
            // Something was renamed during the walk, so the kernel cannot guarantee the result.
            libc::EAGAIN => {}
            number => return Err(number as u64),
        }
    }
}

pub(super) fn usage(fd: BorrowedFd<'_>) -> ChildReply {
    let mut found = MaybeUninit::<libc::statfs64>::zeroed();
    // SAFETY: the buffer is live and of the call's type.
    let error = error_of(unsafe { libc::fstatfs64(fd.as_raw_fd(), found.as_mut_ptr()) });
    // SAFETY: all zeros is a valid value of this struct of integers, and the kernel overwrote it with
    // another.
    let found = unsafe { found.assume_init() };
    // The counts are in fragments if the filesystem has them.
    let block_size = if found.f_frsize > 0 { found.f_frsize } else { found.f_bsize };
    ChildReply {
        error,
        block_size: block_size as u64,
        blocks: found.f_blocks,
        blocks_free: found.f_bfree,
        blocks_available: found.f_bavail,
        inodes: found.f_files,
        inodes_free: found.f_ffree,
        ..ChildReply::default()
    }
}

fn set_permissions(directory: BorrowedFd<'_>, link: &CStr, mode: u32) -> ChildReply {
    const BITS: u32 = 0o7777;
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the buffer is live and of the call's type.
    let error = error_of(unsafe { libc::fstat(directory.as_raw_fd(), found.as_mut_ptr()) });
    // SAFETY: all zeros is a valid value of this struct of integers, and the kernel overwrote it with
    // another.
    let is_right = unsafe { found.assume_init() }.st_mode & BITS == mode & BITS;
    if error != 0 || is_right {
        return ChildReply { error, ..ChildReply::default() };
    }
    // `fchmod` refuses an `O_PATH` descriptor.
    // SAFETY: the link is a C string that the parent keeps.
    let result = unsafe { libc::chmod(link.as_ptr(), mode & BITS) };
    ChildReply { error: error_of(result), ..ChildReply::default() }
}

/// The kernel asks for write access before it looks up the name. Nothing changes: no directory has this name.
fn wait_for_thaw(directory: BorrowedFd<'_>) -> ChildReply {
    const UNUSED_NAME: &CStr =
        c"csi-mount asks whether this filesystem is frozen; no directory has this name";
    // SAFETY: the name is a C string, the descriptor is open until the child exits.
    let result = unsafe { libc::unlinkat(directory.as_raw_fd(), UNUSED_NAME.as_ptr(), libc::AT_REMOVEDIR) };
    ChildReply { error: error_of(result), ..ChildReply::default() }
}

/// The root is an `O_PATH` descriptor. An XFS that shut down does not even open it.
fn shut_down(root: BorrowedFd<'_>, unwritten: Unwritten) -> Result<(), u64> {
    let directory = match open_for_ioctl(root) {
        Err(number) if number == libc::EIO as u64 => return Ok(()),
        opened => opened?,
    };
    if is_shut_down(directory) {
        return Ok(());
    }
    if unwritten == Unwritten::WrittenBack {
        // SAFETY: takes a descriptor, which is open.
        match error_of(unsafe { libc::syncfs(directory.as_raw_fd()) }) {
            0 => {}
            number => return Err(number),
        }
    }
    ioctl::shut_down(directory, unwritten).map_err(|error| error as i32 as u64)?;
    // XFS reports a success also where its device could not be frozen, and it was not shut down.
    if is_shut_down(directory) { Ok(()) } else { Err(libc::EBUSY as u64) }
}

/// Opens a directory for more than `O_PATH` allows. It stays open until the child exits.
fn open_for_ioctl<'a>(root: BorrowedFd<'_>) -> Result<BorrowedFd<'a>, u64> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the name is a C string, and `root` is open.
    let fd = unsafe { libc::openat(root.as_raw_fd(), c".".as_ptr(), flags) };
    if fd < 0 {
        return Err(Errno::last_raw() as u64);
    }
    // SAFETY: it was just opened, and nothing in the child closes it.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

fn trim(root: BorrowedFd<'_>, start: u64, length: u64) -> ChildReply {
    let freed = open_for_ioctl(root)
        .and_then(|directory| ioctl::trim(directory, start, length).map_err(|error| error as i32 as u64));
    match freed {
        Ok(blocks) => ChildReply { blocks, ..ChildReply::default() },
        Err(error) => ChildReply { error, ..ChildReply::default() },
    }
}

/// Whether the filesystem refuses to work: each `fsync(2)` of a directory fails (ext4, btrfs), or its `fstat(2)`
/// (XFS). An error of an earlier write is reported once only.
fn is_shut_down(directory: BorrowedFd<'_>) -> bool {
    let fails = || {
        // SAFETY: takes a descriptor, which is open.
        error_of(unsafe { libc::fsync(directory.as_raw_fd()) }) == libc::EIO as u64
    };
    stat(directory) == libc::EIO as u64 || (fails() && fails())
}

/// The open comes first and can hang as well: it reads the partition table of a new device.
fn loop_status(node: &CStr) -> ChildReply {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOFOLLOW;
    // SAFETY: the path is a C string that the parent keeps.
    let fd = unsafe { libc::open(node.as_ptr(), flags) };
    if fd < 0 {
        return ChildReply { error: Errno::last_raw() as u64, ..ChildReply::default() };
    }
    // SAFETY: it was just opened, and is open until the child exits.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    match ioctl::loop_status(fd) {
        Ok(info) => {
            let sequence = ioctl::disk_sequence(fd).unwrap_or(0);
            ChildReply { words: LoopStatus { info, sequence }.to_words(), ..ChildReply::default() }
        }
        Err(error) => ChildReply { error: error as i32 as u64, ..ChildReply::default() },
    }
}

/// The error number of a `statx` that the file's server must answer.
pub(super) fn stat(fd: BorrowedFd<'_>) -> u64 {
    /// `STATX_BASIC_STATS`
    const BASIC_STATS: libc::c_uint = 0x7ff;
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC | libc::AT_NO_AUTOMOUNT;
    let fd = fd.as_raw_fd();
    let path = c"".as_ptr();
    // As large as `struct statx`. The content is not used.
    let mut found = [0_u64; 32];
    // SAFETY: the path is a C string, the buffer live and as large as what the kernel writes.
    let result = unsafe { libc::syscall(libc::SYS_statx, fd, path, flags, BASIC_STATS, found.as_mut_ptr()) };
    error_of(result as c_int)
}

fn unmount(directory: BorrowedFd<'_>, name: &CStr, flags: c_int) -> ChildReply {
    // SAFETY: the name is a C string that the parent keeps. The child's working directory is its own.
    let error = unsafe {
        match error_of(libc::fchdir(directory.as_raw_fd())) {
            0 => error_of(libc::umount2(name.as_ptr(), flags)),
            error => error,
        }
    };
    ChildReply { error, ..ChildReply::default() }
}

/// Does nothing and returns `ESTALE` if a different mount is there.
fn unmount_elsewhere(place: MountElsewhere<'_>) -> Result<(), u64> {
    let checked = |result: c_int| match error_of(result) {
        0 => Ok(()),
        error => Err(error),
    };
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the child has one thread and shares nothing with its parent that setns or fchdir changes. The
    // paths are C strings that the parent keeps.
    unsafe {
        checked(libc::setns(place.namespace.as_raw_fd(), libc::CLONE_NEWNS))?;
        let directory = libc::open(place.directory.as_ptr(), flags);
        if directory < 0 {
            return Err(Errno::last_raw() as u64);
        }
        checked(libc::fchdir(directory))?;
        libc::close(directory);
    }
    if mount_at(place.name)? != place.mount {
        return Err(libc::ESTALE as u64);
    }
    // Without MNT_DETACH and MNT_FORCE, so that the kernel refuses it while the mount is in use.
    // SAFETY: the name is a C string that the parent keeps.
    checked(unsafe { libc::umount2(place.name.as_ptr(), libc::UMOUNT_NOFOLLOW) })
}

/// The id of the mount whose root has this name in the child's working directory.
fn mount_at(name: &CStr) -> Result<u64, u64> {
    /// `STATX_MNT_ID` and `STATX_ATTR_MOUNT_ROOT`
    const MOUNT_ID: libc::c_uint = 0x1000;
    const MOUNT_ROOT: u64 = 0x2000;
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let name = name.as_ptr();
    // SAFETY: the path is a C string, the buffer live and of the call's type.
    let result =
        unsafe { libc::syscall(libc::SYS_statx, libc::AT_FDCWD, name, flags, MOUNT_ID, found.as_mut_ptr()) };
    match error_of(result as c_int) {
        0 => {}
        error => return Err(error),
    }
    // SAFETY: all zeros is a valid value of this struct of integers, and the kernel overwrote it with
    // another.
    let found = unsafe { found.assume_init() };
    if found.stx_attributes & MOUNT_ROOT != 0 && found.stx_mask & MOUNT_ID != 0 {
        Ok(found.stx_mnt_id)
    } else {
        Err(libc::ESTALE as u64)
    }
}

fn error_of(result: c_int) -> u64 {
    if result == 0 { 0 } else { Errno::last_raw() as u64 }
}
