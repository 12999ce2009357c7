//! Files that are there whole or not at all, after a power failure too.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use csi_core::Result;

/// Writes a file in one step: beside its place first, then renamed. The caller syncs the directory.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> Result<()> {
    let beside = path.with_extension("part");
    let mut file = File::create(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(beside, path)?;
    Ok(())
}

/// Makes sure that the names in a directory are on the disk.
pub(crate) fn sync_directory(directory: &Path) -> Result<()> {
    Ok(File::open(directory)?.sync_all()?)
}
