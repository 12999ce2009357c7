//! What is asked of a filesystem that is mounted.

pub(crate) mod freeze;
pub(crate) mod health;
pub(crate) mod stats;
pub(crate) mod users;
