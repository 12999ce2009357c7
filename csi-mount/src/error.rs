//! The error type: what failed, where, why and how to fix it.

use std::fmt::{self, Write as _};
use std::io;
use std::path::{Path, PathBuf};

/// The result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// None instead of the error that it does not exist.
pub(crate) fn found<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// The kind of a failure: the part of an [`Error`] that a program acts on.
///
/// New kinds can be added; match with a wildcard arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A path or size that can never work: empty, relative, with a NUL, not UTF-8, target inside
    /// source.
    InvalidInput,
    /// A mount option that can never work, or one that the filesystem does not accept, or not with this value.
    InvalidOption,
    /// The path is a directory of the system or of the driver, or contains one. Volumes are not placed there.
    Protected,
    /// The mount at the place is not known to belong to the volume, so it is left untouched.
    NotOwned,
    /// The path or device does not exist.
    NotFound,
    /// Something else is mounted at the target: another device or source, or the same with other attributes.
    AlreadyMounted,
    /// An object of this name exists, and is not as requested.
    AlreadyExists,
    /// Earlier work on the same object still goes on. A repeated call finds its result.
    Pending,
    /// The mount or device is in use (`EBUSY`), cannot be opened exclusively, or keeps changing during the
    /// call.
    Busy,
    /// A filesystem, daemon, server or program did not answer within its time limit.
    Unresponsive,
    /// The device holds data, so it is not formatted.
    NotBlank,
    /// The device cannot be read. Its content is unknown, so nothing is done to it.
    Unreadable,
    /// The device is not the expected one, or not the one that was examined before.
    WrongDevice,
    /// The device or filesystem is read-only, and the operation writes.
    ReadOnly,
    /// The device is reserved for another node or program, or was taken away from this node
    /// (the module `reservation`).
    Reserved,
    /// The device is too small, the filesystem cannot have the requested size, or a file is larger than the
    /// limit.
    OutOfRange,
    /// The device or filesystem has no space left.
    NoSpace,
    /// The filesystem is damaged and needs `fsck`, or is missing from a volume that must have one.
    Damaged,
    /// This kernel, filesystem or build does not support the operation.
    Unsupported,
    /// The key does not open the encrypted device, or a required key was not given; or the server refuses the
    /// user and the password of an SMB mount.
    WrongKey,
    /// A required program is not on `PATH`. The message names its Debian package.
    MissingTool,
    /// The process lacks a capability or permission. The message names it.
    PermissionDenied,
    /// A program needs more memory than its limit, or the kernel has none left. A retry, for a program with a
    /// higher limit, can succeed.
    OutOfMemory,
    /// A program ran and failed. The message ends with what it printed.
    ToolFailed,
    /// Any other failed system call. [`Error::raw_os_error`] has the number.
    Io,
}

/// A failure: the operation, the path, the reason and how to fix it.
///
/// `Display` shows this layer only; [`source`](std::error::Error::source) gives the error of the system call.
/// Neither contains the value of a mount option.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    path: Option<PathBuf>,
    reason: String,
    hint: Option<String>,
    source: Option<io::Error>,
}

impl Error {
    /// An error of this kind; `operation` is a verb phrase ("mount ext4", "open device").
    ///
    /// A simulated node returns such errors, and a driver for its own devices.
    pub fn new(kind: ErrorKind, operation: &'static str, reason: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, operation, path: None, reason: reason.into(), hint: None, source: None }))
    }

    /// The error of a failed system call. The kind follows from the error number.
    pub fn os(operation: &'static str, path: impl Into<PathBuf>, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        let mut new = Self::new(kind_of(&error), operation, plain(&error)).at(path);
        new.0.source = Some(error);
        new
    }

    /// Sets the path or device of the error.
    #[must_use]
    pub fn at(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.path = Some(path.into());
        self
    }

    /// Changes the kind, for an error number that has a special meaning in one call.
    #[must_use]
    pub(crate) fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Adds what the operator can do about the failure.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Adds to the reason, for example the log of a filesystem or a diagnosis.
    #[must_use]
    pub(crate) fn add_reason(mut self, reason: impl fmt::Display) -> Self {
        self.0.reason = format!("{}: {reason}", self.0.reason);
        self
    }

