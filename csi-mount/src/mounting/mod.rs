//! Mounting and unmounting.

pub(crate) mod attach;
pub(crate) mod bind;
pub(crate) mod diagnose;
pub(crate) mod id_map;
pub(crate) mod legacy;
pub(crate) mod mount;
pub(crate) mod options;
pub(crate) mod unmount;
