//! How a volume is used: as a block device or mounted, by one node or several.

use std::fmt;

use csi_proto::{internal, v1};
use v1::volume_capability::{AccessType as WireAccessType, access_mode::Mode};

use super::id::{STRING_MAX, check_size};
use super::wire::{FLAGS_MAX, check_total};
use crate::error::{Error, Result};

/// Who can use a volume at the same time, in the spec's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AccessMode {
    /// Read and write on one node.
    SingleNodeWriter,
    /// Read on one node.
    SingleNodeReaderOnly,
    /// Read on many nodes.
    MultiNodeReaderOnly,
    /// Read on many nodes, write on one of them.
    MultiNodeSingleWriter,
    /// Read and write on many nodes.
    MultiNodeMultiWriter,
    /// Read and write by one workload on one node. Alpha.
    SingleNodeSingleWriter,
    /// Read and write by many workloads on one node. Alpha.
    SingleNodeMultiWriter,
}

impl AccessMode {
    /// All seven, in the order of their numbers.
    pub(crate) const ALL: [AccessMode; 7] = [
        Self::SingleNodeWriter,
        Self::SingleNodeReaderOnly,
        Self::MultiNodeReaderOnly,
        Self::MultiNodeSingleWriter,
        Self::MultiNodeMultiWriter,
        Self::SingleNodeSingleWriter,
        Self::SingleNodeMultiWriter,
    ];

    /// Whether several nodes can use the volume at the same time.
    pub fn is_multi_node(self) -> bool {
        matches!(self, Self::MultiNodeReaderOnly | Self::MultiNodeSingleWriter | Self::MultiNodeMultiWriter)
    }

    /// Whether the mode allows reading only.
    pub fn is_read_only(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }

    /// Whether this is one of the two modes that need SINGLE_NODE_MULTI_WRITER.
    pub(crate) fn needs_single_node_multi_writer(self) -> bool {
        matches!(self, Self::SingleNodeSingleWriter | Self::SingleNodeMultiWriter)
    }

    fn mode(self) -> Mode {
        match self {
            Self::SingleNodeWriter => Mode::SingleNodeWriter,
            Self::SingleNodeReaderOnly => Mode::SingleNodeReaderOnly,
            Self::MultiNodeReaderOnly => Mode::MultiNodeReaderOnly,
            Self::MultiNodeSingleWriter => Mode::MultiNodeSingleWriter,
            Self::MultiNodeMultiWriter => Mode::MultiNodeMultiWriter,
            Self::SingleNodeSingleWriter => Mode::SingleNodeSingleWriter,
            Self::SingleNodeMultiWriter => Mode::SingleNodeMultiWriter,
        }
    }

    fn read(field: &str, number: i32) -> Result<Self> {
        Self::ALL.into_iter().find(|mode| mode.mode() as i32 == number).ok_or_else(|| {
            Error::invalid(field, format!("is {number}, not an access mode this driver knows"))
        })
    }
}

impl fmt::Display for AccessMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mode().as_str_name())
    }
}

/// Mount options as the caller gave them. They can contain secrets, so `Debug` hides all that are not known
/// to be harmless.
///
/// One element is one option, even if it contains commas: an SELinux `context="…"` does.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct MountFlags(Vec<String>);

impl MountFlags {
    /// The flags, in the caller's order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

// spec: mount-flags.not-leaked
impl fmt::Debug for MountFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        internal::MountFlags(&self.0).fmt(f)
    }
}

/// How the workload sees the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessType {
    /// As a raw block device.
    Block,
    /// As a mounted filesystem.
    #[non_exhaustive]
    Mount {
        /// The requested filesystem; `None` lets the driver choose.
        fs_type: Option<String>,
        /// The mount options.
        mount_flags: MountFlags,
        /// The group that is to own the volume's files, if the driver offers VOLUME_MOUNT_GROUP.
        volume_mount_group: Option<String>,
    },
}

/// A way to use a volume: the kind of access, and who can have it at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeCapability {
    /// Block or mount.
    pub access_type: AccessType,
    /// Who can use the volume at the same time.
    pub access_mode: AccessMode,
}

impl VolumeCapability {
    /// Whether the volume is used as a mounted filesystem, and not as a raw block device.
    pub fn is_mount(&self) -> bool {
        self.access_type != AccessType::Block
    }

    /// The requested filesystem, if the volume is to be mounted and the caller named one.
    pub fn fs_type(&self) -> Option<&str> {
        match &self.access_type {
            AccessType::Mount { fs_type, .. } => fs_type.as_deref(),
            AccessType::Block => None,
        }
    }

    /// Whether this is the use that a driver has recorded as this type's text: the access type and the mode.
    ///
    /// SINGLE_NODE_WRITER is also the same as each of SINGLE_NODE_MULTI_WRITER and SINGLE_NODE_SINGLE_WRITER.
    /// Kubernetes sends it in place of them to a driver without the capability SINGLE_NODE_MULTI_WRITER, and so repeats
    /// a call with another mode when the driver or a sidecar was updated meanwhile.
    pub fn is_recorded_as(&self, recorded: &str) -> bool {
        let with = |access_mode| Self { access_mode, ..self.clone() }.to_string();
        let older = AccessMode::SingleNodeWriter;
        let newer = [AccessMode::SingleNodeMultiWriter, AccessMode::SingleNodeSingleWriter];
        let is_updated = newer.contains(&self.access_mode) && recorded == with(older);
        let is_older = self.access_mode == older && newer.iter().any(|mode| recorded == with(*mode));
        is_updated || is_older || recorded == self.to_string()
    }

