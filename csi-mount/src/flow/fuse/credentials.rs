//! The files with a daemon's credentials: in a directory for each place, which only this user can enter.

use std::fs;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, fstat, mkdirat, openat, renameat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::error::{Error, ErrorKind, Result};
use crate::sys::hash::fnv1a;

const WRITE: &str = "write the credentials of a daemon";
/// The file that becomes the next one; no credential has this name.
const NEXT: &str = ".next";

/// The directory of a place, in every process that has the same directory for temporary files.
pub(super) fn directory(place: &Path) -> PathBuf {
    std::env::temp_dir().join(format!("csi-fuse-{:016x}", fnv1a(place.as_os_str().as_bytes())))
}

/// Writes files, by name and content. A reader sees the earlier content or the new one.
pub(super) fn write<'f>(place: &Path, files: impl Iterator<Item = (&'f str, &'f [u8])>) -> Result<()> {
    let mut files = files.peekable();
    if files.peek().is_none() {
        return Ok(());
    }
    let path = directory(place);
    let failed = |error: Errno| Error::os(WRITE, &path, error);
    let opened = open(&path)?;
    for (name, content) in files {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if name.starts_with('.') || name.is_empty() || !name.bytes().all(is_plain) {
            let reason = format!(
                "{name:?} is no name for a credential: letters, digits, dots, dashes and underscores"
            );
            return Err(Error::new(ErrorKind::InvalidInput, WRITE, reason));
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&opened, NEXT, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        fs::File::from(file).write_all(content).map_err(|error| Error::os(WRITE, &path, error))?;
        renameat(&opened, NEXT, &opened, name).map_err(failed)?;
    }
    Ok(())
}

/// Opens the directory, which no other user can have made: its place can be open to everybody.
fn open(path: &Path) -> Result<OwnedFd> {
    let failed = |error: Errno| Error::os(WRITE, path, error);
    match mkdirat(CWD, path, Mode::RWXU) {
        Err(error) if error != Errno::EXIST => return Err(failed(error)),
        _ => {}
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(CWD, path, flags, Mode::empty()).map_err(failed)?;
    let found = fstat(&opened).map_err(failed)?;
    let is_private = found.st_mode & 0o077 == 0;
    if found.st_uid != geteuid().as_raw() || !is_private {
        let reason = "another user made this directory";
        return Err(Error::new(ErrorKind::PermissionDenied, WRITE, reason).at(path).hint("remove it"));
    }
    Ok(opened)
}

/// Removes the files of a place, if it has any.
pub(super) fn remove(place: &Path) {
    let path = directory(place);
    let files = match open_existing(&path) {
        Ok(files) => files,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        Err(error) => {
            tracing::warn!(%error, at = %path.display(), "the credentials of a FUSE daemon stay");
            return;
        }
    };
    for file in files.flatten() {
        drop(fs::remove_file(file.path()));
    }
    if let Err(error) = fs::remove_dir(&path) {
        tracing::warn!(%error, at = %path.display(), "the credentials of a FUSE daemon stay");
    }
}

fn open_existing(path: &Path) -> std::io::Result<fs::ReadDir> {
    // Through a symbolic link another directory would be emptied.
    if fs::symlink_metadata(path)?.is_symlink() {
        return Err(std::io::ErrorKind::NotADirectory.into());
    }
    fs::read_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(place: &Path, name: &str) -> Option<String> {
        fs::read_to_string(directory(place).join(name)).ok()
    }

    #[test]
    fn files_are_replaced_and_removed() {
        let place = Path::new("/no/such/place/of/credentials");
        write(place, [].into_iter()).unwrap();
        assert!(!directory(place).exists(), "no file, no directory");
        for content in ["one", "two"] {
            write(place, [("token", content.as_bytes())].into_iter()).unwrap();
            assert_eq!(read(place, "token").as_deref(), Some(content));
        }
        for bad in ["", "..", ".next", "a/b"] {
            let error = write(place, [(bad, &b"x"[..])].into_iter()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
        remove(place);
        assert!(!directory(place).exists());
        remove(place);
    }

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let place = Path::new("/no/such/place/of/open/credentials");
        let path = directory(place);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let written = write(place, [("token", &b"x"[..])].into_iter());
        fs::remove_dir(&path).unwrap();
        assert_eq!(written.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
}
