//! What the kernel says of mounts and of the files on them, without asking a filesystem.
//!
//! [`mountinfo`] is the whole table of a namespace, [`details`] one mount's row, from `statmount(2)` where the kernel has it,
//! and [`facts`] one open file.
//!
//! Imports from the folders below it: `sys`, `error`, `bounded`.

pub(crate) mod details;
pub(crate) mod facts;
pub(crate) mod mount_namespaces;
pub(crate) mod mountinfo;
pub(crate) mod siblings;
pub(crate) mod state;
