//! Whole trees of files.

pub(crate) mod copy;
pub(crate) mod copy_file;
pub(crate) mod group;
pub(crate) mod remove;
