//! The keys of a class with which its author chooses how filesystems are made, checked, mounted and shown.

use csi_mount::flow::block::{StageCheck, StagePlan};
use csi_mount::{CheckLimits, IdMap, MkfsOptions};
use serde::{Deserialize, Serialize};

use super::block_devices::stage_plan;
use crate::error::{Error, Result};
use crate::types::{Parameters, Volume, VolumeCapability, VolumeContext};

/// Keys of a StorageClass for the filesystem of a block volume. The kind of filesystem is the class's
/// `csi.storage.k8s.io/fstype`, and other mount options its `mountOptions`.
///
/// | key | value |
/// |---|---|
/// | `blockSize`, `inodeSize`, `bytesPerInode`, `reservedBlocksPercent` | a number: see [`MkfsOptions`] for those that each filesystem takes |
/// | `discard` | `true`: what the filesystem frees is freed on the device ([`StagePlan::discard`]) |
/// | `check` | when an ext4 is checked: `whenNeeded` (the default), `always`, `never` ([`StageCheck`]) |
/// | `mapUsers`, `mapGroups` | pairs of ids, `0:1000,1:1001`: files of user or group 0 on the disk are shown as those of 1000, and the reverse ([`IdMap`], Linux 5.12 for ext4, 5.12 for XFS, 5.15 for btrfs) |
///
/// A driver reads them when it creates the volume, so that a mistake is INVALID_ARGUMENT at once, and keeps them in the
/// volume's context for its stages:
///
/// ```
/// # use std::path::PathBuf;
/// # use csi_core::node_plugins::FilesystemOptions;
/// # use csi_core::{Result, prelude::*};
/// # use csi_core::mount::flow::block::StagePlan;
/// #[derive(serde::Deserialize)]
/// struct Params {
///     pool: String, // the driver's own keys
/// }
///
/// fn create(request: &CreateVolumeRequest, volume: Volume) -> Result<Volume> {
///     let mut parameters = request.parameters.clone();
///     let filesystem = FilesystemOptions::take(&mut parameters, &request.volume_capabilities)?;
///     let own: Params = parameters.parse()?;
///     Ok(filesystem.keep_in(volume))
/// }
///
/// // In `BlockDevices::plan`:
/// fn plan(volume: &Attachment, capability: &VolumeCapability) -> Result<StagePlan> {
///     FilesystemOptions::kept_in(&volume.volume_context)?.plan(capability)
/// }
///
/// // In `BlockDevices::id_map`:
/// fn id_map(volume: &Attachment) -> Result<csi_core::mount::IdMap> {
///     FilesystemOptions::kept_in(&volume.volume_context)?.id_map()
/// }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FilesystemOptions {
    block_size: Option<u32>,
    inode_size: Option<u32>,
    bytes_per_inode: Option<u32>,
    reserved_blocks_percent: Option<u8>,
    discard: Option<bool>,
    check: Option<Check>,
    map_users: Option<String>,
    map_groups: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Check {
    WhenNeeded,
    Always,
    Never,
}

impl FilesystemOptions {
    /// Takes the keys out of the parameters of CreateVolume, and checks them for each filesystem that the
    /// capabilities name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the key, or the choice that a filesystem does not take.
    pub fn take(parameters: &mut Parameters, capabilities: &[VolumeCapability]) -> Result<Self> {
        let options: Self = parameters.take()?;
        let mounts = capabilities.iter().filter(|capability| capability.is_mount());
        mounts.map(|capability| options.plan(capability)).try_for_each(|plan| plan.map(drop))?;
        options.id_map().map(drop)?;
        Ok(options)
    }

    /// Adds them to the context of a volume.
    #[must_use]
    pub fn keep_in(&self, volume: Volume) -> Volume {
        let Ok(serde_json::Value::Object(keys)) = serde_json::to_value(self) else { return volume };
        let given = keys.into_iter().filter(|(_, value)| !value.is_null());
        given.fold(volume, |volume, (key, value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            volume.context(key, text)
        })
    }

    /// Reads them from the context of a volume.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the key.
    pub fn kept_in(context: &VolumeContext) -> Result<Self> {
        context.parse_known()
    }

    /// Returns [`stage_plan`] with these choices.
    ///
    /// # Errors
    /// Those of [`stage_plan`], and [`Error::InvalidArgument`] for a choice that the filesystem does not take.
    pub fn plan(&self, capability: &VolumeCapability) -> Result<StagePlan> {
        let mut mkfs = MkfsOptions::new();
        if let Some(bytes) = self.block_size {
            mkfs = mkfs.block_size(bytes);
        }
        if let Some(bytes) = self.inode_size {
            mkfs = mkfs.inode_size(bytes);
        }
        if let Some(bytes) = self.bytes_per_inode {
            mkfs = mkfs.bytes_per_inode(bytes);
        }
        if let Some(percent) = self.reserved_blocks_percent {
            mkfs = mkfs.reserved_percent(percent);
        }
        let plan = stage_plan(capability)?.mkfs_options(mkfs);
        let mut plan = plan.map_err(|error| Error::invalid("parameters", error.to_string()))?;
        if self.discard == Some(true) {
            plan = plan.discard();
        }
        let check = match self.check {
            None => return Ok(plan),
            Some(Check::WhenNeeded) => StageCheck::WhenNeeded,
            Some(Check::Always) => StageCheck::Always,
            Some(Check::Never) => StageCheck::Never,
        };
        Ok(plan.check(check, CheckLimits::default()))
    }