    /// The kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The path or device of the failed operation.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The error number of the failed system call, if the failure has one.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.0.source.as_ref().and_then(io::Error::raw_os_error)
    }
}

/// One line: paths, and what the kernel and programs say, can contain control characters.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { operation, path, reason, hint, .. } = &*self.0;
        let mut line = Line(f);
        line.write_str(operation)?;
        if let Some(path) = path {
            write!(line, " {}", path.display())?;
        }
        write!(line, ": {reason}")?;
        if let Some(hint) = hint {
            write!(line, "; {hint}")?;
        }
        Ok(())
    }
}

/// Escapes control characters, which could begin another line of a log or change a terminal.
struct Line<'a, 'f>(&'a mut fmt::Formatter<'f>);

impl fmt::Write for Line<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|character| {
            if character.is_control() {
                write!(self.0, "{}", character.escape_default())
            } else {
                self.0.write_char(character)
            }
        })
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

/// The system's text for an error, without the number that `io::Error` appends.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// The kind of each error number. docs/error-mapping.md has the table; a test compares the two.
fn kind_of(error: &io::Error) -> ErrorKind {
    use nix::libc;
    match error.raw_os_error() {
        // These come from a child process that waited for a filesystem.
        None if error.kind() == io::ErrorKind::TimedOut => ErrorKind::Unresponsive,
        None if error.kind() == io::ErrorKind::ResourceBusy => ErrorKind::Busy,
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO | libc::ENOMEDIUM) => ErrorKind::NotFound,
        Some(libc::EBUSY | libc::ETXTBSY) => ErrorKind::Busy,
        Some(libc::EROFS) => ErrorKind::ReadOnly,
        Some(libc::EFBIG | libc::EOVERFLOW) => ErrorKind::OutOfRange,
        Some(libc::ENOSPC | libc::EDQUOT) => ErrorKind::NoSpace,
        Some(libc::EPERM | libc::EACCES) => ErrorKind::PermissionDenied,
        // The kernel's names for them are EFSCORRUPTED and EFSBADCRC.
        Some(libc::EUCLEAN | libc::EBADMSG) => ErrorKind::Damaged,
        Some(libc::ENOMEM) => ErrorKind::OutOfMemory,
        Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT | libc::ENOPKG) => {
            ErrorKind::Unsupported
        }
        // These come from a server or a disk that is gone or cannot be reached.
        Some(
            libc::ETIMEDOUT
            | libc::ENOTCONN
            | libc::ECONNREFUSED
            | libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::ENETDOWN
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::EHOSTUNREACH
            | libc::ENOLINK
            | libc::ESTALE,
        ) => ErrorKind::Unresponsive,
        // A character set that the kernel does not have: only an option asks for one.
        Some(libc::ELIBACC) => ErrorKind::InvalidOption,
        Some(
            libc::EINVAL
            | libc::E2BIG
            | libc::ENAMETOOLONG
            | libc::ENOTDIR
            | libc::EISDIR
            | libc::ENOTBLK
            | libc::ELOOP,
        ) => ErrorKind::InvalidInput,
        _ => ErrorKind::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn an_error_is_one_line() {
        let error =
            Error::new(ErrorKind::ToolFailed, "mount at", "no\r\nERROR forged \u{9b}2J").at("/a\n\u{1b}b");
        assert_eq!(error.to_string(), r"mount at /a\n\u{1b}b: no\r\nERROR forged \u{9b}2J");
    }

    #[test]
    fn says_what_where_why_and_how_to_fix_it() {
        let error = Error::os("mount ext4 at", "/target", io::Error::from_raw_os_error(nix::libc::EROFS))
            .hint("ask for a read-only mount");
        assert_eq!(
            error.to_string(),
            "mount ext4 at /target: Read-only file system; ask for a read-only mount"
        );
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
        assert_eq!(error.raw_os_error(), Some(nix::libc::EROFS));
        assert!(error.source().is_some());
    }
}
