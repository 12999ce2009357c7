//! The report of a soak as text.

use std::fmt;
use std::time::Duration;

use csi_proto::escape;

use super::{SoakReport, process};

/// The results of an RPC's calls. Durations are counted in powers of two of a microsecond, so that the size
/// does not depend on the length of the soak.
#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    pub(super) calls: u64,
    pub(super) abandoned: u64,
    /// Calls that returned ABORTED, which asks for a retry.
    pub(super) aborted: u64,
    pub(super) failed: u64,
    times: [u64; 32],
}

impl Row {
    pub(super) fn took(&mut self, time: Duration) {
        self.calls += 1;
        let bits = 64 - u64::try_from(time.as_micros()).unwrap_or(u64::MAX).leading_zeros() as usize;
        self.times[bits.min(self.times.len() - 1)] += 1;
    }

    /// The upper bound of this percentile of the durations, in milliseconds.
    fn within(&self, percent: u64) -> f64 {
        let mut left = (self.calls * percent).div_ceil(100);
        let bits = self.times.iter().position(|count| {
            left = left.saturating_sub(*count);
            left == 0
        });
        bits.map_or(0.0, |bits| (1u64 << bits) as f64 / 1000.0)
    }
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = ["calls", "abandoned", "aborted", "failed", "p50 < ms", "p99 < ms"];
        write!(f, "{:<32}", "RPC")?;
        heads.iter().try_for_each(|head| write!(f, "{head:>11}"))?;
        writeln!(f)?;
        for (rpc, row) in &self.rows {
            let Row { calls, abandoned, aborted, failed, .. } = row;
            let half = row.within(50);
            let most = row.within(99);
            writeln!(
                f,
                "{rpc:<32}{calls:>11}{abandoned:>11}{aborted:>11}{failed:>11}{half:>11.2}{most:>11.2}"
            )?;
        }
        if let Some((first, last)) = process::ends(&self.samples) {
            let most = self.samples.iter().map(|sample| sample.memory).max().unwrap_or_default();
            let open = self.samples.iter().map(|sample| sample.descriptors).max().unwrap_or_default();
            let from = first.at.as_secs();
            let to = last.at.as_secs();
            writeln!(
                f,
                "memory: {} KiB after {from} s, {} after {to} s, at most {most}",
                first.memory, last.memory
            )?;
            writeln!(f, "descriptors: {}, then {}, at most {open}", first.descriptors, last.descriptors)?;
        }
        let growth = process::growth(&self.samples);
        let left = self.left.iter().map(|what| format!("not undone: {what}"));
        for what in self.failures.iter().cloned().chain(growth).chain(left) {
            writeln!(f, "FAILED  {}", escape::terminal(&what))?;
        }
        let calls: u64 = self.rows.values().map(|row| row.calls).sum();
        let verdict = match (self.is_ok(), self.stopped) {
            (true, false) => "passed",
            (true, true) => "stopped, without a failure",
            (false, _) => "failed",
        };
        write!(f, "{verdict}: {calls} calls in {:.0} s", self.took.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_bounds() {
        let mut row = Row::default();
        for _ in 0..98 {
            row.took(Duration::from_micros(900));
        }
        row.took(Duration::from_millis(3));
        row.took(Duration::from_secs(9000));
        assert_eq!((row.within(50), row.within(99)), (1.024, 4.096));
        assert_eq!(Row::default().within(99), 0.001);
    }
}
