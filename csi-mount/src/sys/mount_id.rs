//! The kernel's id of a mount.

use std::fmt;

/// The kernel's id of a mount, as in the first field of mountinfo.
///
/// It is unique among the existing mounts, and can be reused after an unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MountId(pub(crate) u64);

impl MountId {
    /// The id with this number.
    pub const fn new(id: u64) -> Self {
        Self(id)
    }

    /// The number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for MountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
