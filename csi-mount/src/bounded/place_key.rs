//! The identity of a place.

use std::ffi::OsString;

use crate::DeviceNumber;

/// The identity of a target, independent of its path: the parent directory, and the name in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PlaceKey {
    /// None if the directory did not exist.
    pub(crate) directory: Option<(DeviceNumber, u64)>,
    pub(crate) name: OsString,
}
