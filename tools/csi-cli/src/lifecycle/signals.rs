//! The signals that end a run early.

use std::time::Duration;

use tokio::signal::unix::{self, SignalKind, signal};

const MOMENT: Duration = Duration::from_millis(50);

/// SIGINT, SIGTERM and SIGHUP, caught so that they do not kill the process.
#[derive(Debug)]
pub struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    hangup: unix::Signal,
}

/// A caught signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// Its name for people.
    pub name: &'static str,
    number: u8,
}

impl Signal {
    /// The exit status for this signal, 128 plus its number, as in shells.
    pub fn status(self) -> u8 {
        128 + self.number
    }
}

impl Signals {
    /// Starts catching the signals.
    ///
    /// # Errors
    /// When the handlers can't be installed.
    pub fn install() -> Result<Self, String> {
        let take = |kind| signal(kind).map_err(|error| format!("signals can't be caught: {error}"));
        Ok(Self {
            interrupt: take(SignalKind::interrupt())?,
            terminate: take(SignalKind::terminate())?,
            hangup: take(SignalKind::hangup())?,
        })
    }

    /// The signal that has arrived, or arrives within 50 ms.
    pub async fn pending(&mut self) -> Option<Signal> {
        tokio::time::timeout(MOMENT, self.next()).await.ok()
    }

    /// Waits for a signal.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal { name: "Ctrl-C", number: 2 },
            _ = self.terminate.recv() => Signal { name: "SIGTERM", number: 15 },
            _ = self.hangup.recv() => Signal { name: "SIGHUP", number: 1 },
        }
    }
}
