//! The files with a daemon's credentials: in a directory for each place, which only this user can enter.

use std::ffi::CStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, fstat, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::error::{Error, ErrorKind, Result};
use crate::sys::hash::fnv1a;

const WRITE: &str = "write the credentials of a daemon";
const PREFIX: &str = "csi-fuse-";
/// The file that becomes the next one; no credential has this name.
const NEXT: &str = ".next";

/// The directory of a place, in every process that has the same directory for temporary files.
pub(super) fn directory(place: &Path) -> PathBuf {
    std::env::temp_dir().join(format!("{PREFIX}{:016x}", fnv1a(place.as_os_str().as_bytes())))
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

/// Makes the directory unless it exists, and opens it.
fn open(path: &Path) -> Result<OwnedFd> {
    match mkdirat(CWD, path, Mode::RWXU) {
        Err(error) if error != Errno::EXIST => return Err(Error::os(WRITE, path, error)),
        _ => {}
    }
    open_existing(path)
}

/// Opens the directory, which no other user can have made: its place can be open to everybody.
fn open_existing(path: &Path) -> Result<OwnedFd> {
    let failed = |error: Errno| Error::os(WRITE, path, error);
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

/// The contents of the files of a place, in an order that stays. What can't be read is left out.
pub(super) fn contents(place: &Path) -> Vec<Vec<u8>> {
    let path = directory(place);
    let Ok(opened) = open_existing(&path) else { return Vec::new() };
    let read = |name: &CStr| {
        let file = openat(&opened, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let mut content = Vec::new();
        fs::File::from(file.ok()?).read_to_end(&mut content).ok()?;
        Some(content)
    };
    let entries = Dir::read_from(&opened).into_iter().flatten().flatten();
    let mut contents: Vec<_> = entries
        .filter(|entry| !entry.file_name().to_bytes().starts_with(b"."))
        .filter_map(|entry| read(entry.file_name()))
        .collect();
    contents.sort();
    contents
}

/// Removes the files of all places, which an earlier process has left.
pub(super) fn remove_all() {
    let all = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    let is_ours = |entry: &fs::DirEntry| entry.file_name().as_bytes().starts_with(PREFIX.as_bytes());
    all.filter(is_ours).for_each(|entry| remove_directory(&entry.path()));
}

/// Removes the files of a place, if it has any.
pub(super) fn remove(place: &Path) {
    remove_directory(&directory(place));
}

fn remove_directory(path: &Path) {
    match try_remove(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::warn!(%error, at = %path.display(), "the credentials of a FUSE daemon stay");
        }
        _ => {}
    }
}

/// Empties what is opened, and not what the path leads to meanwhile.
fn try_remove(path: &Path) -> Result<()> {
    let failed = |error: Errno| Error::os("remove the credentials of a daemon", path, error);
    let opened = open_existing(path)?;
    for entry in Dir::read_from(&opened).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if ![&b"."[..], b".."].contains(&entry.file_name().to_bytes()) {
            unlinkat(&opened, entry.file_name(), AtFlags::empty()).map_err(failed)?;
        }
    }
    unlinkat(CWD, path, AtFlags::REMOVEDIR).map_err(failed)
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
        // Nor is it emptied.
        fs::write(path.join("other"), "").unwrap();
        remove(place);
        let is_kept = path.join("other").exists();
        let _ = fs::remove_file(path.join("other"));
        fs::remove_dir(&path).unwrap();
        assert!(is_kept);
        assert_eq!(written.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
}
