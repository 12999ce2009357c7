//! Files that are old or new after a crash, and nothing else.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Writes a file that only root can read: a process that is killed leaves the old one or the new one, and `new`.
pub(crate) fn write(path: &Path, new: &Path, bytes: &[u8]) -> io::Result<()> {
    let _ = fs::remove_file(new);
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(new, path)?;
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    File::open(directory)?.sync_all()
}
