//! VOLUME_MOUNT_GROUP: how the ready-made node plugins give a group access to a volume's files.

use std::path::Path;

use csi_mount::{GroupChange, Host, IdMap};

use super::root_permissions::RootPermissions;
use crate::error::{Error, Result};
use crate::types::{AccessType, VolumeCapability};

const FIELD: &str = "volume_capability.mount.volume_mount_group";

/// How the group that the caller names gets access to a volume's files, if the plugin declares
/// VOLUME_MOUNT_GROUP ([`NodeService::volume_mount_group`](crate::NodeService::volume_mount_group)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MountGroup {
    /// The files' group is changed on disk, once, as the kubelet does for `fsGroup` with `OnRootMismatch`:
    /// see [`csi_mount::Directories::set_volume_ownership`]. A read-only publish changes nothing.
    #[default]
    ChangeFiles,
    /// Nothing is changed on disk: each target's mount shows files of the group `on_disk` as files of the
    /// caller's group (Linux 5.12, a filesystem that supports id-mapped mounts; see
    /// [`csi_mount::Bind::id_map`]). Permissions stay as on disk, so the driver gives its volumes' roots to
    /// `on_disk`, for example with mode 2770.
    MapOwners {
        /// The group that owns the files on disk.
        on_disk: u32,
    },
}

/// What a publish must do for the group.
#[derive(Debug, Clone, Copy)]
pub(super) struct MountGroupChange(Option<(u32, MountGroup)>);

impl MountGroupChange {
    /// For the group that the capability names, if any.
    pub(super) fn new(capability: &VolumeCapability, mount_group: MountGroup) -> Result<Self> {
        Ok(Self(group(capability)?.map(|group| (group, mount_group))))
    }

    /// The permissions of the volume's root that leave it to the group.
    pub(super) fn permissions(self, asked: RootPermissions) -> RootPermissions {
        match self.0 {
            Some((_, MountGroup::ChangeFiles)) => asked.with_group(),
            _ => asked,
        }
    }

    /// Changes the volume's files if needed, and returns the map for the mount: `map` with the group.
    pub(super) fn apply(self, host: &Host, files: &Path, is_read_only: bool, map: IdMap) -> Result<IdMap> {
        match self.0 {
            Some((group, MountGroup::MapOwners { on_disk })) => {
                map.group(on_disk, group).map_err(|error| Error::invalid(FIELD, error.to_string()))
            }
            Some((group, MountGroup::ChangeFiles)) if !is_read_only => {
                // The ids are swapped, so the group that is shown as this one is the one that it is shown as.
                let (_, on_disk) = map.shown((0, group));
                let given =
                    host.directories().set_volume_ownership(files, on_disk, GroupChange::OnRootMismatch)?;
                tracing::info!(group, ?given, "the volume's files are the group's");
                Ok(map)
            }
            _ => Ok(map),
        }
    }
}

/// The group that the caller names.
pub(super) fn group(capability: &VolumeCapability) -> Result<Option<u32>> {
    let AccessType::Mount { volume_mount_group: Some(group), .. } = &capability.access_type else {
        return Ok(None);
    };
    let number = group.parse().ok().filter(|number| *number != u32::MAX);
    let wrong = || Error::invalid(FIELD, "is no group's number");
    number.map(Some).ok_or_else(wrong)
}
