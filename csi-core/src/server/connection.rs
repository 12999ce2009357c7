//! One connection of a unix socket, as its task, its calls and the accept loop share it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::call::Arrival;
use crate::count::Count;

/// A connection, shared by its own task, its calls and the accept loop.
pub(super) struct Connection {
    pub(super) since: Instant,
    /// Calls that arrived complete and have no answer yet.
    pub(super) calls: Count,
    called: AtomicBool,
    pub(super) leaving: AtomicBool,
    pub(super) leave: Notify,
}

impl Connection {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            calls: Count::default(),
            called: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            leave: Notify::new(),
        }
    }

    /// Records that a request starts to arrive.
    pub(super) fn is_called(&self) {
        self.called.store(true, Relaxed);
    }

    /// The arrival that a request over this connection carries into the call path.
    pub(super) fn arrival(&self) -> Arrival {
        Arrival::new(self.calls.clone())
    }

    pub(super) fn has_called(&self) -> bool {
        self.called.load(Relaxed)
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Relaxed)
    }
}
