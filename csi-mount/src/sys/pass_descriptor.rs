//! Sends a descriptor to another process, with only a system call on stack memory.

use std::ffi::{c_int, c_void};
use std::mem::{size_of, zeroed};

use nix::libc;

/// Room for the header and one descriptor, aligned like the header.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Sends `length` bytes from `bytes`, and the descriptor, as one message. Can be called after a fork.
///
/// # Safety
/// `bytes` points to that many live bytes.
pub(super) unsafe fn send(socket: c_int, bytes: *const c_void, length: usize, fd: c_int) -> isize {
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
