//! Mounting and unmounting.
//!
//! [`Mount`](mount::Mount) and [`Bind`](bind::Bind) prepare a mount where nobody sees it; [`attach`] moves it to its target
//! and verifies it there. [`Unmount`](unmount::Unmount) takes all layers off.
//!
//! Imports from `mounted`, `place` and what is below them.

pub(crate) mod attach;
pub(crate) mod bind;
pub(crate) mod diagnose;
pub(crate) mod id_map;
pub(crate) mod legacy;
pub(crate) mod mount;
pub(crate) mod options;
pub(crate) mod unmount;
