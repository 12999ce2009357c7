use std::time::Duration;

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
