//! A volume's content: a directory with files in it, or an image.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use csi_core::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    Directories,
    Images,
    /// With a filesystem on each image.
    Filesystems,
    /// The same on one node, or the image itself on many: neither kind has a mode of the other.
    TwoKinds,
}

impl Storage {
    /// Creates the content, as a copy of `from` if that is given. An image gets this size.
    pub(super) fn make(self, path: &Path, from: Option<PathBuf>, bytes: u64) -> Result<()> {
        match self {
            Self::Directories => {
                fs::create_dir_all(path)?;
                for entry in from.iter().flat_map(fs::read_dir).flatten() {
                    let entry = entry?;
                    fs::copy(entry.path(), path.join(entry.file_name()))?;
                }
            }
            Self::Images | Self::Filesystems | Self::TwoKinds => {
                if let Some(from) = from {
                    fs::copy(from, path)?;
                }
                File::options().create(true).truncate(false).write(true).open(path)?.set_len(bytes)?;
            }
        }
        Ok(())
    }

    /// Removes the content, if it exists. Nothing is mounted in a directory, and it contains
    /// no subdirectories.
    pub(super) fn remove(self, path: &Path) -> Result<()> {
        if !path.exists() {
            return Ok(());
        }
        if self != Self::Directories {
            return Ok(fs::remove_file(path)?);
        }
        for entry in fs::read_dir(path)? {
            fs::remove_file(entry?.path())?;
        }
        Ok(fs::remove_dir(path)?)
    }
}
