//! Files that are written completely or not at all, even across a power failure.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use csi_core::{IoContext as _, Result};

/// Writes a file atomically: to a temporary name first, then renamed. The caller syncs the directory.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> Result<()> {
    let part = path.with_extension("part");
    let written = write(&part, content).and_then(|()| fs::rename(&part, path).at("rename", &part));
    if written.is_err() {
        // On a full disk the partial file would keep space that is needed.
        let _ = fs::remove_file(&part);
    }
    written
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    let mut file = File::create(path).at("create", path)?;
    file.write_all(content).at("write", path)?;
    file.sync_all().at("sync", path)
}

/// Syncs a file, or the names in a directory, to the disk.
pub(crate) fn sync(path: &Path) -> Result<()> {
    File::open(path).at("open", path)?.sync_all().at("sync", path)
}
