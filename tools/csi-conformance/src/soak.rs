//! The soak: for a given time, several clients run volumes through their lives at the same time, and give up
//! some calls midway. The driver's memory and open descriptors are measured meanwhile.

mod client;
mod process;
mod table;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use csi_proto::Rpc;

use crate::clean_up::clean_up;
use crate::kit::{Kit, LONGEST};
use crate::run::CouldNotRun;
use process::Sample;
use table::Row;

/// The settings of a soak.
#[derive(Debug, Clone)]
pub struct Soak {
    time: Duration,
    clients: usize,
    /// The driver's process, whose memory and descriptors must not grow; `None` if it is not on this machine.
    pid: Option<u32>,
}

impl Soak {
    /// A soak with four clients.
    pub fn new(time: Duration) -> Self {
        Self { time: time.min(LONGEST), clients: 4, pid: None }
    }

    /// Sets the number of clients.
    #[must_use]
    pub fn clients(mut self, clients: usize) -> Self {
        self.clients = clients;
        self
    }

    /// Sets the process whose memory and descriptors are measured.
    #[must_use]
    pub fn pid(mut self, pid: u32) -> Self {
        self.pid = Some(pid);
        self
    }
}

/// The result of a soak. Its `Display` is a table: a row for each RPC, the driver's memory, the failures.
#[derive(Debug)]
pub struct SoakReport {
    rows: BTreeMap<&'static str, Row>,
    samples: Vec<Sample>,
    failures: Vec<String>,
    /// What could not be undone at the end.
    left: Vec<String>,
    /// Whether the soak was stopped before its time was over.
    pub stopped: bool,
    took: Duration,
}

impl SoakReport {
    /// Whether every call was answered correctly, everything was undone, and the driver's memory and
    /// descriptors did not grow.
    pub fn is_ok(&self) -> bool {
        let calls: u64 = self.rows.values().map(|row| row.calls).sum();
        calls > 0
            && self.failures.is_empty()
            && self.left.is_empty()
            && process::growth(&self.samples).is_none()
    }
}

#[derive(Default)]
struct SoakCounts {
    rows: BTreeMap<&'static str, Row>,
    failures: Vec<String>,
}

impl SoakCounts {
    fn row(&mut self, rpc: Rpc) -> &mut Row {
        self.rows.entry(rpc.name()).or_default()
    }
}

impl Kit {
    /// Soaks the driver until its time is over or `stop` completes, and undoes what was created. It calls
    /// every RPC that the driver offers and this run can serve. Volumes are put on the node if there is a
    /// [`target`](Self::target).
    ///
    /// # Errors
    /// When the driver does not become ready, or does not report its capabilities, and when its process can't be
    /// read.
    pub async fn soak(self, soak: Soak, stop: impl Future<Output = ()>) -> Result<SoakReport, CouldNotRun> {
        let mut stop = std::pin::pin!(stop);
        let ctx = tokio::select! {
            ctx = self.discover() => ctx?,
            () = &mut stop => return Err(self.stopped_early().await),
        };
        if let Some(pid) = soak.pid.filter(|pid| Sample::of(*pid, Instant::now()).is_none()) {
            return Err(CouldNotRun(format!(
                "the driver's process {pid} does not exist, or /proc/{pid}/fd can't be read"
            )));
        }
        let left_before = clean_up(&ctx).await;
        if !left_before.is_empty() {
            return Err(CouldNotRun(format!("not undone: {}", left_before.join("; "))));
        }
        let start = Instant::now();
        let counts = std::sync::Arc::new(Mutex::new(SoakCounts::default()));
        let mut clients = tokio::task::JoinSet::new();
        for number in 0..soak.clients {
            let client = client::Client::new(ctx.clone(), counts.clone(), number as u64, start + soak.time);
            clients.spawn(client.run());
        }
        let mut samples = Vec::new();
        let mut stopped = false;
        let every = (soak.time / 200).clamp(Duration::from_millis(100), Duration::from_secs(30));
        let mut ticks = tokio::time::interval(every);
        loop {
            tokio::select! {
                () = &mut stop => {
                    stopped = true;
                    break;
                }
                ended = clients.join_next() => match ended {
                    Some(_) => {}
                    None => break,
                },
                _ = ticks.tick() => samples.extend(soak.pid.and_then(|pid| Sample::of(pid, start))),
            }
        }
        clients.shutdown().await;
        let took = start.elapsed();
        let left = clean_up(&ctx).await;
        let mut counts = std::mem::take(&mut *counts.lock().expect("no panic under it"));
        if let Some(pid) = soak.pid.filter(|pid| Sample::of(*pid, start).is_none()) {
            counts.failures.push(format!("the driver's process {pid} has ended, or can't be read"));
        }
        let violations = std::mem::take(&mut *ctx.violations.lock().expect("no panic under it"));
        counts
            .failures
            .extend(violations.iter().take(client::MAX_REPORTED).map(|(_, failure)| failure.to_string()));
        Ok(SoakReport { rows: counts.rows, samples, failures: counts.failures, left, stopped, took })
    }
}
