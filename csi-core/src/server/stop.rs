//! When to stop: first a request, then a limit for waiting.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::{Failure, ServeError};

/// The state of a plugin after it was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// None of its operations runs any more.
    Idle,
    /// The grace period is over, and driver methods still run.
    Running,
}

/// Counts the stop requests: the first ends accepting, the second ends the waiting for operations.
#[derive(Clone)]
pub(crate) struct Stop {
    ask: watch::Sender<u8>,
    asked: watch::Receiver<u8>,
}

impl Stop {
    /// Stops at SIGTERM or SIGINT.
    pub(crate) fn signals() -> Result<Self, ServeError> {
        let mut terminate = signal(SignalKind::terminate()).map_err(Failure::Signals)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::Signals)?;
        let (ask, asked) = watch::channel(0_u8);
        let sender = ask.clone();
        tokio::spawn(async move {
            while !sender.is_closed() {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                sender.send_modify(|asked| *asked = asked.saturating_add(1));
            }
        });
        Ok(Self { ask, asked })
    }

    /// Stops when the future `stop` completes.
    pub(crate) fn when(stop: impl Future<Output = ()> + Send + 'static) -> Self {
        let (ask, asked) = watch::channel(0_u8);
        let sender = ask.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = stop => sender.send_modify(|asked| *asked = asked.saturating_add(1)),
                () = sender.closed() => {}
            }
        });
        Self { ask, asked }
    }

    /// Requests a stop by the server itself.
    pub(crate) fn request(&self) {
        self.ask.send_modify(|asked| *asked = (*asked).max(1));
    }

    /// Whether a stop was requested.
    #[cfg(feature = "http")]
    pub(crate) fn is_requested(&self) -> bool {
        *self.asked.borrow() > 0
    }

    /// Completes when a stop is requested.
    pub(crate) fn requested(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut asked = self.asked.clone();
        async move { until(&mut asked, 1).await }
    }

    /// Completes when `grace` has passed since the first stop request, or at the second request.
    pub(crate) async fn grace_period_end(&self, grace: Duration) {
        let mut asked = self.asked.clone();
        until(&mut asked, 1).await;
        tokio::select! {
            () = tokio::time::sleep(grace) => {}
            () = until(&mut asked, 2) => {}
        }
    }
}

async fn until(asked: &mut watch::Receiver<u8>, times: u8) {
    if asked.wait_for(|asked| *asked >= times).await.is_err() {
        // All senders are gone, which is not a request.
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_grace_period_without_an_end_ends_at_the_second_request() {
        let stop = Stop::when(ready(()));
        stop.requested().await;
        let mut end = std::pin::pin!(stop.grace_period_end(Duration::MAX));
        let day = Duration::from_secs(24 * 3600);
        assert!(tokio::time::timeout(day, end.as_mut()).await.is_err());
        stop.ask.send_replace(2);
        end.await;
    }
}