    /// Returns the owners that the volume's mounts for pods show, for
    /// [`BlockDevices::id_map`](super::BlockDevices::id_map).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the key, for a text that is no list of pairs, and those of [`IdMap`].
    pub fn id_map(&self) -> Result<IdMap> {
        let map = add_pairs(IdMap::new(), "mapUsers", self.map_users.as_deref(), IdMap::user)?;
        add_pairs(map, "mapGroups", self.map_groups.as_deref(), IdMap::group)
    }
}

/// Adds each pair of a list such as `0:1000,1:1001`.
fn add_pairs(
    map: IdMap,
    key: &str,
    list: Option<&str>,
    add: fn(IdMap, u32, u32) -> csi_mount::Result<IdMap>,
) -> Result<IdMap> {
    let refuse = |reason: String| Error::invalid(format!("parameters[{key}]"), reason);
    let id = |text: &str| text.trim().parse().ok();
    list.into_iter().flat_map(|list| list.split(',')).try_fold(map, |map, pair| {
        let ids = pair.split_once(':').and_then(|(on_disk, shown)| Some((id(on_disk)?, id(shown)?)));
        let (on_disk, shown) = ids
            .ok_or_else(|| refuse("must be pairs of ids on the disk and shown: 0:1000,1:1001".to_owned()))?;
        add(map, on_disk, shown).map_err(|error| refuse(error.to_string()))
    })
}

#[cfg(test)]
mod tests {
    use csi_proto::v1;

    use super::*;
    use crate::controller::CreateVolumeRequest;
    use crate::types::VolumeId;
    use v1::volume_capability::{AccessMode, AccessType, MountVolume};

    fn request(fs_type: &str, parameters: &[(&str, &str)]) -> CreateVolumeRequest {
        let mount = MountVolume { fs_type: fs_type.to_owned(), ..Default::default() };
        let wire = v1::CreateVolumeRequest {
            name: "pvc".to_owned(),
            volume_capabilities: vec![v1::VolumeCapability {
                access_mode: Some(AccessMode { mode: 1 }),
                access_type: Some(AccessType::Mount(mount)),
            }],
            parameters: parameters
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            ..Default::default()
        };
        wire.try_into().expect("a request")
    }

    fn take(request: &CreateVolumeRequest) -> Result<FilesystemOptions> {
        FilesystemOptions::take(&mut request.parameters.clone(), &request.volume_capabilities)
    }

    #[test]
    fn what_a_class_chooses_reaches_the_plan_by_the_context() {
        let keys =
            [("blockSize", "1024"), ("reservedBlocksPercent", "5"), ("discard", "true"), ("check", "always")];
        let request = request("ext4", &[&keys[..], &[("pool", "a")]].concat());
        let options = take(&request).unwrap();
        let volume = options.keep_in(Volume::new(VolumeId::new("v").unwrap(), 1));
        let kept: Vec<(&str, &str)> =
            volume.volume_context.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(kept, [keys[0], keys[3], keys[2], keys[1]]);
        let context = VolumeContext::read("volume_context", &volume.volume_context).unwrap();
        let again = FilesystemOptions::kept_in(&context).unwrap();
        assert_eq!(again, options);
        let plan = format!("{:?}", again.plan(&request.volume_capabilities[0]).unwrap());
        for part in ["\"-b1024\"", "\"-m5\"", "discard", "Always"] {
            assert!(plan.contains(part), "{part}: {plan}");
        }
    }

    #[test]
    fn a_choice_that_the_filesystem_does_not_take_is_refused_before_the_volume_is_made() {
        for (fs_type, key, value, due) in [
            ("xfs", "reservedBlocksPercent", "5", "reserved_percent is not a choice of xfs"),
            ("", "blockSize", "777", "block_size is 777, and ext4 takes 1024, 2048, 4096"),
            ("ext4", "check", "sometimes", "parameters[check]: must be one of: whenNeeded, always, never"),
            ("ext4", "discard", "yes", "parameters[discard]: must be true or false"),
            ("ext4", "mapUsers", "1000", "parameters[mapUsers]: must be pairs of ids"),
            ("xfs", "mapGroups", "0:1000,-1:5", "parameters[mapGroups]: must be pairs of ids"),
            ("btrfs", "mapGroups", "0:7,7:8", "parameters[mapGroups]: map owners: 7 is already mapped"),
            (
                "ext4",
                "mapUsers",
                "0:4294967295",
                "parameters[mapUsers]: map owners: 4294967295 is not a valid id",
            ),
        ] {
            let error = take(&request(fs_type, &[(key, value)])).unwrap_err();
            assert!(
                matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains(due),
                "{error}"
            );
        }
    }
}
