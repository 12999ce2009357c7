//! The files of a volume, as requested.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::path::paths;

const OPERATION: &str = "add to the content";
/// The default mode of a file.
const MODE: u32 = 0o644;

/// All files of a volume, by their paths in it. `Debug` shows paths and sizes, and no bytes.
///
/// ```
/// use csi_mount::{ErrorKind, flow::ephemeral::Content};
///
/// let content = Content::new().file("tls/ca.crt", "bytes")?.file_with_mode("tls/key", "hidden", 0o400)?;
/// assert!(!format!("{content:?}").contains("hidden"));
/// let climbing = Content::new().file("../etc/passwd", "");
/// assert_eq!(climbing.unwrap_err().kind(), ErrorKind::InvalidInput);
/// # Ok::<(), csi_mount::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Content(BTreeMap<PathBuf, File>);

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) bytes: Vec<u8>,
    pub(super) mode: u32,
}

impl Content {
    /// Content without files.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file of mode 0644.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a path that is empty, absolute or too long; contains `.`, `..`, a
    /// NUL, or a doubled or trailing slash; begins with two dots (reserved for the layout); or already
    /// exists in the content, as a file or as the directory of one.
    pub fn file(self, path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) -> Result<Self> {
        self.file_with_mode(path, bytes, MODE)
    }

    /// Adds a file of this mode (`0o400`).
    ///
    /// # Errors
    /// As for [`file`](Self::file), and for a mode with bits other than permissions.
    pub fn file_with_mode(
        mut self,
        path: impl AsRef<Path>,
        bytes: impl Into<Vec<u8>>,
        mode: u32,
    ) -> Result<Self> {
        let path = path.as_ref();
        let refuse = |why: &str| Err(Error::new(ErrorKind::InvalidInput, OPERATION, why).at(path));
        paths::plain(OPERATION, path)?;
        let plain: PathBuf = path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
        // This refuses absolute paths, and a second spelling of another path.
        if path.as_os_str().is_empty() || plain.as_os_str() != path.as_os_str() {
            return refuse("it is not a plain relative path");
        }
        if path.as_os_str().as_bytes().starts_with(b"..") {
            return refuse("names that begin with two dots are reserved");
        }
        if mode & !0o777 != 0 {
            return refuse("its mode contains more than permissions");
        }
        let is_taken = |other: &PathBuf| other.starts_with(path) || path.starts_with(other);
        if self.0.keys().any(is_taken) {
            return refuse("this file, or a file at one of its parent paths, already exists");
        }
        self.0.insert(plain, File { bytes: bytes.into(), mode });
        Ok(self)
    }

    /// The files' paths, sorted.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.keys().map(PathBuf::as_path)
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, &File)> {
        self.0.iter().map(|(path, file)| (path.as_path(), file))
    }

    pub(super) fn of(&self, path: &Path) -> Option<&File> {
        self.0.get(path)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Memory use in bytes: each file takes whole pages.
    pub(super) fn footprint(&self) -> u64 {
        const PAGE: u64 = 4096;
        self.0.values().map(|file| (file.bytes.len() as u64).div_ceil(PAGE) * PAGE).sum()
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.0).finish()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, {:04o}", self.bytes.len(), self.mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_in_the_volume() {
        let long = "x".repeat(256);
        for path in [
            "",
            "/",
            "/etc/passwd",
            "..",
            "../x",
            "a/../b",
            "a/../../b",
            ".",
            "./a",
            "a/.",
            "a//b",
            "a/",
            "..data",
            "..data/a",
            "...",
            "..x/y",
            "a\0b",
            &long,
        ] {
            let error = Content::new().file(path, "").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{path:?}");
        }
        let content = Content::new().file("a", "").unwrap().file("b/c..d/.e", "").unwrap();
        assert_eq!(content.paths().count(), 2);
    }

    #[test]
    fn one_path_is_one_file() {
        let content = Content::new().file("a/b", "").unwrap();
        for path in ["a", "a/b", "a/b/c"] {
            content.clone().file(path, "").unwrap_err();
        }
        content.clone().file("ab", "").unwrap();
        content.file_with_mode("key", "", 0o4755).unwrap_err();
    }

    #[test]
    fn no_bytes_are_shown() {
        let content = Content::new().file_with_mode("key", "hunter2", 0o400).unwrap();
        assert_eq!(format!("{content:?}"), r#"{"key": 7 bytes, 0400}"#);
        assert!(!format!("{:?}", content.file("key", "hunter2").unwrap_err()).contains("hunter2"));
    }
}
