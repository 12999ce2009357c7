//! multipathd, over its own socket, without the program `multipathd`.
//!
//! A message is the length of the text with its final NUL as a native 64-bit number, and the text. The answer
//! has the same form.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
#[cfg(test)]
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::error::{Error, ErrorKind, Result};

const ASK: &str = "ask multipathd through";
/// Since multipath-tools 0.11.
const SOCKET: &str = "/run/multipathd.socket";
/// All versions. Such a name belongs to a network namespace: a container needs that of the node.
const ABSTRACT: &str = "/org/kernel/linux/storage/multipathd";
/// multipathd itself gives up after 4 seconds.
const LIMIT: Duration = Duration::from_secs(10);
const MAX_ANSWER: u64 = 1 << 20;

/// Where multipathd listens.
#[derive(Debug, Clone)]
pub(super) struct Daemon {
    socket: PathBuf,
    abstract_name: &'static str,
}

impl Daemon {
    pub(super) fn system() -> Self {
        Self { socket: SOCKET.into(), abstract_name: ABSTRACT }
    }

    #[cfg(test)]
    pub(super) fn at(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), abstract_name: "csi-mount/nobody listens" }
    }

    /// Whether it runs and answers. A connection alone does not show that: systemd can listen for it.
    pub(super) fn is_running(&self) -> bool {
        match self.command("show daemon") {
            Ok(answer) => answer.starts_with("pid"),
            Err(error) => {
                tracing::debug!("multipathd does not answer: {error}");
                false
            }
        }
    }

    /// Sends a command, and returns the answer: `ok`, `fail`, `blacklisted` or a text.
    ///
    /// # Errors
    ///
    /// [`Unresponsive`](ErrorKind::Unresponsive) if nobody listens, or nobody answers.
    pub(super) fn command(&self, command: &str) -> Result<String> {
        let answer = self.exchange(command).map_err(|error| {
            Error::os(ASK, &self.socket, error)
                .with_kind(ErrorKind::Unresponsive)
                .add_reason(format_args!("the command is {command:?}"))
        })?;
        tracing::debug!(command, answer, "multipathd");
        Ok(answer)
    }

    fn exchange(&self, command: &str) -> io::Result<String> {
        let mut stream = self.connect()?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let mut message = (command.len() as u64 + 1).to_ne_bytes().to_vec();
        message.extend_from_slice(command.as_bytes());
        message.push(0);
        stream.write_all(&message)?;
        let mut length = [0; 8];
        stream.read_exact(&mut length)?;
        let length = u64::from_ne_bytes(length);
        if length > MAX_ANSWER {
            return Err(io::Error::other(format!("an answer of {length} bytes")));
        }
        let mut answer = Vec::new();
        stream.take(length).read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).trim_end_matches(['\0', '\n']).to_owned())
    }

    /// A daemon that is stopped accepts nothing: then this fails at once, where a blocking call would wait.
    fn connect(&self) -> io::Result<UnixStream> {
        let try_one = |address: &SocketAddrUnix| -> io::Result<UnixStream> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            connect(&socket, address)?;
            Ok(socket.into())
        };
        let by_path = SocketAddrUnix::new(&self.socket).map_err(io::Error::from).and_then(|to| try_one(&to));
        by_path.or_else(|_| try_one(&SocketAddrUnix::new_abstract_name(self.abstract_name.as_bytes())?))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A daemon that answers each command with what the function returns for it.
    pub(in crate::remote::multipath) struct FakeDaemon {
        pub(in crate::remote::multipath) daemon: Daemon,
        pub(in crate::remote::multipath) commands: Arc<Mutex<Vec<String>>>,
    }

    impl FakeDaemon {
        /// The thread ends with the test's process.
        pub(in crate::remote::multipath) fn start(
            directory: &Path,
            mut answer: impl FnMut(&str) -> String + Send + 'static,
        ) -> Self {
            let socket = directory.join("multipathd.socket");
            let listener = UnixListener::bind(&socket).unwrap();
            let commands = Arc::new(Mutex::new(Vec::new()));
            let heard = commands.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.unwrap();
                    let mut length = [0; 8];
                    if stream.read_exact(&mut length).is_err() {
                        continue;
                    }
                    let mut text = vec![0; usize::try_from(u64::from_ne_bytes(length)).unwrap()];
                    stream.read_exact(&mut text).unwrap();
                    assert_eq!(text.pop(), Some(0));
                    let text = String::from_utf8(text).unwrap();
                    let reply = format!("{}\n\0", answer(&text));
                    heard.lock().unwrap().push(text);
                    stream.write_all(&(reply.len() as u64).to_ne_bytes()).unwrap();
                    stream.write_all(reply.as_bytes()).unwrap();
                }
            });
            Self { daemon: Daemon::at(&socket), commands }
        }
    }

    #[test]
    fn a_command_has_an_answer_and_nobody_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let absent = Daemon::at(&directory.path().join("absent"));
        assert!(!absent.is_running());
        assert_eq!(absent.command("add path sda").unwrap_err().kind(), ErrorKind::Unresponsive);
        let fake = FakeDaemon::start(directory.path(), |command| match command {
            "show daemon" => "pid 7 idle".to_owned(),
            other => format!("heard {other}"),
        });
        assert!(fake.daemon.is_running());
        assert_eq!(fake.daemon.command("add path sda").unwrap(), "heard add path sda");
        assert_eq!(*fake.commands.lock().unwrap(), ["show daemon", "add path sda"]);
    }
}
