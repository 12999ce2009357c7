//! Requests with a time limit, and pauses between their repetitions.

use std::time::Duration;

use kube::Client;
use kube::client::Body;
use kube::runtime::watcher::DefaultBackoff;
use tokio::time::{Instant, sleep, timeout};
use tower::service_fn;

use crate::error::{Error, Result};

/// The longest time for one request. kube's client has no limit of its own, because watches are long.
pub(crate) const LIMIT: Duration = Duration::from_secs(15);

/// Sends one request; `action` is for the error: `read node worker-1`.
///
/// # Errors
/// [`Error::Api`] and [`Error::TimedOut`].
pub async fn send<T>(action: &str, request: impl Future<Output = kube::Result<T>>) -> Result<T> {
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

/// The longest time in which an answer has to begin. The API server ends a request after a minute.
const BEGIN: Duration = Duration::from_secs(65);

/// A client whose answers begin in time, or are errors. Without it a list, or the beginning of a watch, whose connection is
/// dead would have no end: kube limits only the time in which a watch that has begun is silent.
#[must_use]
pub fn with_answer_limit(client: &Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let client = client.clone();
    let limited = service_fn(move |request: http::Request<Body>| {
        let client = client.clone();
        async move { timeout(BEGIN, client.send(request)).await?.map_err(tower::BoxError::from) }
    });
    Client::new(limited, namespace)
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
        Self { until: Instant::now().checked_add(limit), ..Self::endless() }
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
