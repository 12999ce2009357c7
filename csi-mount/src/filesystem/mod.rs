//! Filesystems on devices: what is there, and the programs that make, check and grow them.
//!
//! [`Probe`](probe::Probe) says what a device holds and gives the proof that it is blank, without which
//! [`Format`](format::Format) makes nothing. [`tool`] runs programs so that they can be stopped.
//!
//! Imports from `device` and what is below it.

pub(crate) mod check;
pub(crate) mod format;
pub(crate) mod grow;
pub(crate) mod kernel_features;
pub(crate) mod kind;
pub(crate) mod probe;
pub(crate) mod tool;
