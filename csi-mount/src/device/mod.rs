//! Block devices.

pub(crate) mod block_device;
pub(crate) mod claimed;
pub(crate) mod loop_device;
pub(crate) mod mapping;
pub(crate) mod same_disk;
pub(crate) mod sysfs;
pub(crate) mod users;
pub(crate) mod wait;
