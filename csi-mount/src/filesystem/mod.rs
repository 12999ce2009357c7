//! Filesystems on devices: what a device holds, and the programs that make, check and grow filesystems.
//!
//! [`Probe`](probe::Probe) says what a device holds and gives the proof that it is blank, which
//! [`Format`](format::Format) requires. [`tool`] runs programs so that they can be stopped.
//!
//! Imports from `device` and the layers below it.

pub(crate) mod check;
pub(crate) mod format;
pub(crate) mod grow;
pub(crate) mod kernel_features;
pub(crate) mod kind;
pub(crate) mod probe;
pub(crate) mod tool;
