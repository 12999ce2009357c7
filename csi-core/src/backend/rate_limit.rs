//! When the next request to a backend can be sent.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// A rate limit with room for a burst (the generic cell rate algorithm), and a pause of all requests.
#[derive(Debug)]
pub(super) struct RateLimit {
    /// The time between two requests; zero means no limit.
    interval: Duration,
    /// How many requests can be sent at once after a time without any.
    burst: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the bucket is full again: one interval for each request that was sent.
    full_at: Instant,
    paused_until: Instant,
}

impl RateLimit {
    pub(super) fn new(interval: Duration, burst: u32) -> Self {
        let now = Instant::now();
        Self { interval, burst, state: Mutex::new(State { full_at: now, paused_until: now }) }
    }

    /// Waits until a request can be sent, in the order of arrival.
    pub(super) async fn wait(&self) {
        loop {
            let at = self.take(Instant::now());
            sleep_until(at).await;
            // A pause that began meanwhile counts for those who already waited.
            if self.state().paused_until <= at {
                return;
            }
        }
    }

    /// Takes the next place, and returns when it is.
    fn take(&self, now: Instant) -> Instant {
        let mut state = self.state();
        state.full_at = state.full_at.max(now) + self.interval;
        let room = self.interval * self.burst;
        let at = state.full_at.checked_sub(room).unwrap_or(now);
        at.max(state.paused_until).max(now)
    }

    /// Lets no request begin for this time. After it the rate counts from zero.
    pub(super) fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.state();
        state.paused_until = state.paused_until.max(until);
        state.full_at = state.full_at.max(until);
    }

    /// Each statement leaves the state consistent, so the poison of a panic is ignored.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// When each of `count` requests is sent, in milliseconds from now.
    async fn sent(limit: &Arc<RateLimit>, count: usize) -> Vec<u128> {
        let start = Instant::now();
        let requests = (0..count).map(|_| {
            let limit = Arc::clone(limit);
            tokio::spawn(async move {
                limit.wait().await;
                start.elapsed().as_millis()
            })
        });
        let mut times = Vec::new();
        for request in requests.collect::<Vec<_>>() {
            times.push(request.await.unwrap());
        }
        times.sort_unstable();
        times
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_sent_at_once_and_the_rest_at_the_rate() {
        let limit = Arc::new(RateLimit::new(Duration::from_millis(100), 3));
        assert_eq!(sent(&limit, 6).await, [0, 0, 0, 100, 200, 300]);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(sent(&limit, 4).await, [0, 0, 0, 100], "an idle time saves no more than a burst");
        let unlimited = Arc::new(RateLimit::new(Duration::ZERO, 1));
        assert_eq!(sent(&unlimited, 3).await, [0, 0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_also_holds_those_who_wait_already() {
        let limit = Arc::new(RateLimit::new(Duration::from_millis(100), 2));
        let other = Arc::clone(&limit);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            other.pause(Duration::from_secs(10));
        });
        // Two have been sent when the backend asks for a pause. Afterwards there is a burst, and no stampede.
        assert_eq!(sent(&limit, 6).await, [0, 0, 10_050, 10_050, 10_150, 10_250]);
        limit.pause(Duration::from_secs(1));
        assert_eq!(sent(&limit, 1).await, [1000]);
    }
}
