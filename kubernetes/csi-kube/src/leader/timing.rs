use std::time::Duration;

use crate::error::{Error, Result};

/// The durations of an election. All processes of one Lease should have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    pub(super) lease: Duration,
    pub(super) renew_deadline: Duration,
    pub(super) retry: Duration,
}

impl Timing {
    /// Creates the durations; the default is 15 s, 10 s and 2 s, as in client-go.
    ///
    /// - `lease`: how long another process sees no change of the Lease before it takes the leadership over.
    ///   Whole seconds.
    /// - `renew_deadline`: how long a leader leads after it sent the last renewal that succeeded. Work that
    ///   still runs then has half of the time from `renew_deadline` to `lease`, before the process ends.
    /// - `retry`: the time between two renewals, and between two attempts to lead.
    ///
    /// Clocks need not show the same time, but must run at the same speed, up to the ratio of `lease` to
    /// `renew_deadline`.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless `lease` > `renew_deadline` > twice `retry` > 0, and `lease` is whole seconds.
    pub fn new(lease: Duration, renew_deadline: Duration, retry: Duration) -> Result<Self> {
        let problem = if lease.subsec_nanos() != 0 || i32::try_from(lease.as_secs()).is_err() {
            "is not a number of whole seconds"
        } else if renew_deadline >= lease {
            "is not longer than the renew deadline"
        } else if retry.is_zero() || retry * 2 >= renew_deadline {
            return Err(Error::invalid("retry", "is zero, or not shorter than half of the renew deadline"));
        } else {
            return Ok(Self { lease, renew_deadline, retry });
        };
        Err(Error::invalid("lease", problem))
    }

    /// The time from the end of a leadership to the first moment at which another process can lead.
    pub(super) fn margin(&self) -> Duration {
        self.lease - self.renew_deadline
    }

    /// The longest time for one request: two must fit into the renew deadline.
    pub(super) fn request(&self) -> Duration {
        self.renew_deadline / 2
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// A clock that never goes back, and that also counts the time in which the machine sleeps.
///
/// A test gives an [`Election`](crate::Election) another one.
pub trait Clock: Send + Sync + 'static {
    /// Returns the time since a moment that stays the same for the life of the process.
    fn now(&self) -> Duration;
}

/// The time since the machine was started, with the time in which it slept (`CLOCK_BOOTTIME`).
///
/// Timers use `CLOCK_MONOTONIC`, which stops while the machine sleeps. A process that wakes up would take an
/// expired leadership as valid for up to the time that it slept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Duration {
        #[cfg(target_os = "linux")]
        let clock = rustix::time::ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        let clock = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(clock);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_that_let_two_lead_are_refused() {
        let timing = |lease, renew, retry| {
            let [lease, renew, retry] = [lease, renew, retry].map(Duration::from_millis);
            Timing::new(lease, renew, retry).map_err(|error| error.to_string())
        };
        assert_eq!(timing(15_000, 10_000, 2_000), Ok(Timing::default()));
        for (lease, renew, retry, field) in [
            (10_000, 10_000, 2_000, "lease"),
            (15_500, 10_000, 2_000, "lease"),
            (0, 0, 0, "lease"),
            (15_000, 10_000, 5_000, "retry"),
            (15_000, 10_000, 0, "retry"),
        ] {
            let error = timing(lease, renew, retry).unwrap_err();
            assert!(error.starts_with(field), "{error}");
        }
    }
}
