//! Requests with a time limit, and pauses between their repetitions.

use std::time::Duration;

use kube::runtime::watcher::DefaultBackoff;
use tokio::time::{Instant, sleep, timeout};

use crate::error::{Error, Result};

/// The longest time for one request. kube's client has no limit of its own, because watches are long.
pub(crate) const LIMIT: Duration = Duration::from_secs(15);

/// Sends one request; `action` is for the error: `read node worker-1`.
pub(crate) async fn send<T>(action: &str, request: impl Future<Output = kube::Result<T>>) -> Result<T> {
    send_within(LIMIT, action, request).await
}

pub(crate) async fn send_within<T>(
    limit: Duration,
    action: &str,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T> {
    match timeout(limit, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(Error::Api { action: action.to_owned(), source: Box::new(source) }),
        Err(_) => Err(Error::TimedOut { action: action.to_owned(), limit }),
    }
}

/// The longest pause, unless the API server asks for a longer one.
const LONGEST: Duration = Duration::from_secs(10);

/// Pauses between the repetitions of something, longer each time, with jitter: all nodes of a cluster can
/// start at once.
pub(crate) struct Pauses {
    backoff: DefaultBackoff,
    until: Option<Instant>,
}

impl Pauses {
    pub(crate) fn within(limit: Duration) -> Self {
        Self { until: Some(Instant::now() + limit), ..Self::endless() }
    }

    pub(crate) fn endless() -> Self {
        Self { backoff: DefaultBackoff::default(), until: None }
    }

    /// Waits before the next repetition.
    ///
    /// # Errors
    /// The given error, when the time is over.
    pub(crate) async fn after(&mut self, error: Error) -> Result<()> {
        let pause = self.backoff.next().unwrap_or(LONGEST).min(LONGEST);
        let pause = pause.max(error.retry_after().unwrap_or_default());
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(error);
        }
        sleep(left.map_or(pause, |left| left.min(pause))).await;
        Ok(())
    }
}
