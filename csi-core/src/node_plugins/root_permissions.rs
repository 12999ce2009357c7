//! `mountPermissions`: the permissions that a ready-made node plugin gives to a volume's root directory.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use csi_mount::{ErrorKind, Host, MountAttributes};

use crate::error::{Error, Reason, Result};
use crate::types::VolumeContext;

/// The permissions of a volume's root directory, for workloads that run as an ordinary user and have no
/// `fsGroup`.
///
/// Users write them as an octal number in a storage class, as for csi-driver-nfs:
///
/// ```
/// use csi_core::node_plugins::RootPermissions;
/// use csi_core::{Result, prelude::*};
///
/// fn root_permissions(volume: &Attachment) -> Result<RootPermissions> {
///     RootPermissions::from_context(&volume.volume_context, "mountPermissions")
/// }
///
/// assert_eq!("0".parse(), Ok(RootPermissions::default()));
/// ```
///
/// The directory is changed when a volume is staged, or published by a plugin that does not stage; only if it
/// has other permissions, and not if the call is read-only. The files in it stay as they are. With a group of
/// VOLUME_MOUNT_GROUP that changes the files
/// ([`MountGroup::ChangeFiles`](crate::node_plugins::MountGroup::ChangeFiles)) the group's permissions and
/// the setgid bit are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RootPermissions(u32);

impl RootPermissions {
    /// Returns the permissions under a key of the volume's context. Without the key, or with an empty value,
    /// the directory stays as it is.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the key, when the value is no octal mode.
    pub fn from_context(context: &VolumeContext, key: &str) -> Result<Self> {
        let parsed = context.get(key).filter(|text| !text.is_empty()).map_or(Ok(Self::default()), str::parse);
        parsed.map_err(|why| Error::invalid(format!("volume_context[{key}]"), why))
    }

    /// The permission bits with setuid, setgid and sticky; `None` if the directory stays as it is.
    fn mode(self) -> Option<u32> {
        (self.0 != 0).then_some(self.0)
    }

    /// These, or none for a mount that is read-only.
    pub(super) fn unless_read_only(self, attributes: MountAttributes) -> Self {
        if attributes.contains(MountAttributes::RDONLY) { Self::default() } else { self }
    }

    /// Adds what a group needs that owns the files: the kubelet's `fsGroup` does the same.
    pub(super) fn with_group(self) -> Self {
        match self.0 {
            0 => self,
            mode => Self(mode | 0o2770),
        }
    }

    /// Gives them to the directory.
    pub(super) fn apply(self, host: &Host, directory: &Path) -> Result<()> {
        let Some(mode) = self.mode() else { return Ok(()) };
        host.directories().set_permissions(directory, mode).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::Unsupported => {
                Error::NotPossible(Reason::from_error(error.hint(
                    "let root change the permissions (no_root_squash), or leave the volume's permissions out",
                )))
            }
            _ => error.into(),
        })
    }
}

impl fmt::Display for RootPermissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl FromStr for RootPermissions {
    type Err = String;

    /// # Errors
    /// A sentence without a subject that says what is wrong and how to write it.
    fn from_str(text: &str) -> Result<Self, String> {
        let is_octal = text.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o7777);
        mode.map(Self).ok_or_else(|| {
            format!("{text:?} is no octal mode such as 0770 (0 leaves the directory as it is)")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_octal_modes() {
        for (text, mode) in [("0", None), ("0000", None), ("777", Some(0o777)), ("02770", Some(0o2770))] {
            assert_eq!(text.parse::<RootPermissions>().unwrap().mode(), mode, "{text}");
        }
        for text in ["", "8", "+7", "-1", "rwx", "0x1ff", "10000", "077777777777777"] {
            assert!(text.parse::<RootPermissions>().is_err(), "{text}");
        }
        assert_eq!("770".parse::<RootPermissions>().unwrap().to_string(), "0770");
        let shared = "0755".parse::<RootPermissions>().unwrap().with_group();
        assert_eq!((shared.mode(), RootPermissions::default().with_group().mode()), (Some(0o2775), None));
    }
}
