//! Files that are there whole or not at all, after a power failure too.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use csi_core::{IoContext as _, Result};

/// Writes a file in one step: next to its place first, then renamed. The caller syncs the directory.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> Result<()> {
    let part = path.with_extension("part");
    let written = write(&part, content).and_then(|()| fs::rename(&part, path).at("rename", &part));
    if written.is_err() {
        // On a full disk it would keep the room that is missing.
        let _ = fs::remove_file(&part);
    }
    written
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    let mut file = File::create(path).at("create", path)?;
    file.write_all(content).at("write", path)?;
    file.sync_all().at("sync", path)
}

/// Makes sure that a file, or the names in a directory, are on the disk.
pub(crate) fn sync(path: &Path) -> Result<()> {
    File::open(path).at("open", path)?.sync_all().at("sync", path)
}
