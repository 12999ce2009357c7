//! A signature, and what it says about its filesystem.

use std::fmt;

use crate::filesystem::kind::Filesystem;

/// Something recognized on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Signature {
    /// Its name, as in libblkid: `ext4`, `xfs`, `gpt`, `crypto_LUKS`.
    pub name: &'static str,
    /// Where it is, in bytes from the start of the device.
    pub offset: u64,
    /// A filesystem's UUID, for ext2 to ext4, XFS and btrfs.
    pub uuid: Option<String>,
    /// A filesystem's label, for the same filesystems.
    pub label: Option<String>,
    /// How many bytes of this device the filesystem covers, for the same filesystems.
    pub size: Option<u64>,
    /// Whether `mkfs` finished.
    pub progress: Progress,
    /// By how many bytes the device must be larger before the filesystem can use any of them.
    pub(crate) min_growth: u64,
    /// Whether the filesystem has recorded errors in itself.
    pub(crate) has_errors: bool,
}

/// Whether `mkfs` finished, according to the filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing says otherwise.
    Finished,
    /// `mkfs` was interrupted and the filesystem can't be mounted (XFS's `sb_inprogress`).
    Unfinished,
}

impl Signature {
    pub(crate) fn new(name: &'static str, offset: u64) -> Self {
        let progress = Progress::Finished;
        Self { name, offset, uuid: None, label: None, size: None, progress, min_growth: 1, has_errors: false }
    }

    /// The filesystem, if this crate makes and mounts it and `mkfs` finished.
    pub fn filesystem(&self) -> Option<Filesystem> {
        let finished = self.progress == Progress::Finished;
        Filesystem::ALL.into_iter().find(|known| finished && known.name() == self.name)
    }

    /// Whether it is an encrypted device.
    #[cfg(feature = "luks")]
    pub(crate) fn is_luks(&self) -> bool {
        self.name == "crypto_LUKS"
    }

    /// Whether the filesystem could use more of a device of this many bytes.
    pub(crate) fn can_grow_to(&self, device_size: u64) -> bool {
        self.size.is_some_and(|size| device_size.saturating_sub(size) >= self.min_growth)
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.name, self.offset)?;
        if let Some(uuid) = &self.uuid {
            write!(f, " (UUID {uuid})")?;
        }
        if self.progress == Progress::Unfinished {
            f.write_str(", which mkfs did not finish")?;
        }
        Ok(())
    }
}
