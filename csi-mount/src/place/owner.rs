//! The owner of a place: the driver and the volume, and what proves that a mount is that volume's.

use std::path::PathBuf;

use crate::sys::ids::DeviceNumber;

/// The volume that a target or staging directory belongs to, and the driver of that volume.
///
/// Mounting on a [`Target`](crate::Target) with an owner marks the place. Later steps with a target of the same
/// owner, also in other processes, unmount and remove only what has this mark or is known by [`Evidence`] of the
/// volume.
///
/// ```no_run
/// # fn main() -> csi_mount::Result<()> {
/// use csi_mount::{ErrorKind, Host, IdMap, MountAttributes, OwnedPath, Owner};
///
/// let path = "/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/vol-1/mount";
/// let owned_by = |volume| OwnedPath::new(path, Owner::new("block.example.org", volume));
///
/// let host = Host::kernel();
/// let staging = "/var/lib/kubelet/staging".as_ref();
/// host.block().publish(staging, &owned_by("vol-1"), MountAttributes::empty(), IdMap::new())?;
/// assert_eq!(host.block().unpublish(&owned_by("vol-2")).unwrap_err().kind(), ErrorKind::NotOwned);
/// host.block().unpublish(&owned_by("vol-1"))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Owner {
    pub(crate) id: OwnerId,
    pub(crate) roots: Vec<PathBuf>,
    pub(crate) evidence: Vec<Evidence>,
    pub(crate) is_gone: bool,
}

/// The names that identify an [`Owner`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnerId {
    /// The driver's name. If it is empty, marks of the volume by any driver match.
    pub driver: String,
    /// The volume's id.
    pub volume: String,
}

/// What proves that a mount without a mark belongs to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Evidence {
    /// The mounted filesystem is on this device, or the mounted file is this device's node.
    Device(DeviceNumber),
    /// The root of the mount is this directory.
    Directory(PathBuf),
    /// The mount has this type and source.
    Source {
        /// The type of filesystem: `tmpfs`.
        fs_type: String,
        /// The source, as the mount table shows it.
        source: String,
    },
}

impl Owner {
    /// The owner for this volume of the driver with this name.
    pub fn new(driver: impl Into<String>, volume: impl Into<String>) -> Self {
        let id = OwnerId::new(driver, volume);
        Self { id, roots: Vec::new(), evidence: Vec::new(), is_gone: false }
    }

    /// Adds directories that contain only targets and staging directories.
    ///
    /// An empty place in them is removed even without a mark: either the process that made it was killed
    /// before it wrote the mark, or the orchestrator made it.
    pub fn roots(mut self, roots: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.roots.extend(roots.into_iter().map(Into::into));
        self
    }

    /// Says that the volume no longer exists. Mounts marked as its own are then unmounted in
    /// [`roots`](Self::roots) only.
    pub fn volume_is_gone(mut self) -> Self {
        self.is_gone = true;
        self
    }

    /// Adds evidence that identifies a mount of the volume at a place without a mark.
    pub fn evidence(mut self, evidence: Evidence) -> Self {
        self.evidence.push(evidence);
        self
    }

    /// Whether a mark is this owner's. A mark without a driver's name matches any driver.
    pub fn has_id(&self, other: &OwnerId) -> bool {
        self.id.is_same(other)
    }

    pub(crate) fn volume(&self) -> &str {
        &self.id.volume
    }
}

impl OwnerId {
    /// The volume with this id of the driver with this name.
    pub fn new(driver: impl Into<String>, volume: impl Into<String>) -> Self {
        Self { driver: driver.into(), volume: volume.into() }
    }

    /// Whether both name the same volume. A side without a driver's name matches any driver.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_same_driver = self.driver == other.driver || self.driver.is_empty() || other.driver.is_empty();
        is_same_driver && self.volume == other.volume
    }
}

/// For example `volume vol-1 of driver.example.org`.
impl std::fmt::Display for OwnerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "volume {}", self.volume)?;
        if self.driver.is_empty() { Ok(()) } else { write!(f, " of {}", self.driver) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_without_a_driver_matches_any_driver() {
        let id = |driver: &str, volume: &str| OwnerId::new(driver, volume);
        assert!(id("a", "v").is_same(&id("a", "v")) && id("", "v").is_same(&id("a", "v")));
        assert!(!id("a", "v").is_same(&id("b", "v")) && !id("a", "v").is_same(&id("a", "w")));
        assert_eq!(id("a", "v").to_string(), "volume v of a");
    }
}
