//! VOLUME_MOUNT_GROUP: how the ready-made node plugins let a group have a volume's files.

use std::path::Path;

use csi_mount::{GroupChange, IdMap, give_to_group};

use crate::{Access, Error, Result, VolumeCapability};

/// How a volume's files become those of the group that the caller names, where the plugin declares VOLUME_MOUNT_GROUP
/// ([`NodeService::volume_mount_group`](crate::NodeService::volume_mount_group)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MountGroup {
    /// The files are given to the group on the disk, once, as the kubelet does it for `fsGroup` with `OnRootMismatch`:
    /// see [`csi_mount::give_to_group`]. A publish to read only changes nothing.
    #[default]
    ChangeFiles,
    /// Nothing is changed: what belongs to the group `on_disk` is shown as the caller's, by the mount of each target
    /// (Linux 5.12, a filesystem that can; see [`csi_mount::Bind::id_map`]). Permissions stay those of the disk, so the
    /// driver gives its volumes' roots to `on_disk` with mode 2770 or the like.
    MapOwners {
        /// Whose files are on the disk.
        on_disk: u32,
    },
}

/// What a publish has to do for the group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due(Option<(u32, MountGroup)>);

impl Due {
    /// For the group that the capability names, if it names one.
    pub(super) fn new(capability: &VolumeCapability, way: MountGroup) -> Result<Self> {
        Ok(Self(group(capability)?.map(|group| (group, way))))
    }

    /// Does it to the volume's files, and says how the mount is to show them.
    pub(super) fn apply(self, files: &Path, is_read_only: bool) -> csi_mount::Result<IdMap> {
        match self.0 {
            Some((group, MountGroup::MapOwners { on_disk })) => IdMap::new().group(on_disk, group),
            Some((group, MountGroup::ChangeFiles)) if !is_read_only => {
                let given = give_to_group(files, group, GroupChange::OnRootMismatch)?;
                tracing::info!(group, ?given, "the volume's files are the group's");
                Ok(IdMap::new())
            }
            _ => Ok(IdMap::new()),
        }
    }
}

/// The group that the caller names.
pub(super) fn group(capability: &VolumeCapability) -> Result<Option<u32>> {
    let Access::Mount { volume_mount_group: Some(group), .. } = &capability.access else { return Ok(None) };
    let number = group.parse().ok().filter(|number| *number != u32::MAX);
    let wrong = || Error::invalid("volume_capability.mount.volume_mount_group", "is no group's number");
    number.map(Some).ok_or_else(wrong)
}

/// For filesystems whose server or daemon says who owns what.
pub(super) fn refuse(capability: &VolumeCapability) -> Result<()> {
    match group(capability)? {
        None => Ok(()),
        Some(_) => Err(Error::Unsupported(
            "volume_capability.mount.volume_mount_group: the server or daemon says who owns the files; leave \
             VOLUME_MOUNT_GROUP undeclared"
                .to_owned(),
        )),
    }
}
