//! The filesystems that this crate makes, mounts and grows.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};
use crate::filesystem::tool::Tool;

/// A filesystem that the steps of volumes make, check, grow and mount.
///
/// There is no default: a caller that gets an empty name from its orchestrator chooses one itself. Any
/// other content on a device is recognized by the prober and kept. ext3 is not made: ext4 does all that it
/// does. vfat is not made either: it has no file owners and no journal, and can't grow.
///
/// ```
/// use csi_mount::Filesystem;
///
/// assert_eq!("xfs".parse::<Filesystem>()?, Filesystem::Xfs);
/// assert!("".parse::<Filesystem>().is_err());
/// # Ok::<(), csi_mount::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Filesystem {
    /// ext4: grows mounted (with `CAP_SYS_RESOURCE`) and unmounted.
    Ext4,
    /// XFS: at least 300 MiB; grows mounted only.
    Xfs,
    /// btrfs on one device: grows mounted only.
    Btrfs,
}

impl Filesystem {
    /// Every filesystem of this enum.
    pub const ALL: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Btrfs];

    /// The kernel's name for it, as in `/proc/filesystems`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// The size in bytes of the smallest device that it can be made on with its defaults, for a driver that
    /// rounds sizes up.
    pub const fn min_size(self) -> u64 {
        match self {
            // Below 2 MiB mkfs.ext4 makes no journal. A smaller minimum refuses fewer claims. A driver that
            // rounded 1 MiB up would also have to refuse to restore such a volume into one of the requested
            // size.
            Self::Ext4 => 1 << 20,
            Self::Xfs => 300 << 20,
            // Metadata is stored twice, and each chunk has a minimum size.
            Self::Btrfs => 114_294_784,
        }
    }

    /// The programs that its volumes need: to make and check it, and to grow it where the kernel does not.
    pub const fn tools(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 => &["mkfs.ext4", "e2fsck", "resize2fs"],
            Self::Xfs => &["mkfs.xfs", "xfs_repair"],
            Self::Btrfs => &["mkfs.btrfs", "btrfs"],
        }
    }

    /// Finds its [`tools`](Self::tools) on `PATH` and in the system's directories, and returns their paths.
    ///
    /// Use it to check for them before a driver or program starts. [`Mounts::preflight`](crate::Mounts::preflight)
    /// looks for them too.
    ///
    /// # Errors
    ///
    /// [`MissingTool`](ErrorKind::MissingTool) for the first one that is not found, with its Debian
    /// package.
    pub fn find_tools(self) -> Result<Vec<PathBuf>, Error> {
        self.tools().iter().map(|program| self.tool(program).find()).collect()
    }

    /// Whether it is repaired and grown while it is not mounted. The others repair themselves at a mount, and
    /// grow mounted only.
    pub(crate) const fn is_maintained_unmounted(self) -> bool {
        match self {
            Self::Ext4 => true,
            Self::Xfs | Self::Btrfs => false,
        }
    }

    /// Whether the kernel refuses to mount two of them with one UUID, unless `nouuid` is given.
    pub(crate) const fn has_nouuid(self) -> bool {
        match self {
            Self::Xfs => true,
            Self::Ext4 | Self::Btrfs => false,
        }
    }

    /// Whether newer kernels mount two of them with one UUID as different filesystems, also if both are one disk.
    pub(crate) const fn can_be_mounted_twice(self) -> bool {
        match self {
            Self::Btrfs => true,
            Self::Ext4 | Self::Xfs => false,
        }
    }

    pub(crate) const fn tool(self, program: &'static str) -> Tool {
        Tool { program, package: self.package() }
    }

    /// The Debian package that holds its tools.
    pub const fn package(self) -> &'static str {
        match self {
            Self::Ext4 => "e2fsprogs",
            Self::Xfs => "xfsprogs",
            Self::Btrfs => "btrfs-progs",
        }
    }
}

impl fmt::Display for Filesystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Filesystem {
    type Err = Error;

    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for an empty name, [`Unsupported`](ErrorKind::Unsupported)
    /// for any that is not in [`ALL`](Self::ALL).
    fn from_str(name: &str) -> Result<Self, Error> {
        if let Some(known) = Self::ALL.into_iter().find(|known| known.name() == name) {
            return Ok(known);
        }
        let kind = if name.is_empty() { ErrorKind::InvalidInput } else { ErrorKind::Unsupported };
        Err(Error::new(kind, "choose a filesystem", format!("{name:?} is not a supported filesystem"))
            .hint("use ext4, xfs or btrfs"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exact() {
        for known in Filesystem::ALL {
            assert_eq!(known.to_string().parse::<Filesystem>().unwrap(), known);
        }
        assert_eq!("".parse::<Filesystem>().unwrap_err().kind(), ErrorKind::InvalidInput);
        for bad in ["EXT4", "ext4 ", "ext3", "vfat", "zfs", "xfs\0"] {
            let error = bad.parse::<Filesystem>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{bad:?}");
            assert!(error.to_string().contains("use ext4, xfs or btrfs"), "{error}");
        }
    }
}
