//! The access that a call asks for.

use std::collections::BTreeSet;

use csi_proto::ControllerCapability;
use csi_proto::v1::VolumeCapability;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use crate::driver::Driver;
use crate::error::{Result, invalid};
use crate::objects::{Text, Volume};

/// A block volume, or a filesystem that is mounted with these flags.
pub(crate) fn capability(mode: Mode, is_block: bool, fs_type: &str, flags: Vec<String>) -> VolumeCapability {
    let access_type = if is_block {
        AccessType::Block(BlockVolume {})
    } else {
        AccessType::Mount(MountVolume {
            fs_type: fs_type.to_owned(),
            mount_flags: flags,
            volume_mount_group: String::new(),
        })
    };
    VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access_type) }
}

/// CSI's mode for one of Kubernetes' modes.
pub(crate) fn mode(name: &str, driver: &Driver) -> Result<Mode> {
    match (name, driver.can(ControllerCapability::SingleNodeMultiWriter)) {
        ("ReadWriteMany", _) => Ok(Mode::MultiNodeMultiWriter),
        ("ReadOnlyMany", _) => Ok(Mode::MultiNodeReaderOnly),
        ("ReadWriteOnce", true) => Ok(Mode::SingleNodeMultiWriter),
        ("ReadWriteOncePod", true) => Ok(Mode::SingleNodeSingleWriter),
        ("ReadWriteOnce" | "ReadWriteOncePod", false) => Ok(Mode::SingleNodeWriter),
        _ => Err(invalid!("unsupported access mode {name:?}")),
    }
}

/// The one capability for all access modes of a volume: for the calls that take only one.
///
/// # Errors
/// The volume is no volume of CSI, or CSI has no mode for its modes together.
pub(crate) fn merged_capability(volume: &Volume, driver: &Driver) -> Result<VolumeCapability> {
    let source = volume.spec.csi.as_ref().ok_or_else(|| invalid!("CSI volume source was nil"))?;
    let mode = merged_mode(&volume.spec.access_modes, driver)?;
    let flags = volume.spec.mount_options.iter().map(ToString::to_string).collect();
    Ok(capability(mode, volume.is_block(), &source.fs_type, flags))
}

fn merged_mode(modes: &[Text], driver: &Driver) -> Result<Mode> {
    let modes: BTreeSet<&str> = modes.iter().map(|mode| &**mode).collect();
    if let (1, Some(only)) = (modes.len(), modes.first()) {
        return mode(only, driver);
    }
    if modes.contains("ReadWriteMany") && !modes.contains("ReadWriteOncePod") {
        return Ok(Mode::MultiNodeMultiWriter);
    }
    Err(invalid!("CSI does not support the access modes {modes:?} on the same PersistentVolume"))
}
