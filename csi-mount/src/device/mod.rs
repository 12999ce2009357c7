//! Block devices: which one it is, who uses it, and loop devices.
//!
//! [`BlockDevice`](block_device::BlockDevice) is open and stays the same device. [`users`] is the only
//! place that finds out who uses it; [`mount_places`] is the part of it that [`loop_device`] needs too.
//! [`sysfs`] is the kernel's description of it.
//!
//! Imports from `mounted` and the layers below it, and not from `mounting`.

pub(crate) mod block_device;
pub(crate) mod exclusive;
pub(crate) mod expected;
pub(crate) mod loop_device;
pub(crate) mod mapping;
pub(crate) mod mount_places;
pub(crate) mod same_disk;
pub(crate) mod sysfs;
pub(crate) mod users;
pub(crate) mod wait;
