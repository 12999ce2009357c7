//! Mounts that are attached nowhere yet.
//!
//! [`Prepared`](prepared::Prepared) is finished and waits to be moved to its place; on kernels without detached mounts it
//! lies in a [`Scratch`](scratch::Scratch) directory. [`DetachedMount`](guard::DetachedMount) stays detached until it is
//! dropped.
//!
//! Imports from `path` and what is below it.

pub(crate) mod guard;
pub(crate) mod prepared;
pub(crate) mod scratch;
