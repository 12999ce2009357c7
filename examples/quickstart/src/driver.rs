//! The driver's process: what it runs, and how it is started and stopped.

use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use csi_cli::lifecycle::internal::Keep;
use csi_core::client::Client;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid, getppid};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::args::{Example, Role};
use crate::cleanup;

/// The deadline of one call.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a driver has to start listening.
const START: Duration = Duration::from_secs(20);
/// How long a driver has to stop: longer than the time it gives to its running operations.
const STOP: Duration = Duration::from_secs(40);
/// How many lines of a driver's log are shown when a step fails.
const LOG_LINES: usize = 8;

/// Runs the driver in its own process, from start to end.
pub(crate) fn main(role: &Role) -> ExitCode {
    // The driver ends with the quickstart, even if that is killed. The next line detects an earlier kill.
    let bound = set_pdeathsig(Signal::SIGTERM);
    if bound.is_err() || is_orphan(role) {
        eprintln!("quickstart: the driver does not run without the quickstart");
        return ExitCode::from(2);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("quickstart: the runtime does not start: {error}");
            return ExitCode::from(2);
        }
    };
    let storage = storage(&role.place, role.example);
    let plugin = match role.example {
        Example::Block => block::plugin(storage),
        Example::Dirs => dirs::plugin(storage),
    };
    let status = runtime.block_on(plugin.run());
    drop(runtime);
    if is_orphan(role)
        && role.keep == Keep::Nothing
        && let Err(left) = cleanup::sweep(&role.place)
    {
        eprintln!("quickstart: {left}");
    }
    status
}

fn is_orphan(role: &Role) -> bool {
    getppid().as_raw() != role.parent
}

/// The folder with all files of one driver.
pub(crate) fn folder(place: &Path, example: Example) -> PathBuf {
    place.join(example.name())
}

/// The directory where a driver keeps its volumes.
fn storage(place: &Path, example: Example) -> PathBuf {
    folder(place, example).join(cleanup::STORAGE)
}

/// A started driver.
pub(crate) struct Driver {
    child: Child,
    log: PathBuf,
    /// The process id; valid as a label after the process has ended too.
    pub(crate) id: u32,
    /// The socket's URL.
    pub(crate) endpoint: String,
    socket: PathBuf,
    phase: Phase,
}

/// The state of a driver's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The driver might not handle signals yet.
    Starting,
    Serving,
}

impl Driver {
    /// Starts the driver of this example in a process of its own. The driver does not listen yet.
    ///
    /// # Errors
    /// When its files can't be created or the process can't be started.
    pub(crate) fn start(example: Example, place: &Path, keep: Keep) -> std::io::Result<Self> {
        let folder = folder(place, example);
        std::fs::create_dir(&folder)?;
        std::fs::create_dir(storage(place, example))?;
        let log = folder.join("driver.log");
        let socket = folder.join("csi.sock");
        let endpoint = format!("unix://{}", socket.display());
        let role = Role { example, parent: getpid().as_raw(), place: place.to_owned(), keep };
        // /proc/self/exe is this program even if its file was replaced meanwhile. In a process group of its
        // own the driver gets no SIGINT from Ctrl-C on the terminal: only the quickstart does, and it stops
        // the driver in order.
        let child = Command::new("/proc/self/exe")
            .arg0("quickstart")
            .args(role.arguments())
            .env("CSI_ENDPOINT", &endpoint)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .process_group(0)
            .spawn()?;
        let id = child.id().unwrap_or_default();
        Ok(Self { child, log, id, endpoint, socket, phase: Phase::Starting })
    }

    /// Waits until the driver answers on its socket.
    ///
    /// # Errors
    /// When the driver ends before that, or takes too long.
    pub(crate) async fn connect(&mut self) -> Result<Client, String> {
        let endpoint = self.endpoint.parse().map_err(|error: csi_core::EndpointError| error.to_string())?;
        let client = Client::new(&endpoint).deadline(CALL_TIMEOUT);
        tokio::select! {
            ready = client.ready(START) => ready.map_err(|error| error.to_string())?,
            ended = self.child.wait() => {
                let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
                return Err(format!("it ended during its start: {how}"));
            }
        }
        self.phase = Phase::Serving;
        Ok(client)
    }

    /// The exit status of the driver, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Stops the driver with SIGTERM, and with SIGKILL if it does not end in time. Its calls must have ended.
    ///
    /// # Errors
    /// When the driver did not end as a driver should.
    pub(crate) async fn stop(&mut self) -> Result<(), String> {
        // The id is `None` after the process was waited for: the number can then belong to another process.
        if let Some(id) = self.child.id().and_then(|id| i32::try_from(id).ok())
            && self.ended().is_none()
        {
            kill(Pid::from_raw(id), Signal::SIGTERM).map_err(|error| format!("can't stop it: {error}"))?;
        }
        let status = match timeout(STOP, self.child.wait()).await {
            Ok(status) => status.map_err(|error| format!("can't wait for it: {error}"))?,
            Err(_) => {
                let killed = timeout(STOP, self.child.kill()).await;
                let how = if killed.is_ok() { "and was killed" } else { "and can't be killed" };
                return Err(format!("it did not stop within {STOP:?} of SIGTERM {how}"));
            }
        };
        // Before the driver handles signals, it dies of them, whether we or the terminal sent them.
        let killed_at_start = self.phase == Phase::Starting && status.signal().is_some();
        if !status.success() && !killed_at_start {
            return Err(format!("it ended with {status}"));
        }
        if self.socket.exists() {
            return Err(format!("it did not remove its socket, {}", self.socket.display()));
        }
        Ok(())
    }

    /// The last lines that the driver printed.
    pub(crate) fn log_tail(&self) -> Vec<String> {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].to_vec()
    }
}
