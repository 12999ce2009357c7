//! Checks the text of paths, and refuses those that can never work with a reason.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

/// The longest path that the kernel takes, without the final NUL (`PATH_MAX`).
const MAX_PATH_BYTES: usize = 4095;
/// The longest name of one component (`NAME_MAX`).
const MAX_NAME_BYTES: usize = 255;

/// The absolute path without "." and trailing slashes. Refuses a path that can never work.
pub(crate) fn absolute(operation: &'static str, path: &Path) -> Result<PathBuf> {
    let refuse = |why: &str| Err(Error::new(ErrorKind::InvalidInput, operation, why).at(path));
    if path.as_os_str().is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, operation, "the path is empty"));
    }
    if !path.is_absolute() {
        return refuse("the path is not absolute");
    }
    if is_clean(path.as_os_str().as_bytes()) {
        return Ok(path.to_owned());
    }
    let clean: PathBuf = path.components().collect();
    plain(operation, &clean)?;
    Ok(clean)
}

/// Whether an absolute path is already in its clean form and passes [`plain`]. Nearly every path is.
pub(crate) fn is_clean(path: &[u8]) -> bool {
    is_plainly_clean(path) || is_clean_by_name(path)
}

/// Checks without a look at each name. In a path this short no name is too long; names that begin with a dot
/// are left to the slow check; ASCII is valid UTF-8. The loop has no early exit, so that the compiler can
/// vectorize it.
fn is_plainly_clean(path: &[u8]) -> bool {
    let [b'/', .., last] = path else { return false };
    let pairs = path.iter().zip(&path[1..]);
    let is_odd =
        |one: u8, next: u8| next == 0 || !next.is_ascii() || one == b'/' && (next == b'/' || next == b'.');
    let has_odd = pairs.fold(false, |found, (one, next)| found | is_odd(*one, *next));
    path.len() <= MAX_NAME_BYTES && *last != b'/' && !has_odd
}

fn is_clean_by_name(path: &[u8]) -> bool {
    let is_name = |name: &[u8]| {
        !matches!(name, b"" | b"." | b"..") && name.len() <= MAX_NAME_BYTES && !name.contains(&0)
    };
    path.len() <= MAX_PATH_BYTES
        && std::str::from_utf8(path).is_ok()
        && path.strip_prefix(b"/").is_some_and(|rest| rest.split(|byte| *byte == b'/').all(is_name))
}

/// Refuses a path that is not UTF-8. Orchestrators send UTF-8 (a protobuf string), and no log, table or
/// message could show such a mount by its name.
pub(crate) fn text(operation: &'static str, path: &Path) -> Result<()> {
    match path.to_str() {
        Some(_) => Ok(()),
        None => {
            Err(Error::new(ErrorKind::InvalidInput, operation, format!("the path {path:?} is not UTF-8"))
                .hint("use a name that is UTF-8"))
        }
    }
}

/// Refuses "..", NUL characters, text that is not UTF-8, and what is too long for the kernel.
pub(crate) fn plain(operation: &'static str, path: &Path) -> Result<()> {
    let refuse = |why: &str| Err(Error::new(ErrorKind::InvalidInput, operation, why).at(path));
    text(operation, path)?;
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(Error::new(ErrorKind::InvalidInput, operation, "the path contains a NUL character"));
    }
    if path.as_os_str().len() > MAX_PATH_BYTES {
        return Err(Error::new(ErrorKind::InvalidInput, operation, "the path is longer than 4095 bytes"));
    }
    for component in path.components() {
        match component {
            Component::ParentDir => return refuse("the path contains \"..\""),
            Component::Normal(name) if name.len() > MAX_NAME_BYTES => {
                return refuse("a name in the path is longer than 255 bytes");
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn a_path_that_counts_as_clean_is_unchanged_by_cleaning() {
        let long = format!("/a/{}", "x".repeat(MAX_NAME_BYTES + 1));
        let longest = "/a".repeat(MAX_PATH_BYTES / 2 + 1);
        let texts = [
            "/", "/a", "/a/b", "/a/", "//a", "/a//b", "/a/./b", "/.", "/a/..", "/..a/.b.", "/a\0", &long,
            &longest, "/\u{fc}",
        ];
        for path in texts.map(str::as_bytes).into_iter().chain([&b"/a/\xff"[..], b"/\xc3", b"//\xc3"]) {
            let path = Path::new(OsStr::from_bytes(path));
            let slow: PathBuf = path.components().collect();
            let is_same = slow.as_os_str() == path.as_os_str();
            let passes = is_same && plain("test", &slow).is_ok() && path != Path::new("/");
            assert_eq!(is_clean(path.as_os_str().as_bytes()), passes, "{path:?}");
        }
    }
}
