//! The signals that end a run before its time.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

const MOMENT: Duration = Duration::from_millis(50);

/// SIGINT, SIGTERM and SIGHUP, taken instead of dying of them.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

/// Which signal it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caught {
    /// What people call it.
    pub name: &'static str,
    number: u8,
}

impl Caught {
    /// The exit status that tells of the signal, as shells do.
    pub fn status(self) -> u8 {
        128 + self.number
    }
}

impl Signals {
    /// Takes the signals from now on.
    ///
    /// # Errors
    /// When they can't be taken.
    pub fn take() -> Result<Self, String> {
        let take = |kind| signal(kind).map_err(|error| format!("can't take signals: {error}"));
        Ok(Self {
            interrupt: take(SignalKind::interrupt())?,
            terminate: take(SignalKind::terminate())?,
            hangup: take(SignalKind::hangup())?,
        })
    }

    /// The signal that has come, or comes in this moment.
    pub async fn pending(&mut self) -> Option<Caught> {
        tokio::time::timeout(MOMENT, self.next()).await.ok()
    }

    /// Waits for a signal.
    pub async fn next(&mut self) -> Caught {
        tokio::select! {
            _ = self.interrupt.recv() => Caught { name: "Ctrl-C", number: 2 },
            _ = self.terminate.recv() => Caught { name: "SIGTERM", number: 15 },
            _ = self.hangup.recv() => Caught { name: "SIGHUP", number: 1 },
        }
    }
}
