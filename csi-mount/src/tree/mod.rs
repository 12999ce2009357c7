//! Trees of files: removed, copied, given to a group, and the permissions of a root. All walks use open directories and stay on their mount.
//!
//! Imports from `place` and what is below it.

pub(crate) mod copy;
pub(crate) mod copy_file;
pub(crate) mod group;
mod links;
pub(crate) mod remove;
mod trail;
