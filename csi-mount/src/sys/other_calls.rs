//! System calls that only tests need: `listmount(2)` and `name_to_handle_at(2)` for the table of what hangs,
//! and `PTRACE_LISTEN` for tests that kill a step at any call.

use std::ffi::c_long;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd as _};

use nix::errno::Errno;
use nix::libc;

use super::mount_api::MountIdRequest;

const LISTMOUNT: c_long = 458;

/// Lists a few of the mounts below the mount with this unique id. Linux 6.8.
pub(crate) fn listmount(unique_id: u64) -> io::Result<()> {
    let request = MountIdRequest::new(unique_id, 0);
    let mut ids = [0_u64; 8];
    // SAFETY: the request is live and contains its own size; the array is live, writable and as long as the
    // passed size.
    let result = unsafe { libc::syscall(LISTMOUNT, &raw const request, ids.as_mut_ptr(), ids.len(), 0_u32) };
    Ok(Errno::result(result).map(drop)?)
}

/// `struct file_handle` with room for the longest handle.
#[repr(C)]
struct FileHandle {
    length: u32,
    kind: i32,
    handle: [u8; 128],
}

/// Asks for the handle of an open file.
pub(crate) fn name_to_handle(fd: impl AsFd) -> io::Result<()> {
    let mut handle = FileHandle { length: 128, kind: 0, handle: [0; 128] };
    let mut mount = 0_i32;
    const _: () = assert!(size_of::<FileHandle>() == 8 + 128, "as the kernel has it");
    // SAFETY: the path is a C string; the struct is live, writable and contains its capacity; so is the
    // number. The descriptor is borrowed for the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd.as_fd().as_raw_fd(),
            c"".as_ptr(),
            &raw mut handle,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    Ok(Errno::result(result).map(drop)?)
}

/// `PTRACE_LISTEN`: leaves a seized process that a signal stopped in that state, until another signal
/// continues it.
pub(crate) fn ptrace_listen(process: i32) -> io::Result<()> {
    let none = std::ptr::null_mut::<nix::libc::c_void>();
    // SAFETY: the call takes no address, and a process that this thread does not trace gives an error.
    Ok(Errno::result(unsafe { libc::ptrace(libc::PTRACE_LISTEN, process, none, none) }).map(drop)?)
}
