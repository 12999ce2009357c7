//! Open descriptors: their paths, their locks, and who is at the other end of a socket.

use std::ffi::c_int;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::libc;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::sys::deadline::deadline;
use crate::sys::hash::fnv1a;

/// The path by which a system call that takes no descriptor reaches an open file. Needs /proc.
pub(crate) fn path_of(fd: impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()).into()
}

/// Another descriptor of an open file that this process was started with, by its number.
pub(crate) fn duplicate(number: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the arguments are integers, and a number that is not open is an error.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    let copy = nix::errno::Errno::result(copy)?;
    // SAFETY: the kernel has just made it, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Opens the regular file of a descriptor that was opened with `O_PATH`, whatever its name leads to meanwhile.
/// Anything else is not opened, because opening it can block (a pipe) or have an effect (a device).
pub(crate) fn reopen_file(place: impl AsFd, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let found = FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode);
    if found != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    // NONBLOCK: the open of a file with a lease fails and does not wait for the holder.
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(path_of(&place), flags, Mode::empty())
}

/// Opens a directory again, to read, lock or sync it: what is mounted on it since does not matter.
pub(crate) fn reopen_directory(directory: impl AsFd) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(directory, ".", flags, Mode::empty())
}

/// An open file that is locked (`flock(2)`) until it is dropped.
///
/// A lock belongs to the open file, and ends when the last descriptor of it is closed. A child that another thread is
/// forking has a copy of each descriptor for a moment. So the lock is released, and does not wait for the last close.
#[derive(Debug)]
pub(crate) struct Locked<F: AsFd>(F);

impl<F: AsFd> Locked<F> {
    /// `WOULDBLOCK` if another open file has the lock.
    pub(crate) fn now(file: F) -> rustix::io::Result<Self> {
        flock(&file, FlockOperation::NonBlockingLockExclusive).map(|()| Self(file))
    }

    /// `WOULDBLOCK` if another open file has the lock for the whole limit.
    ///
    /// It polls, because the kernel's own wait has no limit, and a signal to end that wait would affect the whole
    /// program.
    pub(crate) fn within(file: F, limit: Duration) -> rustix::io::Result<Self> {
        let deadline = deadline(limit);
        let mut pause = Duration::from_millis(1);
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => sleep(pause),
                result => return result.map(|()| Self(file)),
            }
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }
}

impl<F: AsFd> AsFd for Locked<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl<F: AsFd> Drop for Locked<F> {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// A lock of one byte (`fcntl(2)`). The byte is chosen by a name, so two names can wait for each other.
pub(crate) fn byte_lock(name: &[u8], kind: c_int) -> libc::flock {
    let byte = fnv1a(name) >> 2;
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte.cast_signed(),
        l_len: 1,
        l_pid: 0,
    }
}

/// The user at the other end of a unix socket, as it was when the connection was made (`SO_PEERCRED`).
///
/// Not by rustix: its type can't have the process number 0, of a process that is not visible from here.
pub(crate) fn peer_user(socket: impl AsFd) -> std::io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: both pointers are to live values, and the length is that of the first.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if done == 0 { Ok(peer.uid) } else { Err(std::io::Error::last_os_error()) }
}
