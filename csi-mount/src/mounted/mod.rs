//! What can be read from a mounted filesystem: usage, health, whether it is frozen, who uses the mount.
//!
//! Imports from `place` and what is below it.

pub(crate) mod freeze;
pub(crate) mod frozen;
pub(crate) mod health;
pub(crate) mod stats;
pub(crate) mod users;