    /// The smallest size in bytes of a device with the requested filesystem; 0 if the caller named none.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    pub fn min_device_size(&self) -> u64 {
        let filesystem = self.fs_type().and_then(|name| name.parse().ok());
        filesystem.map_or(0, csi_mount::Filesystem::min_size)
    }

    /// The group that is to own the volume's files, if the caller named one.
    pub fn volume_mount_group(&self) -> Option<&str> {
        match &self.access_type {
            AccessType::Mount { volume_mount_group, .. } => volume_mount_group.as_deref(),
            AccessType::Block => None,
        }
    }

    /// The mount options; none for a raw block volume.
    pub fn mount_flags(&self) -> impl Iterator<Item = &str> {
        match &self.access_type {
            AccessType::Mount { mount_flags, .. } => mount_flags.0.as_slice(),
            AccessType::Block => &[],
        }
        .iter()
        .map(String::as_str)
    }

    // spec: fields.one-of
    pub(crate) fn read(field: &str, wire: &v1::VolumeCapability) -> Result<Self> {
        let mode = wire.access_mode.as_ref().map_or(0, |mode| mode.mode);
        if mode == 0 {
            return Err(Error::invalid(
                format!("{field}.access_mode.mode"),
                "is required and must not be UNKNOWN",
            ));
        }
        let access_mode = AccessMode::read(&format!("{field}.access_mode.mode"), mode)?;
        let access_type = match &wire.access_type {
            None => {
                return Err(Error::invalid(format!("{field}.access_type"), "is required: block or mount"));
            }
            Some(WireAccessType::Block(_)) => AccessType::Block,
            Some(WireAccessType::Mount(mount)) => read_mount(&format!("{field}.mount"), mount)?,
        };
        Ok(Self { access_type, access_mode })
    }
}

// spec: size-limits.mount-flags
fn read_mount(field: &str, mount: &v1::volume_capability::MountVolume) -> Result<AccessType> {
    let optional = |name: &str, text: &str| {
        check_size(&format!("{field}.{name}"), text, STRING_MAX)?;
        Ok::<_, Error>((!text.is_empty()).then(|| text.to_owned()))
    };
    check_total(&format!("{field}.mount_flags"), mount.mount_flags.iter().map(String::len), FLAGS_MAX)?;
    Ok(AccessType::Mount {
        fs_type: optional("fs_type", &mount.fs_type)?,
        mount_flags: MountFlags(mount.mount_flags.clone()),
        volume_mount_group: optional("volume_mount_group", &mount.volume_mount_group)?,
    })
}

/// Shows access and mode, for example `mount (xfs), SINGLE_NODE_WRITER`; never the flags.
impl fmt::Display for VolumeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.access_type, self.fs_type()) {
            (AccessType::Block, _) => f.write_str("block")?,
            (_, Some(fs_type)) => write!(f, "mount ({fs_type})")?,
            (_, None) => f.write_str("mount")?,
        }
        write!(f, ", {}", self.access_mode)
    }
}

impl From<&VolumeCapability> for v1::VolumeCapability {
    fn from(capability: &VolumeCapability) -> Self {
        let access_type = match &capability.access_type {
            AccessType::Block => WireAccessType::Block(v1::volume_capability::BlockVolume {}),
            AccessType::Mount { fs_type, mount_flags, volume_mount_group } => {
                WireAccessType::Mount(v1::volume_capability::MountVolume {
                    fs_type: fs_type.clone().unwrap_or_default(),
                    mount_flags: mount_flags.0.clone(),
                    volume_mount_group: volume_mount_group.clone().unwrap_or_default(),
                })
            }
        };
        let mode = capability.access_mode.mode() as i32;
        Self { access_mode: Some(v1::volume_capability::AccessMode { mode }), access_type: Some(access_type) }
    }
}

/// The capabilities of CreateVolume and ValidateVolumeCapabilities: at least one.
pub(crate) fn read_required(field: &str, wire: &[v1::VolumeCapability]) -> Result<Vec<VolumeCapability>> {
    if wire.is_empty() {
        return Err(Error::invalid(field, "is required and must not be empty"));
    }
    read_all(field, wire)
}

pub(crate) fn read_all(field: &str, wire: &[v1::VolumeCapability]) -> Result<Vec<VolumeCapability>> {
    wire.iter()
        .enumerate()
        .map(|(at, capability)| VolumeCapability::read(&format!("{field}[{at}]"), capability))
        .collect()
}

#[cfg(all(test, feature = "mount", target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_named_filesystem_has_a_smallest_device() {
        let smallest = |fs_type: &str| {
            let mount =
                v1::volume_capability::MountVolume { fs_type: fs_type.to_owned(), ..Default::default() };
            let wire = v1::VolumeCapability {
                access_type: Some(WireAccessType::Mount(mount)),
                ..v1::VolumeCapability::mount(Mode::SingleNodeWriter)
            };
            VolumeCapability::read("", &wire).unwrap().min_device_size()
        };
        assert_eq!(["xfs", "ext4", "", "nfs"].map(smallest), [300 << 20, 1 << 20, 0, 0]);
    }
}
