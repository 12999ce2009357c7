//! The measurements of a driver under a load.

use std::io::Result;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use csi_core::Endpoint;
use csi_core::client::Client;
use csi_core::proto::v1;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::loads::{Load, Scale};
use crate::target::Target;

/// The deadline of the well-behaved client: the default of the kubelet's probes.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// The wait between two calls.
const PAUSE: Duration = Duration::from_millis(20);
/// The time for the driver to come to rest.
const REST: Duration = Duration::from_secs(3);

/// The durations of successes, and the number of failures.
#[derive(Default)]
pub(crate) struct Series {
    took: Vec<Duration>,
    pub(crate) failed: usize,
}

impl Series {
    fn add(&mut self, since: Instant, succeeded: bool) {
        if succeeded {
            self.took.push(since.elapsed());
        } else {
            self.failed += 1;
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.took.len() + self.failed
    }

    /// The quantile of the durations at this fraction.
    pub(crate) fn quantile(&self, part: f64) -> Option<Duration> {
        let mut sorted = self.took.clone();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        sorted.get((last as f64 * part).round() as usize).copied()
    }
}

/// The measurements under one load.
pub(crate) struct Seen {
    /// Calls, each on its own connection, like the kubelet's.
    pub(crate) calls: Series,
    /// GET /healthz.
    pub(crate) probes: Series,
    pub(crate) before: u64,
    pub(crate) during: u64,
    pub(crate) after: u64,
    /// The largest number of open descriptors of the driver.
    pub(crate) descriptors: usize,
}

/// Runs the load against the driver and measures.
pub(crate) async fn watch(target: &Target, load: &'static Load, scale: Scale) -> Result<Seen> {
    let mut calls = Series::default();
    let mut probes = Series::default();
    let before = target.memory()?;
    let running = tokio::spawn(load.run(target.into(), scale));
    let mut during = before;
    let mut descriptors = 0;
    let end = Instant::now() + scale.lasts;
    while Instant::now() < end {
        let since = Instant::now();
        calls.add(since, call(&target.endpoint).await);
        if let Some(address) = target.health {
            let since = Instant::now();
            probes.add(since, probe(address).await);
        }
        during = during.max(target.memory()?);
        descriptors = descriptors.max(target.descriptors()?);
        sleep(PAUSE).await;
    }
    running.abort();
    let _aborted = running.await;
    sleep(REST).await;
    Ok(Seen { calls, probes, before, during, after: target.memory()?, descriptors })
}

async fn call(endpoint: &Endpoint) -> bool {
    let client = Client::new(endpoint);
    timeout(CALL_TIMEOUT, client.call(v1::NodeGetInfoRequest {})).await.is_ok_and(|answer| answer.is_ok())
}

async fn probe(address: SocketAddr) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer.starts_with(b"HTTP/1.1 200"))
    };
    matches!(timeout(CALL_TIMEOUT, ask).await, Ok(Ok(true)))
}
