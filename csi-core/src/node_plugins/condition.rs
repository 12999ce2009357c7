//! A volume's health as its mounts show it.

use std::collections::BTreeMap;
use std::path::Path;

use csi_mount::MountHealth;

use super::ownership::refuse_stats_of_another;
use crate::blocking::blocking;
use crate::call::request::TypedRequest as _;
use crate::error::{Error, Result};
use crate::node::NodeGetVolumeHealthRequest;
use crate::types::{VolumeHealth, VolumeHealthEntry, VolumeHealthStatus};

/// The health entry of a volume whose device no longer exists on this node.
pub(super) fn device_gone() -> VolumeHealthEntry {
    entry(VolumeHealthStatus::Inaccessible, "DeviceGone", "its device is not on this node".to_owned())
}

/// A volume's device, or why the driver can't name it now.
///
/// # Errors
/// [`Error::VolumeNotFound`]
pub(super) fn known<D>(found: Result<Option<D>>) -> Result<(Option<D>, Option<Error>)> {
    match found {
        Err(error @ Error::VolumeNotFound(_)) => Err(error),
        Err(error) => Ok((None, Some(error))),
        Ok(device) => Ok((device, None)),
    }
}

/// The health entry of a volume whose device the driver can't name now.
pub(super) fn device_unknown(error: &Error) -> VolumeHealthEntry {
    entry(VolumeHealthStatus::Degraded, "DeviceUnknown", error.to_string())
}

impl NodeGetVolumeHealthRequest {
    /// Returns the health of the volume's mounts, where it is staged and where it is published:
    /// `FilesystemDead` and `FilesystemUnresponsive` (inaccessible), `FilesystemReadOnly` after an error
    /// (degraded), `FilesystemFrozen` (degraded), `NotMounted` (inaccessible) if it is supposed to be
    /// published there. If several paths have the same problem, one of them is reported.
    ///
    /// Bounded in time: see [`Mounts::health`](csi_mount::Mounts::health).
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`](crate::Error::VolumeNotFound) (NOT_FOUND) if the path belongs to another
    /// volume; any failure to examine the mounts.
    pub async fn mount_health(&self) -> Result<VolumeHealth> {
        let request = self.clone();
        let entries = blocking(move || {
            let staged = &request.staging_target_path;
            let published = &request.volume_publish_path;
            for path in published.iter().chain(staged) {
                refuse_stats_of_another(request.host(), path, &request.volume_id, request.plugin())?;
            }
            let mounts = request.host().mounts();
            let mut entries = BTreeMap::new();
            let mut look = |path: &Path| {
                let health = mounts.health(path)?;
                Ok::<_, crate::Error>(
                    entry_of(health, path).map(|entry| entries.insert(entry.reason.clone(), entry)),
                )
            };
            if let Some(path) = published {
                look(path)?;
            }
            // A raw block volume has no staging mount.
            if let Some(path) = staged
                && mounts.state(path)?.mount_point().is_some()
            {
                look(path)?;
            }
            Ok(entries.into_values().collect())
        })
        .await?;
        Ok(VolumeHealth { volume_id: self.volume_id.clone(), entries })
    }
}

fn entry_of(health: MountHealth, path: &Path) -> Option<VolumeHealthEntry> {
    let (status, reason) = match health {
        MountHealth::Healthy => return None,
        MountHealth::ReadOnly => (VolumeHealthStatus::Degraded, "FilesystemReadOnly"),
        MountHealth::Frozen => (VolumeHealthStatus::Degraded, "FilesystemFrozen"),
        MountHealth::Unresponsive => (VolumeHealthStatus::Inaccessible, "FilesystemUnresponsive"),
        MountHealth::NotMounted => (VolumeHealthStatus::Inaccessible, "NotMounted"),
        _ => (VolumeHealthStatus::Inaccessible, "FilesystemDead"),
    };
    // A long message is cut off at its end, so the path comes last.
    Some(entry(status, reason, format!("{health}: {}", path.display())))
}

fn entry(status: VolumeHealthStatus, reason: &str, message: String) -> VolumeHealthEntry {
    VolumeHealthEntry { status, reason: reason.to_owned(), message }
}
