//! `daemon-pod serve SOCKET` runs in a pod of its own, and starts there what `daemon-pod start SOCKET COMMAND…` sends:
//! a command, its standard streams, and the open `/dev/fuse` that an argument of it names as `/dev/fd/N`.
//!
//! A driver uses the second form as the launcher of its programs. The programs then stay when the driver's pod ends,
//! and need neither the right to mount nor the driver's image. `start` ends with the program. The program does not end
//! with `start`: the next driver uses its mount.

mod message;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::thread;

use clap::Parser;
use message::Start;

/// Starts FUSE programs in another pod than their driver's
#[derive(Parser)]
enum Args {
    /// Start what the driver sends. Whoever can connect to the socket can run any command: keep its directory private
    Serve {
        /// The socket, in a directory that both pods mount
        socket: PathBuf,
    },
    /// Have a program started by `serve`, and wait for its end
    Start {
        /// The socket of `serve`
        socket: PathBuf,
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let done = match Args::parse() {
        Args::Serve { socket } => serve(&socket).map(|()| ExitCode::SUCCESS),
        Args::Start { socket, command } => start(&socket, &command),
    };
    done.unwrap_or_else(|error| {
        eprintln!("daemon-pod: {error}");
        ExitCode::FAILURE
    })
}

fn serve(socket: &Path) -> Result<()> {
    let at = |error| format!("{}: {error}", socket.display());
    match UnixStream::connect(socket) {
        Ok(_) => return Err(format!("{} is served by another process", socket.display()).into()),
        // Left by an earlier process.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            fs::remove_file(socket).map_err(at)?;
        }
        Err(_) => {}
    }
    let listener = UnixListener::bind(socket).map_err(at)?;
    fs::set_permissions(socket, fs::Permissions::from_mode(0o600)).map_err(at)?;
    for connection in listener.incoming() {
        let connection = connection?;
        // One at a time: a program must not inherit the device of another one.
        match Start::receive(&connection).and_then(|start| spawn(start, &connection)) {
            Ok(()) => {}
            Err(error) => answer(&connection, &format!("error {error}")),
        }
    }
    Ok(())
}

/// Starts the program, and reports its end to whoever still waits for it.
fn spawn(start: Start, connection: &UnixStream) -> Result<()> {
    let (program, arguments) = start.command.split_first().ok_or("an empty command")?;
    let [input, output, errors] = start.streams.map(Stdio::from);
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir("/")
        .stdin(input)
        .stdout(output)
        .stderr(errors)
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let waiting = connection.try_clone()?;
    thread::spawn(move || {
        let ended = child.wait().map_or_else(|error| format!("error {error}"), text);
        answer(&waiting, &ended);
    });
    Ok(())
}

fn text(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, signal) => format!("error it was ended by signal {}", signal.unwrap_or_default()),
    }
}

fn answer(mut connection: &UnixStream, text: &str) {
    // The driver's pod can have ended.
    let _ = connection.write_all(text.as_bytes());
}

fn start(socket: &Path, command: &[String]) -> Result<ExitCode> {
    let mut connection = UnixStream::connect(socket).map_err(|error| {
        format!("{}: {error}: does the pod with `daemon-pod serve` run on this node?", socket.display())
    })?;
    Start::send(&connection, command)?;
    let mut ended = String::new();
    connection.read_to_string(&mut ended)?;
    match ended.split_once(' ') {
        Some(("exit", code)) => Ok(code.parse::<u8>()?.into()),
        Some((_, error)) => Err(error.into()),
        None => Err("the pod of the programs has ended".into()),
    }
}
