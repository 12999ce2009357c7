//! Mounting and unmounting.
//!
//! [`Mount`](mount::Mount) and [`Bind`](bind::Bind) prepare a mount where it is not visible; [`attach`] moves
//! it onto its target and verifies it there. [`Unmount`](unmount::Unmount) unmounts all layers.
//!
//! Imports from `mounted`, `place` and what is below them.

pub(crate) mod attach;
pub(crate) mod bind;
pub(crate) mod diagnose;
pub(crate) mod id_map;
pub(crate) mod legacy;
pub(crate) mod mount;
pub(crate) mod options;
pub(crate) mod runner;
pub(crate) mod unmount;

/// The operation of a mount, as errors name it.
pub(crate) const MOUNT: &str = "mount at";
