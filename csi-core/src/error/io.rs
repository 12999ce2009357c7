//! I/O errors. The standard library does not include the failed operation and path in them.

use std::io;
use std::panic::Location;
use std::path::Path;

use super::{Error, Reason, Result};

/// Adds the operation and the path to an I/O error: from [`std::io`], from rustix, or any error that
/// converts into one.
///
/// ```
/// use csi_core::{IoContext as _, Result};
///
/// async fn make(directory: &std::path::Path) -> Result<()> {
///     tokio::fs::create_dir_all(directory).await.at("create", directory)
/// }
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let error = make("/dev/null/pvc-1".as_ref()).await.unwrap_err();
/// assert_eq!(error.to_string(), "create /dev/null/pvc-1: Not a directory (os error 20)");
/// # });
/// ```
pub trait IoContext<T> {
    /// Adds to an error what was done (a verb: `create`, `read`, `sync`) and to which path.
    ///
    /// # Errors
    /// The same as for a bare I/O error: [`Error::NoSpace`] for a full disk, an exceeded quota or
    /// exhausted memory, [`Error::OutOfRange`] for a file larger than its filesystem allows,
    /// [`Error::NotPossible`] for a read-only filesystem, [`Error::Unavailable`] for a server that does not
    /// answer, else [`Error::Internal`].
    fn at(self, step: &str, path: impl AsRef<Path>) -> Result<T>;
}

impl<T, E: Into<io::Error>> IoContext<T> for Result<T, E> {
    fn at(self, step: &str, path: impl AsRef<Path>) -> Result<T> {
        self.map_err(|error| {
            let error = error.into();
            named(format!("{step} {}: {error}", path.as_ref().display()), error)
        })
    }
}

/// A full disk, an exceeded quota and exhausted memory are [`Error::NoSpace`], a file larger than its filesystem
/// allows is [`Error::OutOfRange`], a read-only filesystem is [`Error::NotPossible`], a server that does not
/// answer is [`Error::Unavailable`], and everything else is internal; docs/error-mapping.md has the table. An error that has only the system's own text also
/// names the source location of the `?`; [`IoContext::at`] gives more context.
impl From<io::Error> for Error {
    #[track_caller]
    fn from(error: io::Error) -> Self {
        let message = match error.raw_os_error() {
            Some(_) => format!("{error}, at {}", Location::caller()),
            None => error.to_string(),
        };
        named(message, error)
    }
}

fn named(message: String, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory => {
            Error::NoSpace(Reason::because(message, error))
        }
        io::ErrorKind::FileTooLarge => Error::OutOfRange(Reason::because(message, error)),
        io::ErrorKind::ReadOnlyFilesystem => Error::NotPossible(Reason::because(message, error)),
        // A server that is gone, for a file on it or a connection to it.
        io::ErrorKind::TimedOut
        | io::ErrorKind::StaleNetworkFileHandle
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkDown
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::NotConnected
        | io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::ConnectionReset => Error::Unavailable(Reason::because(message, error)),
        _ => Error::Internal(Reason::because(message, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bare() -> Result<()> {
        Err(io::Error::from_raw_os_error(24))?;
        Ok(())
    }

    #[test]
    fn a_bare_error_says_where_in_the_source_it_was() {
        let error = bare().unwrap_err().to_string();
        assert!(error.starts_with("Too many open files (os error 24), at "), "{error}");
        assert!(error.contains("error/io.rs:"), "{error}");
    }

    #[test]
    fn step_and_path_are_named_and_the_condition_stays() {
        for (code, is_space) in [(28, true), (122, true), (12, true), (5, false), (30, false)] {
            let system = io::Error::from_raw_os_error(code);
            let due = format!("write /data/record: {system}");
            let error = Err::<(), _>(system).at("write", "/data/record").unwrap_err();
            assert_eq!(error.to_string(), due);
            assert_eq!(error.with_causes(&error.to_string()), due, "said once");
            assert!(std::error::Error::source(&error).is_some_and(<dyn std::error::Error>::is::<io::Error>));
            assert_eq!(matches!(error, Error::NoSpace(_)), is_space, "{due}");
        }
        for code in [110, 111, 113, 116] {
            let error = Error::from(io::Error::from_raw_os_error(code));
            assert!(matches!(error, Error::Unavailable(_)), "{error}");
        }
        let other = Error::from(io::Error::other("the pool is gone"));
        assert_eq!(other.to_string(), "the pool is gone");
    }
}
