//! Ctrl-C while machines run: the machines are stopped and their last output printed; this process survives.

use std::sync::OnceLock;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::Failure;

/// Blocks SIGINT and SIGTERM while it exists.
pub(crate) struct Interrupt {
    signals: SigSet,
    fd: SignalFd,
    came: OnceLock<Signal>,
}

impl Interrupt {
    /// Applies to this thread and the threads that it starts later. No other threads exist yet.
    pub(crate) fn watch() -> Result<Self, Failure> {
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
        let failed = |error| Failure::new(format!("watch for signals: {error}"));
        signals.thread_block().map_err(failed)?;
        let fd = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
        Ok(Self { signals, fd: fd.map_err(failed)?, came: OnceLock::new() })
    }

    /// The signal, if one has arrived.
    pub(crate) fn came(&self) -> Option<Signal> {
        if let Ok(Some(read)) = self.fd.read_signal()
            && let Ok(signal) = Signal::try_from(read.ssi_signo.cast_signed())
        {
            // The first of several signals is kept.
            let _ = self.came.set(signal);
        }
        self.came.get().copied()
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        // A signal that is still pending has its default effect from here.
        let _ = self.signals.thread_unblock();
    }
}
