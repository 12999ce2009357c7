//! What the kernel reports about mounts and the files on them, without asking a filesystem.
//!
//! [`mountinfo`] is the whole table of a namespace. [`details`] is one mount's row, from `statmount(2)` if
//! the kernel has it. [`facts`] is one open file; [`smb_root`] is why SMB is different.
//!
//! Imports from the folders below it: `sys`, `error`, `bounded`.

pub(crate) mod details;
pub(crate) mod facts;
pub(crate) mod fd_info;
pub(crate) mod mount_namespaces;
pub(crate) mod mountinfo;
pub(crate) mod smb_root;
