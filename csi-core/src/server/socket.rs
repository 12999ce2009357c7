//! The socket's file: created with its mode, replaces only a dead socket, and is removed at the end.

use std::fs::{File, Metadata, Permissions};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::SocketAddrUnix;
use tokio::net::{UnixListener, UnixSocket};

use super::{Failure, ServeError};

/// How many connections can wait to be accepted: as many as the kernel allows. The kernel caps the value at
/// `net.core.somaxconn` (4096). A client that finds the queue full is refused at once (EAGAIN).
const BACKLOG: u32 = i32::MAX as u32;

/// The file of this process's socket. Dropping it removes the file, unless another file has taken its
/// place.
pub(super) struct Socket {
    path: PathBuf,
    identity: (u64, u64),
}

impl Socket {
    /// Listens at `path`; the socket has these permissions from the start.
    // spec: endpoint.nothing-beside
    pub(super) fn bind(path: &Path, mode: u32) -> Result<(Self, UnixListener), ServeError> {
        let refuse = |reason: String| ServeError::from(Failure::Socket { path: path.to_owned(), reason });
        check_length(path).map_err(refuse)?;
        remove_stale_socket(path).map_err(refuse)?;
        listen(path, mode)
            .and_then(|listener| {
                let identity = identity(&path.symlink_metadata()?);
                Ok((Self { path: path.to_owned(), identity }, listener))
            })
            .map_err(|error| refuse(format!("can't listen: {error}")))
    }
}

/// What is at a socket's path instead of the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// Nothing.
    Removed,
    /// Something that another process created.
    Replaced,
}

impl Socket {
    /// What is at the path instead of the socket, if the socket is gone. A path that can't be examined
    /// counts as unchanged.
    pub(super) fn lost(&self) -> Option<Lost> {
        match self.path.symlink_metadata() {
            Ok(found) if identity(&found) == self.identity => None,
            Ok(_) => Some(Lost::Replaced),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Some(Lost::Removed)
            }
            Err(_) => None,
        }
    }

    /// Completes when the socket is no longer at its path, which is checked once per period.
    pub(super) async fn wait_until_lost(&self, period: Duration) -> Lost {
        loop {
            tokio::time::sleep(period).await;
            if let Some(lost) = self.lost() {
                return lost;
            }
        }
    }

    /// Creates the socket again after it was removed. If that fails, for example because its directory is
    /// gone too, it is tried again after each period.
    ///
    /// # Errors
    /// [`ServeError`] when another process has put something there, or when only a new container can.
    pub(super) async fn recreate(
        path: &Path,
        mode: u32,
        period: Duration,
    ) -> Result<(Self, UnixListener), ServeError> {
        tracing::warn!(socket = %path.display(), "the socket was removed; it is created again");
        let mut failed = false;
        loop {
            match Self::bind(path, mode) {
                Err(_) if is_in_deleted_directory(path) => {
                    return Err(Failure::DirectoryDeleted(path.to_owned()).into());
                }
                Err(error) if path.symlink_metadata().is_err() => {
                    if !std::mem::replace(&mut failed, true) {
                        tracing::error!(
                            "no caller can reach the plugin; the socket is created again every {period:?} until that succeeds: {error}"
                        );
                    }
                }
                bound_or_taken => return bound_or_taken,
            }
            tokio::time::sleep(period).await;
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.lost().is_none()
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), "can't remove the socket: {error}");
        }
    }
}

/// Whether the directory was deleted while it is mounted there, as in a container whose directory is deleted on the
/// node. What is made in its place is not seen here.
fn is_in_deleted_directory(path: &Path) -> bool {
    let directory = path.parent().and_then(|parent| parent.metadata().ok());
    directory.is_some_and(|directory| directory.nlink() == 0)
}

/// A longer path does not fit into a `sockaddr_un` (unix(7)).
pub(super) fn check_length(path: &Path) -> Result<(), String> {
    const MOST: usize = 107;
    let length = path.as_os_str().len();
    if length <= MOST {
        return Ok(());
    }
    Err(format!(
        "its path has {length} bytes, and a unix socket's has at most {MOST}: mount its directory at a shorter path, or \
         give the driver a shorter name"
    ))
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn listen(path: &Path, mode: u32) -> std::io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    // On Linux, bind gives the file the socket's mode, less the umask: the file never has wider
    // permissions.
    File::from(socket.as_fd().try_clone_to_owned()?).set_permissions(Permissions::from_mode(mode))?;
    socket.bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    socket.listen(BACKLOG)
}

/// Removes the socket that a dead process left at `path`, and nothing else.
fn remove_stale_socket(path: &Path) -> Result<(), String> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return match path.parent() {
                Some(parent) if !parent.is_dir() => {
                    Err(format!("its directory {} does not exist; create or mount it", parent.display()))
                }
                _ => Ok(()),
            };
        }
        Err(error) => return Err(format!("can't look at it: {error}")),
        Ok(found) if !found.file_type().is_socket() => {
            return Err("exists and is not a socket; move it away, or choose another path".to_owned());
        }
        Ok(_) => {}
    }
    match connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path)
            .map_err(|error| format!("a dead process left it, and it can't be removed: {error}")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        // It would block if the process hangs and accepts nobody.
        Err(error) if error.kind() != ErrorKind::WouldBlock => {
            Err(format!("exists, and it is unknown whether a process listens on it: {error}"))
        }
        _ => Err("a live process listens on it; stop that one, or name another path".to_owned()),
    }
}

/// Connects without waiting for the process that listens.
fn connect(path: &Path) -> std::io::Result<()> {
    let socket = UnixSocket::new_stream()?;
    Ok(rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use rustix::net::{AddressFamily, SocketType};

    use super::*;

    #[test]
    fn a_process_that_accepts_nobody_is_alive() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("csi.sock");
        let hung = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&hung, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&hung, 0).unwrap();
        let (sender, receiver) = mpsc::channel();
        let found = path.clone();
        std::thread::spawn(move || {
            while connect(&found).is_ok() {}
            sender.send(remove_stale_socket(&found))
        });
        let refused =
            receiver.recv_timeout(Duration::from_secs(60)).expect("it does not wait for the process");
        assert!(refused.unwrap_err().contains("a live process listens"));
        // Closing it is not enough: a child that another test is forking has a copy of it for a moment.
        rustix::net::shutdown(&hung, rustix::net::Shutdown::Both).unwrap();
        remove_stale_socket(&path).unwrap();
        assert!(!path.exists());
    }
}
