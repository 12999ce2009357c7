//! The kernel's id of a mount.

use std::fmt;

/// The kernel's id of a mount, as in the first field of mountinfo.
///
/// It is unique among the existing mounts, and can be reused after an unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MountId(pub u64);

impl fmt::Display for MountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
