//! Counters of calls: how many are running, and how long completed calls took, by status code.
//!
//! A call touches only the atomics of its own RPC, and takes no lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use csi_proto::Rpc;
use tonic::{Code, Status};

/// The upper bounds of the buckets in seconds, as dashboards for CSI sidecars and drivers expect them.
pub(crate) const BOUNDS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];
/// The status codes of gRPC, from 0 to 16.
const CODES: usize = 17;

/// Durations of the calls of one RPC that ended with one code.
#[derive(Default)]
pub(crate) struct Histogram {
    /// Calls per bucket; the last bucket has no upper bound.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
}

impl Histogram {
    fn record(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// The number of calls in each bucket, of which the last has no bound; and the sum of their durations in
    /// seconds.
    #[cfg(any(feature = "http", test))]
    pub(crate) fn counts(&self) -> ([u64; BOUNDS.len() + 1], f64) {
        let counts = std::array::from_fn(|bucket| self.buckets[bucket].load(Relaxed));
        (counts, self.nanoseconds.load(Relaxed) as f64 / 1e9)
    }
}

struct RpcMetrics {
    in_flight: AtomicU64,
    /// Each is created when the first call ends with its code, because most codes never occur.
    by_code: [OnceLock<Box<Histogram>>; CODES],
}

impl Default for RpcMetrics {
    fn default() -> Self {
        Self { in_flight: AtomicU64::new(0), by_code: [const { OnceLock::new() }; CODES] }
    }
}

/// The counters of a plugin.
pub(crate) struct Metrics {
    by_rpc: Vec<RpcMetrics>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { by_rpc: Rpc::ALL.iter().map(|_| RpcMetrics::default()).collect() }
    }
}

impl Metrics {
    /// Counts a call that starts, and whose caller gives up at its deadline.
    pub(crate) fn begin(self: &Arc<Self>, rpc: Rpc, deadline: Option<Instant>) -> Measured {
        self.by_rpc[rpc as usize].in_flight.fetch_add(1, Relaxed);
        Measured { metrics: Arc::clone(self), rpc, since: Instant::now(), deadline, code: None }
    }

    /// Counts a call that was refused before it started.
    pub(crate) fn refused(&self, rpc: Rpc, code: Code, took: Duration) {
        self.by_rpc[rpc as usize].by_code[code as usize].get_or_init(Box::default).record(took);
    }

    /// The number of this RPC's calls that wait for their answer.
    #[cfg(any(feature = "http", test))]
    pub(crate) fn in_flight(&self, rpc: Rpc) -> u64 {
        self.by_rpc[rpc as usize].in_flight.load(Relaxed)
    }

    #[cfg(any(feature = "http", test))]
    pub(crate) fn histograms(&self) -> impl Iterator<Item = (Rpc, Code, &Histogram)> {
        Rpc::ALL.iter().flat_map(|rpc| {
            let by_code = self.by_rpc[*rpc as usize].by_code.iter().enumerate();
            by_code.filter_map(|(code, histogram)| {
                Some((*rpc, Code::from_i32(code as i32), &**histogram.get()?))
            })
        })
    }
}

/// A running call. If it is dropped without an end, its caller cancelled it, or its deadline is over.
pub(crate) struct Measured {
    metrics: Arc<Metrics>,
    rpc: Rpc,
    since: Instant,
    deadline: Option<Instant>,
    code: Option<Code>,
}

impl Measured {
    /// Records the call's outcome.
    pub(crate) fn end<T>(mut self, outcome: &Result<T, Status>) {
        self.code = Some(outcome.as_ref().err().map_or(Code::Ok, Status::code));
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let rpc = &self.metrics.by_rpc[self.rpc as usize];
        rpc.in_flight.fetch_sub(1, Relaxed);
        let code = self.code.unwrap_or(match self.deadline {
            Some(deadline) if deadline <= Instant::now() => Code::DeadlineExceeded,
            _ => Code::Cancelled,
        });
        rpc.by_code[code as usize].get_or_init(Box::default).record(self.since.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_their_end() {
        let metrics: Arc<Metrics> = Arc::default();
        let measured = metrics.begin(Rpc::Probe, None);
        assert_eq!(metrics.in_flight(Rpc::Probe), 1);
        measured.end(&Ok(()));
        metrics.begin(Rpc::Probe, None).end::<()>(&Err(Status::aborted("x")));
        drop(metrics.begin(Rpc::NodeGetInfo, None));
        assert_eq!(metrics.in_flight(Rpc::Probe), 0);
        let seen: Vec<_> = metrics
            .histograms()
            .map(|(rpc, code, histogram)| (rpc, code, histogram.counts().0.iter().sum::<u64>()))
            .collect();
        let due = [
            (Rpc::Probe, Code::Ok, 1),
            (Rpc::Probe, Code::Aborted, 1),
            (Rpc::NodeGetInfo, Code::Cancelled, 1),
        ];
        assert_eq!(seen, due);
    }

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let histogram = Histogram::default();
        for took in [0.1, 0.100_001, 600.0, 601.0] {
            histogram.record(Duration::from_secs_f64(took));
        }
        let (counts, sum) = histogram.counts();
        assert_eq!((counts[0], counts[1], counts[12], counts[13]), (1, 1, 1, 1));
        assert!((sum - 1201.2).abs() < 0.001, "{sum}");
    }
}
