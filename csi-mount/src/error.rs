//! What went wrong, where, and what to do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure it was: the part of an [`Error`] that a program acts on.
///
/// New kinds may be added; match with a wildcard arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A path, option or size that can never work: empty, relative, with a NUL, not UTF-8, target inside source.
    InvalidInput,
    /// A directory of the system or the driver's own, or a path that holds one: no place for a volume.
    Protected,
    /// What is mounted at a place is not known to be the volume's, so nothing of it is touched.
    NotOwned,
    /// A path or device that is not there.
    NotFound,
    /// Something else is mounted at the target: another device or source, or other attributes.
    AlreadyMounted,
    /// The mount or device is in use (`EBUSY`), or its exclusive open is refused.
    Busy,
    /// A filesystem, daemon, server or tool did not answer in the time given to it.
    Unresponsive,
    /// The device holds data, so it is not formatted.
    NotBlank,
    /// The device can't be read, so nothing is known of what it holds and nothing is done to it.
    Unreadable,
    /// The device is not the one that was asked for or looked at before.
    WrongDevice,
    /// The device or filesystem is read-only and was asked to be written.
    ReadOnly,
    /// The device is too small, or a filesystem can't have the size asked for.
    OutOfRange,
    /// The device or filesystem has no space left.
    NoSpace,
    /// The filesystem is damaged and needs `fsck`, or is not there where a volume is said to have one.
    Damaged,
    /// This kernel, filesystem or build can't do what was asked.
    Unsupported,
    /// The key opens no encrypted device, or there is none.
    WrongKey,
    /// A program that is needed is not on `PATH`; the message names its Debian package.
    MissingTool,
    /// The process lacks a capability or permission; the message names it.
    PermissionDenied,
    /// A program needs more memory than it was given. It may be tried again with more.
    OutOfMemory,
    /// A program ran and failed; the message ends with what it printed.
    ToolFailed,
    /// Any other failed system call; [`Error::raw_os_error`] has the number.
    Io,
}

/// A failure, with the operation, the path, the reason and the mend.
///
/// `Display` shows this layer only; [`source`](std::error::Error::source) gives the system call's error.
/// Neither ever holds the value of a mount option.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    path: Option<PathBuf>,
    reason: String,
    mend: Option<String>,
    source: Option<io::Error>,
}

impl Error {
    /// An error of this kind: `operation` is a verb phrase ("mount ext4", "open device").
    pub fn new(kind: ErrorKind, operation: &'static str, reason: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, operation, path: None, reason: reason.into(), mend: None, source: None }))
    }

    /// The error of a failed system call, its kind derived from the error number.
    pub fn os(operation: &'static str, path: impl Into<PathBuf>, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        let mut new = Self::new(kind_of(&error), operation, plain(&error)).at(path);
        new.0.source = Some(error);
        new
    }

    /// The same error, about this path.
    #[must_use]
    pub fn at(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.path = Some(path.into());
        self
    }

    /// The same error, as another kind: for a number that means something special to one call.
    #[must_use]
    pub fn as_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// The same error, with what the operator can do about it.
    #[must_use]
    pub fn mend(mut self, mend: impl Into<String>) -> Self {
        self.0.mend = Some(mend.into());
        self
    }

    /// The same error with a fuller reason, for what a filesystem's log or a diagnosis adds.
    #[must_use]
    pub fn because(mut self, reason: impl fmt::Display) -> Self {
        self.0.reason = format!("{}: {reason}", self.0.reason);
        self
    }

    /// What kind of failure it was.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The path or device that it is about.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The error number of the system call that failed, if one did.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.0.source.as_ref().and_then(io::Error::raw_os_error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { operation, path, reason, mend, .. } = &*self.0;
        f.write_str(operation)?;
        if let Some(path) = path {
            write!(f, " {}", path.display())?;
        }
        write!(f, ": {reason}")?;
        if let Some(mend) = mend {
            write!(f, "; {mend}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.kind())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| source as _)
    }
}

/// The system's words for an error, without the number that `io::Error` adds.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

fn kind_of(error: &io::Error) -> ErrorKind {
    use nix::libc;
    match error.raw_os_error() {
        // Of a helper process that waited for a filesystem.
        None if error.kind() == io::ErrorKind::TimedOut => ErrorKind::Unresponsive,
        None if error.kind() == io::ErrorKind::ResourceBusy => ErrorKind::Busy,
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => ErrorKind::NotFound,
        Some(libc::EBUSY) => ErrorKind::Busy,
        Some(libc::EROFS) => ErrorKind::ReadOnly,
        Some(libc::ENOSPC | libc::EDQUOT) => ErrorKind::NoSpace,
        Some(libc::EPERM | libc::EACCES) => ErrorKind::PermissionDenied,
        Some(libc::EUCLEAN) => ErrorKind::Damaged,
        Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT) => ErrorKind::Unsupported,
        // Of a server that is gone, or that cannot be reached.
        Some(
            libc::ETIMEDOUT
            | libc::ENOTCONN
            | libc::ECONNREFUSED
            | libc::ECONNRESET
            | libc::EHOSTDOWN
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::ESTALE,
        ) => ErrorKind::Unresponsive,
        Some(libc::EINVAL | libc::ENAMETOOLONG | libc::ENOTDIR | libc::ELOOP) => ErrorKind::InvalidInput,
        _ => ErrorKind::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn says_what_where_why_and_the_mend() {
        let error = Error::os("mount ext4 at", "/target", io::Error::from_raw_os_error(nix::libc::EROFS))
            .mend("ask for a read-only mount");
        assert_eq!(
            error.to_string(),
            "mount ext4 at /target: Read-only file system; ask for a read-only mount"
        );
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
        assert_eq!(error.raw_os_error(), Some(nix::libc::EROFS));
        assert!(error.source().is_some());
    }
}
