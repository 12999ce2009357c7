//! Mounts a filesystem in a child process: all steps that wait for its server, from the first option to the
//! finished mount.

use std::ffi::{CStr, CString, c_int, c_uint, c_ulong};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use nix::errno::Errno;
use nix::libc;

/// What to mount. All texts are made before the fork. It has no `Debug`, because options can be secrets.
#[derive(Clone, Copy)]
pub(crate) struct NewMount<'a> {
    pub(crate) method: MountMethod<'a>,
    /// Descriptors that options name by number, as FUSE's `fd` does.
    pub(crate) named: &'a [c_int],
}

/// The system calls to use.
#[derive(Clone, Copy)]
pub(crate) enum MountMethod<'a> {
    /// `fsconfig(2)` for each setting, and then `fsmount(2)` with these attributes. The reply has the
    /// descriptor of the mount.
    Context { context: BorrowedFd<'a>, settings: &'a [Setting], attributes: c_uint },
    /// `mount(2)`: source, place, type, flags, options.
    Path { source: &'a CStr, place: &'a CStr, fs_type: &'a CStr, flags: c_ulong, options: &'a CStr },
}

/// An option of a filesystem, with its value or as a flag.
pub(crate) struct Setting {
    pub(crate) key: CString,
    pub(crate) value: Option<CString>,
}

/// What the kernel refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) error: u64,
    /// Which setting, counted from 1; 0 for the filesystem as a whole.
    pub(super) setting: u64,
}

/// Makes only raw system calls, because it runs after a fork.
pub(super) fn make(method: MountMethod<'_>) -> Result<Option<c_int>, Refusal> {
    match method {
        MountMethod::Context { context, settings, attributes } => {
            in_context(context.as_raw_fd(), settings, attributes).map(Some)
        }
        MountMethod::Path { source, place, fs_type, flags, options } => {
            let [source, place, fs_type, options] = [source, place, fs_type, options].map(CStr::as_ptr);
            // SAFETY: C strings that the parent keeps, and integers.
            let result = unsafe { libc::mount(source, place, fs_type, flags, options.cast()) };
            checked(result.into(), 0).map(|_| None)
        }
    }
}

fn in_context(context: c_int, settings: &[Setting], attributes: c_uint) -> Result<c_int, Refusal> {
    const SET_FLAG: c_uint = 0;
    const SET_STRING: c_uint = 1;
    const CREATE: c_uint = 6;
    for (index, setting) in settings.iter().enumerate() {
        let (command, value) = match &setting.value {
            Some(value) => (SET_STRING, value.as_ptr()),
            None => (SET_FLAG, ptr::null()),
        };
        // SAFETY: C strings that the parent keeps, and integers.
        let result =
            unsafe { libc::syscall(libc::SYS_fsconfig, context, command, setting.key.as_ptr(), value, 0) };
        checked(result, index as u64 + 1)?;
    }
    let nothing: *const libc::c_char = ptr::null();
    // SAFETY: integers, and null for unused arguments.
    let result = unsafe { libc::syscall(libc::SYS_fsconfig, context, CREATE, nothing, nothing, 0) };
    checked(result, 0)?;
    // SAFETY: integers; the new descriptor belongs to the child.
    let mount = unsafe { libc::syscall(libc::SYS_fsmount, context, 1 as c_uint, attributes) };
    checked(mount, 0)
}

fn checked(result: libc::c_long, setting: u64) -> Result<c_int, Refusal> {
    if result < 0 { Err(Refusal { error: Errno::last_raw() as u64, setting }) } else { Ok(result as c_int) }
}
