//! The steps of a new mount that wait for its server, from the first option to the finished mount.

use std::ffi::{CStr, CString, c_int};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, MountAttrFlags, MountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, mount,
};

/// What a child mounts. All texts are made before the fork. It has no `Debug`, because options can be secrets.
#[derive(Clone, Copy)]
pub(crate) struct NewMount<'a> {
    pub(crate) method: MountMethod<'a>,
    /// Descriptors that options name by number, as FUSE's `fd` does.
    pub(crate) named: &'a [c_int],
}

/// The system calls to use.
#[derive(Clone, Copy)]
pub(crate) enum MountMethod<'a> {
    /// `fsconfig(2)` for each setting, and then `fsmount(2)` with these attributes.
    Context { context: BorrowedFd<'a>, settings: &'a [Setting], attributes: MountAttrFlags },
    /// `mount(2)`
    Path { source: &'a CStr, place: &'a CStr, fs_type: &'a CStr, flags: MountFlags, options: &'a CStr },
}

/// An option of a filesystem, with its value or as a flag.
pub(crate) struct Setting {
    pub(crate) key: CString,
    pub(crate) value: Option<CString>,
}

/// What the kernel refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) error: Errno,
    /// Which setting, counted from 1; 0 for the filesystem as a whole.
    pub(crate) setting: u64,
}

impl MountMethod<'_> {
    /// Returns the mount, unless it is made at a path. It can run after a fork: it makes only raw system calls.
    pub(crate) fn make(self) -> Result<Option<OwnedFd>, Refusal> {
        let whole = |error| Refusal { error, setting: 0 };
        match self {
            Self::Context { context, settings, attributes } => {
                for (index, Setting { key, value }) in settings.iter().enumerate() {
                    let set = match value {
                        Some(value) => fsconfig_set_string(context, key.as_c_str(), value.as_c_str()),
                        None => fsconfig_set_flag(context, key.as_c_str()),
                    };
                    set.map_err(|error| Refusal { error, setting: index as u64 + 1 })?;
                }
                fsconfig_create(context).map_err(whole)?;
                fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map(Some).map_err(whole)
            }
            Self::Path { source, place, fs_type, flags, options } => {
                mount(source, place, fs_type, flags, options).map(|()| None).map_err(whole)
            }
        }
    }
}
