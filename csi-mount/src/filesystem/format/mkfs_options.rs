//! The layout of a new filesystem, as far as the author of a class can choose it.

use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::kind::Filesystem;

/// Choices of the layout of a new filesystem. Each is checked: unlike
/// [`mkfs_arguments`](crate::flow::block::StagePlan::mkfs_arguments), these can come from a StorageClass.
///
/// | | ext4 | XFS | btrfs |
/// |---|---|---|---|
/// | `block_size` in bytes | 1024, 2048, 4096 | 1024, 2048, 4096 | |
/// | `inode_size` in bytes | 256, 512, 1024 | 512, 1024, 2048 | |
/// | `bytes_per_inode` | 1024 to 64 MiB | | |
/// | `reserved_percent` for root | 0 to 50, else 0 | | |
///
/// ```
/// use csi_mount::flow::block::StagePlan;
/// use csi_mount::{Filesystem, MkfsOptions};
///
/// let small_files = MkfsOptions::new().block_size(1024).bytes_per_inode(4096);
/// let plan = StagePlan::new(Filesystem::Ext4).mkfs_options(small_files)?;
/// # let _ = plan;
/// assert!(StagePlan::new(Filesystem::Btrfs).mkfs_options(small_files).is_err());
/// # Ok::<(), csi_mount::Error>(())
/// ```
///
/// Sources: `mke2fs(8)`, `mkfs.xfs(8)`. Blocks larger than 4096 bytes need pages of that size on each node, or for XFS
/// Linux 6.12; inodes of 128 bytes can't store times after 2038. So both are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct MkfsOptions {
    block_size: Option<u32>,
    inode_size: Option<u32>,
    bytes_per_inode: Option<u32>,
    reserved_percent: Option<u8>,
}

impl MkfsOptions {
    /// What `mkfs` chooses itself, without reserved blocks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the size of a block in bytes.
    pub fn block_size(mut self, bytes: u32) -> Self {
        self.block_size = Some(bytes);
        self
    }

    /// Sets the size of an inode in bytes: small files and extended attributes can be in it.
    pub fn inode_size(mut self, bytes: u32) -> Self {
        self.inode_size = Some(bytes);
        self
    }

    /// Makes an inode for each of so many bytes of the device. Less means more files.
    pub fn bytes_per_inode(mut self, bytes: u32) -> Self {
        self.bytes_per_inode = Some(bytes);
        self
    }

    /// Reserves so many percent of the blocks for processes of root.
    pub fn reserved_percent(mut self, percent: u8) -> Self {
        self.reserved_percent = Some(percent);
        self
    }

    /// The arguments of the filesystem's `mkfs`.
    pub(crate) fn arguments(&self, filesystem: Filesystem) -> Result<Vec<String>> {
        let mut arguments = Vec::new();
        for option in self.given() {
            let Some((argument, allowed)) = option.on(filesystem) else {
                return Err(refused(option.name, format!("is not a choice of {filesystem}")));
            };
            if !allowed.contains(option.value) {
                return Err(refused(
                    option.name,
                    format!("is {}, and {filesystem} takes {allowed}", option.value),
                ));
            }
            arguments.push(format!("{argument}{}", option.value));
        }
        Ok(arguments)
    }

    fn given(&self) -> impl Iterator<Item = Given> {
        let options = [
            ("block_size", self.block_size),
            ("inode_size", self.inode_size),
            ("bytes_per_inode", self.bytes_per_inode),
            ("reserved_percent", self.reserved_percent.map(u32::from)),
        ];
        options.into_iter().filter_map(|(name, value)| Some(Given { name, value: value? }))
    }
}

struct Given {
    name: &'static str,
    value: u32,
}

impl Given {
    /// The argument, to be followed by the value, and what the filesystem takes.
    fn on(&self, filesystem: Filesystem) -> Option<(&'static str, Allowed)> {
        use Allowed::{Between, OneOf};
        match (self.name, filesystem) {
            ("block_size", Filesystem::Ext4) => Some(("-b", OneOf(&[1024, 2048, 4096]))),
            ("block_size", Filesystem::Xfs) => Some(("-bsize=", OneOf(&[1024, 2048, 4096]))),
            ("inode_size", Filesystem::Ext4) => Some(("-I", OneOf(&[256, 512, 1024]))),
            ("inode_size", Filesystem::Xfs) => Some(("-isize=", OneOf(&[512, 1024, 2048]))),
            ("bytes_per_inode", Filesystem::Ext4) => Some(("-i", Between(1024, 64 << 20))),
            ("reserved_percent", Filesystem::Ext4) => Some(("-m", Between(0, 50))),
            _ => None,
        }
    }
}

/// The values that a filesystem takes.
enum Allowed {
    OneOf(&'static [u32]),
    Between(u32, u32),
}

impl Allowed {
    fn contains(&self, value: u32) -> bool {
        match self {
            Self::OneOf(values) => values.contains(&value),
            Self::Between(least, most) => (*least..=*most).contains(&value),
        }
    }
}

impl std::fmt::Display for Allowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OneOf(values) => {
                let values: Vec<String> = values.iter().map(ToString::to_string).collect();
                f.write_str(&values.join(", "))
            }
            Self::Between(least, most) => write!(f, "{least} to {most}"),
        }
    }
}

fn refused(name: &str, reason: String) -> Error {
    Error::new(ErrorKind::InvalidInput, "format", format!("{name} {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_choice_is_an_argument_of_its_filesystem() {
        let all = MkfsOptions::new().block_size(2048).inode_size(512);
        assert_eq!(all.arguments(Filesystem::Xfs).unwrap(), ["-bsize=2048", "-isize=512"]);
        let all = all.bytes_per_inode(8192).reserved_percent(5);
        assert_eq!(all.arguments(Filesystem::Ext4).unwrap(), ["-b2048", "-I512", "-i8192", "-m5"]);
        assert!(MkfsOptions::new().arguments(Filesystem::Btrfs).unwrap().is_empty());
    }

    #[test]
    fn what_a_filesystem_does_not_take_is_refused_by_name() {
        let new = MkfsOptions::new;
        for (options, filesystem, due) in [
            (new().block_size(512), Filesystem::Ext4, "block_size is 512, and ext4 takes 1024, 2048, 4096"),
            (new().block_size(8192), Filesystem::Xfs, "block_size is 8192, and xfs takes 1024, 2048, 4096"),
            (new().block_size(4096), Filesystem::Btrfs, "block_size is not a choice of btrfs"),
            (new().inode_size(128), Filesystem::Ext4, "inode_size is 128, and ext4 takes 256, 512, 1024"),
            (new().inode_size(256), Filesystem::Xfs, "inode_size is 256, and xfs takes 512, 1024, 2048"),
            (
                new().bytes_per_inode(0),
                Filesystem::Ext4,
                "bytes_per_inode is 0, and ext4 takes 1024 to 67108864",
            ),
            (new().reserved_percent(51), Filesystem::Ext4, "reserved_percent is 51, and ext4 takes 0 to 50"),
            (new().reserved_percent(1), Filesystem::Xfs, "reserved_percent is not a choice of xfs"),
        ] {
            let error = options.arguments(filesystem).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains(due), "{error}");
        }
    }
}
