//! Methods of requests that mount, unmount and examine mounts, so that a driver need not repeat what every
//! driver does.
//!
//! The work runs on the blocking pool: no call here occupies an async worker.

use std::path::PathBuf;

use csi_mount::{IdMap, MountAttributes, MountOptions, MountState, OwnedPath, Owner};

use super::ownership::refuse_stats_of_another;
use super::selinux;
use crate::blocking::blocking;
use crate::call::request::TypedRequest as _;
use crate::error::{Error, Result};
use crate::node::{NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
use crate::types::{Usage, VolumeCapability, VolumeStats};

/// The mount options that the caller requests.
pub(crate) fn mount_options(capability: &VolumeCapability) -> Result<MountOptions> {
    MountOptions::parse(capability.mount_flags())
        .map_err(|error| Error::invalid("volume_capability.mount.mount_flags", error.to_string()))
}

/// Refuses a raw block volume where the volumes are none.
pub(super) fn refuse_block(capability: &VolumeCapability, why: &str) -> Result<()> {
    if capability.is_mount() {
        Ok(())
    } else {
        Err(Error::Unsupported(format!("volume_capability.block: {why}").into()))
    }
}

impl NodePublishVolumeRequest {
    /// Whether the workload is only allowed to read, because the call or the access mode says so.
    pub fn is_read_only(&self) -> bool {
        self.readonly || self.volume_capability.access_mode.is_read_only()
    }

    /// Returns the attributes of the mount at the target.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for invalid mount flags.
    pub fn attributes(&self) -> Result<MountAttributes> {
        let mut attributes = mount_options(&self.volume_capability)?.attributes();
        if self.is_read_only() {
            attributes |= MountAttributes::RDONLY;
        }
        Ok(attributes)
    }

    /// Publishes the directory `source`: creates the target path and bind-mounts the directory there,
    /// read-only if requested, in every mount namespace that sees the target.
    ///
    /// # Errors
    /// [`Error::Incompatible`] (ALREADY_EXISTS) when something else, or the same directory with other
    /// attributes, is mounted there; [`Error::InvalidArgument`] for mount flags that a bind mount can't
    /// have; see [`csi_mount::Bind`].
    pub async fn bind(&self, source: impl Into<PathBuf>) -> Result<()> {
        self.bind_with_id_map(source, IdMap::new()).await
    }

    /// Like [`bind`](Self::bind), with owners shown through this id map.
    pub(crate) async fn bind_with_id_map(&self, source: impl Into<PathBuf>, id_map: IdMap) -> Result<()> {
        let options = mount_options(&self.volume_capability)?;
        selinux::refuse_filesystem_options(&options, "a bind of a directory")?;
        let source = source.into();
        let request = self.clone();
        let attributes = self.attributes()?;
        blocking(move || {
            request.host().directories().publish(&source, &request.owned_target(), attributes, id_map)?;
            Ok(())
        })
        .await
    }
}

impl NodeUnpublishVolumeRequest {
    /// Unmounts all layers of the volume at the target path, and deletes the path. If nothing is there,
    /// returns `Ok`; a directory that contains files is never deleted. A mount that
    /// [`bind`](NodePublishVolumeRequest::bind) made for the volume is recognised by its mark; see
    /// [`csi_mount::Owner`].
    ///
    /// # Errors
    /// [`Error::NotPossible`] (FAILED_PRECONDITION), naming a mount that is not known to be the volume's:
    /// nothing is unmounted then; [`Error::InUse`] (FAILED_PRECONDITION) while something uses the mount;
    /// see [`csi_mount::unmount`].
    pub async fn unmount(&self) -> Result<()> {
        self.unmount_owned(self.owner()).await
    }

    /// Like [`unmount`](Self::unmount), with more evidence about the volume.
    pub(crate) async fn unmount_owned(&self, owner: Owner) -> Result<()> {
        let place = OwnedPath::new(&*self.target_path, owner);
        let host = self.host().clone();
        blocking(move || {
            host.directories().unpublish(&place)?;
            Ok(())
        })
        .await
    }
}

impl NodeGetVolumeStatsRequest {
    /// Returns the usage of the filesystem that is mounted at the volume path.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] (NOT_FOUND) when nothing is mounted there, or another volume;
    /// [`Error::Unavailable`] when the filesystem does not answer in time.
    pub async fn statfs(&self) -> Result<VolumeStats> {
        let request = self.clone();
        blocking(move || {
            let path = &request.volume_path;
            let mounts = request.host().mounts();
            refuse_stats_of_another(request.host(), path, &request.volume_id, request.plugin())?;
            if !path.is_absolute() || !matches!(mounts.state(path)?, MountState::Mounted(_)) {
                return Err(Error::VolumeNotFound(request.volume_id));
            }
            let stats = mounts.stats(path)?;
            Ok(VolumeStats::from_usage(usage(stats.bytes), stats.inodes.map(usage)))
        })
        .await
    }
}

/// Numbers above an int64 are made smaller: a filesystem without a limit, such as s3fs, reports 16 EiB.
pub(crate) fn usage(usage: csi_mount::FilesystemUsage) -> Usage {
    let fit = |number: u64| number.min(i64::MAX.cast_unsigned());
    Usage { total: fit(usage.total), used: fit(usage.used), available: fit(usage.available) }
}
