//! What the kernel tells of mounts.

pub(crate) mod details;
pub(crate) mod facts;
pub(crate) mod mount_namespaces;
pub(crate) mod mountinfo;
pub(crate) mod siblings;
pub(crate) mod state;
