//! What a mount forbids, apart from the filesystem on it.

use std::fmt;

bitflags::bitflags! {
    /// Attributes of one mount, with the values of the kernel's `MOUNT_ATTR_*`.
    ///
    /// They belong to the mount, not to the filesystem: two mounts of one filesystem can differ. The access
    /// time mode is [`NOATIME`](Self::NOATIME), [`STRICTATIME`](Self::STRICTATIME) or neither, which is the
    /// kernel's default, relatime. See `mount_setattr(2)`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct MountAttributes: u64 {
        /// Nothing is written through this mount.
        #[doc(alias = "MOUNT_ATTR_RDONLY")]
        const RDONLY = 0x1;
        /// Set-user-id, set-group-id and file capabilities are ignored.
        #[doc(alias = "MOUNT_ATTR_NOSUID")]
        const NOSUID = 0x2;
        /// Device nodes cannot be opened.
        #[doc(alias = "MOUNT_ATTR_NODEV")]
        const NODEV = 0x4;
        /// Programs cannot be executed.
        #[doc(alias = "MOUNT_ATTR_NOEXEC")]
        const NOEXEC = 0x8;
        /// Access times are never updated.
        #[doc(alias = "MOUNT_ATTR_NOATIME")]
        const NOATIME = 0x10;
        /// Access times are updated at each access.
        #[doc(alias = "MOUNT_ATTR_STRICTATIME")]
        const STRICTATIME = 0x20;
        /// Access times of directories are never updated.
        #[doc(alias = "MOUNT_ATTR_NODIRATIME")]
        const NODIRATIME = 0x80;
        /// Symbolic links are not followed.
        ///
        /// Needs Linux 5.14, or 5.10 with `mount(2)`. On kernels where the calls in use do not support it
        /// (before 5.10, and 5.12 to 5.13) the mount is refused; the attribute is never ignored.
        #[doc(alias = "MOUNT_ATTR_NOSYMFOLLOW")]
        const NOSYMFOLLOW = 0x0020_0000;
    }
}

/// The kernel's bit field for the access time mode; 0 is relatime.
pub(crate) const ATIME_MODE: u64 = 0x70;

/// For each attribute its word in `mount(8)` and mountinfo, and the word that clears it.
const OPTIONS: [(MountAttributes, &str, &str); 8] = [
    (MountAttributes::RDONLY, "ro", "rw"),
    (MountAttributes::NOSUID, "nosuid", "suid"),
    (MountAttributes::NODEV, "nodev", "dev"),
    (MountAttributes::NOEXEC, "noexec", "exec"),
    (MountAttributes::NOATIME, "noatime", "atime"),
    (MountAttributes::STRICTATIME, "strictatime", "nostrictatime"),
    (MountAttributes::NODIRATIME, "nodiratime", "diratime"),
    (MountAttributes::NOSYMFOLLOW, "nosymfollow", "symfollow"),
];

impl MountAttributes {
    /// Applies a word of `mount(8)` to the attributes. None if the word is not about them.
    pub(crate) fn apply_option(self, option: &str) -> Option<Self> {
        if option == "relatime" {
            return Some(self.difference(Self::NOATIME | Self::STRICTATIME));
        }
        OPTIONS.iter().find_map(|&(attribute, set, clear)| {
            if option == set {
                Some(self.combined_with(attribute))
            } else if option == clear {
                Some(self.difference(attribute))
            } else {
                None
            }
        })
    }

    /// Both together. A mount has only one access time mode: if both set one, that of `other` wins.
    pub(crate) fn combined_with(self, other: Self) -> Self {
        let atime = Self::NOATIME | Self::STRICTATIME;
        let kept = if other.intersects(atime) { self.difference(atime) } else { self };
        kept.union(other)
    }
}

/// The words of `mount(8)`, starting with "ro" or "rw": `rw,nosuid,nodev`.
impl fmt::Display for MountAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.contains(Self::RDONLY) { "ro" } else { "rw" })?;
        OPTIONS[1..]
            .iter()
            .filter(|(attribute, ..)| self.contains(*attribute))
            .try_for_each(|(_, word, _)| write!(f, ",{word}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_set_and_clear_attributes() {
        let read_only = MountAttributes::default().apply_option("ro").unwrap();
        assert_eq!(read_only, MountAttributes::RDONLY);
        assert_eq!(read_only.apply_option("rw"), Some(MountAttributes::empty()));
        assert_eq!(read_only.apply_option("data=ordered"), None);
    }

    #[test]
    fn a_mount_has_one_access_time_mode() {
        let mode = MountAttributes::NOATIME.apply_option("strictatime").unwrap();
        assert_eq!(mode, MountAttributes::STRICTATIME);
        assert_eq!(mode.apply_option("relatime"), Some(MountAttributes::empty()));
    }

    #[test]
    fn displays_as_mount_options() {
        assert_eq!(MountAttributes::empty().to_string(), "rw");
        assert_eq!((MountAttributes::RDONLY | MountAttributes::NODEV).to_string(), "ro,nodev");
    }
}
