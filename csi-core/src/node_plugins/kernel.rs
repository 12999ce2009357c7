//! The requests' own ways to the kernel, so that a driver need not spell out what every driver does.
//!
//! The work runs on the blocking pool: no call here occupies an async worker.

use std::path::PathBuf;

use csi_mount::{Bind, IdMap, MountAttributes, MountOptions, MountState, Owner, Removed, Target};

use super::places::refuse_to_tell;
use crate::node::{NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
use crate::{Error, Result, Usage, VolumeCapability, VolumeStats, blocking};

/// The mount options that the caller asks for.
pub(crate) fn mount_options(capability: &VolumeCapability) -> Result<MountOptions> {
    MountOptions::parse(capability.mount_flags())
        .map_err(|error| Error::invalid("volume_capability.mount.mount_flags", error.to_string()))
}

impl NodePublishVolumeRequest {
    /// Whether the workload may only read: because the call says so, or the access mode.
    pub fn is_read_only(&self) -> bool {
        self.readonly || self.volume_capability.access_mode.is_read_only()
    }

    /// The attributes that the mount at the target is to have.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for mount flags that are none.
    pub fn attributes(&self) -> Result<MountAttributes> {
        let mut attributes = mount_options(&self.volume_capability)?.attributes();
        if self.is_read_only() {
            attributes |= MountAttributes::RDONLY;
        }
        Ok(attributes)
    }

    /// Publishes the directory `source`: makes the target path and binds the directory there, read-only where
    /// that is asked for, in every mount namespace that sees it.
    ///
    /// # Errors
    /// [`Error::Incompatible`] (ALREADY_EXISTS) when something else, or the same otherwise, is mounted there;
    /// [`Error::InvalidArgument`] for mount flags that a bind can't have; see [`csi_mount::Bind`].
    pub async fn bind(&self, source: impl Into<PathBuf>) -> Result<()> {
        self.bind_shown(source, IdMap::new()).await
    }

    /// The same, with owners as this map shows them.
    pub(crate) async fn bind_shown(&self, source: impl Into<PathBuf>, id_map: IdMap) -> Result<()> {
        let options = mount_options(&self.volume_capability)?;
        if let Some(option) = options.filesystem().first() {
            return Err(Error::invalid(
                "volume_capability.mount.mount_flags",
                format!(
                    "{} is an option of a filesystem, which a bind of a directory can't have",
                    option.key()
                ),
            ));
        }
        let (source, request, attributes) = (source.into(), self.clone(), self.attributes()?);
        blocking(move || {
            let target = request.target()?;
            target.create_dir()?;
            Bind::new(&source).attributes(attributes).id_map(id_map).at(&target)?;
            Ok(())
        })
        .await
    }
}

impl NodeUnpublishVolumeRequest {
    /// Unmounts all layers of the volume at the target path, and deletes the path. Nothing there is `Ok`; a directory that
    /// has files in it is never deleted. What [`bind`](NodePublishVolumeRequest::bind) mounted for the volume is known by
    /// its mark; see [`csi_mount::Owner`].
    ///
    /// # Errors
    /// [`Error::NotPossible`] (FAILED_PRECONDITION) naming a mount that is not known to be the volume's: nothing is unmounted
    /// then; [`Error::InUse`] (FAILED_PRECONDITION) while something uses the mount; see [`csi_mount::unmount`].
    pub async fn unmount(&self) -> Result<()> {
        self.unmount_owned(self.owner()).await
    }

    /// The same with what is known of the volume.
    pub(crate) async fn unmount_owned(&self, owner: Owner) -> Result<()> {
        let path = self.target_path.clone();
        blocking(move || unmount_and_remove(&Target::new(&path)?.owned_by(owner))).await
    }
}

fn unmount_and_remove(target: &Target) -> Result<()> {
    csi_mount::unmount(target)?;
    let _: Removed = target.remove()?;
    Ok(())
}

impl NodeGetVolumeStatsRequest {
    /// How full the filesystem is that is mounted at the volume path.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] (NOT_FOUND) when nothing is mounted there, or another volume; [`Error::Unavailable`] when the
    /// filesystem does not answer in time.
    pub async fn statfs(&self) -> Result<VolumeStats> {
        let (volume_id, path) = (self.volume_id.clone(), self.volume_path.to_path_buf());
        let plugin = self.plugin().cloned();
        blocking(move || {
            refuse_to_tell(&path, &volume_id, plugin.as_ref())?;
            if !path.is_absolute() || !matches!(csi_mount::mount_state(&path)?, MountState::Mounted(_)) {
                return Err(Error::VolumeNotFound(volume_id));
            }
            let stats = csi_mount::stats(&path)?;
            Ok(VolumeStats::of_filesystem(usage(stats.bytes), stats.inodes.map(usage)))
        })
        .await
    }
}

pub(crate) fn usage(usage: csi_mount::Usage) -> Usage {
    Usage { total: usage.total, used: usage.used, available: usage.available }
}
