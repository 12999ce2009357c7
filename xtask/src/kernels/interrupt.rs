//! Ctrl-C while machines run: they are ended and their last words told, instead of this process ending with them.

use std::sync::OnceLock;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::Failure;

/// SIGINT and SIGTERM end nothing while this is there.
pub(crate) struct Interrupt {
    signals: SigSet,
    fd: SignalFd,
    came: OnceLock<Signal>,
}

impl Interrupt {
    /// For this thread and those that it starts from now on; there are no others yet.
    pub(crate) fn watch() -> Result<Self, Failure> {
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
        let failed = |error| Failure::new(format!("watch for signals: {error}"));
        signals.thread_block().map_err(failed)?;
        let fd = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
        Ok(Self { signals, fd: fd.map_err(failed)?, came: OnceLock::new() })
    }

    /// The signal that came, once one has.
    pub(crate) fn came(&self) -> Option<Signal> {
        if let Ok(Some(read)) = self.fd.read_signal()
            && let Ok(signal) = Signal::try_from(read.ssi_signo.cast_signed())
        {
            // The first of several is told.
            let _ = self.came.set(signal);
        }
        self.came.get().copied()
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        // What came since does what it always did.
        let _ = self.signals.thread_unblock();
    }
}
