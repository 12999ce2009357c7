//! Which place something is about.

use std::ffi::OsString;

use crate::DeviceNumber;

/// Which place a target is, whatever path leads there: the directory, and the name in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PlaceKey {
    /// None when the directory was not there.
    pub(crate) directory: Option<(DeviceNumber, u64)>,
    pub(crate) name: OsString,
}
