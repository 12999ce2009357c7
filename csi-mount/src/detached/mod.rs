//! Mounts that are attached nowhere yet.
//!
//! [`Prepared`](prepared::Prepared) is a finished mount that waits to be moved to its place. On kernels
//! without detached mounts it is in a [`Scratch`](scratch::Scratch) directory.
//! [`DetachedMount`](prepared::DetachedMount) stays detached until it is dropped.
//!
//! Imports from `path` and what is below it.

pub(crate) mod prepared;
pub(crate) mod scratch;
