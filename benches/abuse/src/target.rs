//! The driver under abuse, in another process.

use std::io::{Error, Result};
use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::time::Duration;

use csi_core::Endpoint;
use csi_core::client::Client;
use tokio::process::{Child, Command};

/// How long the driver has to start, and to end.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A running driver.
pub(crate) struct Target {
    pub(crate) endpoint: Endpoint,
    pub(crate) health: Option<SocketAddr>,
    pid: u32,
    ours: Option<(Child, tempfile::TempDir)>,
}

impl Target {
    /// A driver that was started outside this program.
    pub(crate) fn given(endpoint: Endpoint, health: Option<SocketAddr>, pid: u32) -> Self {
        Self { endpoint, health, pid, ours: None }
    }

    /// Starts a driver in a process of its own.
    pub(crate) async fn start() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("csi.sock");
        let health = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg(format!("--endpoint={}", socket.display()))
            .arg(format!("--metrics-address={health}"))
            .arg("--log-level=error")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().ok_or_else(|| Error::other("the driver ended at once"))?;
        let endpoint: Endpoint = socket.display().to_string().parse().map_err(Error::other)?;
        Client::new(&endpoint).ready(START_TIMEOUT).await.map_err(Error::other)?;
        Ok(Self { endpoint, health: Some(health), pid, ours: Some((child, directory)) })
    }

    /// Ends the driver, if this program started it.
    pub(crate) async fn end(self) -> Result<()> {
        if let Some((mut child, _directory)) = self.ours {
            child.start_kill()?;
            child.wait().await?;
        }
        Ok(())
    }

    /// Its resident memory in bytes.
    pub(crate) fn memory(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
        kibibytes.map(|number| number * 1024).ok_or_else(|| Error::other("/proc does not show its memory"))
    }

    /// The number of its open descriptors.
    pub(crate) fn descriptors(&self) -> Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.pid))?.count())
    }
}
