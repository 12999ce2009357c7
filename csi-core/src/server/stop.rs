//! When to stop: first a request, then a limit for waiting.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::{Failure, ServeError};

/// Counts the stop requests: the first ends accepting, the second ends the waiting for operations.
#[derive(Clone)]
pub(crate) struct Stop {
    ask: watch::Sender<u8>,
    asked: watch::Receiver<u8>,
    deadline: Option<tokio::time::Instant>,
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
        Ok(Self { ask, asked, deadline: None })
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
        Self { ask, asked, deadline: None }
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
    pub(crate) async fn grace_period_end(&mut self, grace: Duration) {
        let mut asked = self.asked.clone();
        until(&mut asked, 1).await;
        let deadline = *self.deadline.get_or_insert_with(|| tokio::time::Instant::now() + grace);
        tokio::select! {
            () = tokio::time::sleep_until(deadline) => {}
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
