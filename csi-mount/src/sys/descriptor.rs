//! Open descriptors: their paths, their locks, and how another process gets one.

use std::ffi::{c_int, c_void};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::libc;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

/// The path by which a system call that takes no descriptor reaches an open file. Needs /proc.
pub(crate) fn path_of(fd: impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()).into()
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

/// Locks an open file (`flock(2)`); `WOULDBLOCK` if another process holds the lock for the whole limit.
///
/// It polls, because the kernel's own wait has no limit, and a signal to end that wait would affect the whole
/// program.
pub(crate) fn lock_within(file: impl AsFd, limit: Duration) -> rustix::io::Result<()> {
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => sleep(pause),
            result => return result,
        }
        pause = (pause * 2).min(Duration::from_millis(5));
    }
}

/// Room for the header and one descriptor, aligned like the header.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Sends `length` bytes from `bytes`, and the descriptor, as one message. It makes one system call on stack
/// memory, so it can be called after a fork.
///
/// # Safety
/// `bytes` points to that many live bytes.
pub(super) unsafe fn send_descriptor(socket: c_int, bytes: *const c_void, length: usize, fd: c_int) -> isize {
    const FD: u32 = size_of::<c_int>() as u32;
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.cast_mut(), iov_len: length };
    // SAFETY: all zeros is a valid value of this struct of integers and pointers (musl's has private
    // padding).
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    // SAFETY: `control` is live, aligned and longer than CMSG_SPACE of one descriptor, so the first header is
    // in it and has room for its data; sendmsg only reads what the message points to.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(FD) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(FD) as _;
        libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(fd);
        libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL)
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
