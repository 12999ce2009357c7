//! A request's arrival, as the server hands it to the call path: once the request is complete and readable,
//! its connection has one more running call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use crate::count::{Count, Counted};

/// The arrival of one request. It is stored in the request's extensions.
#[derive(Clone)]
pub(crate) struct Arrival {
    /// The counter of the connection's running calls.
    calls: Count,
    is_whole: Arc<AtomicBool>,
    /// When the caller gives up, if it said so.
    deadline: Option<Instant>,
}

impl Arrival {
    /// Creates the arrival of a request on the connection with this counter.
    pub(crate) fn new(calls: Count) -> Self {
        Self { calls, is_whole: Arc::default(), deadline: None }
    }

    /// Sets when the caller gives up.
    pub(crate) fn until(self, deadline: Option<Instant>) -> Self {
        Self { deadline, ..self }
    }

    /// When the caller of this request gives up, if it said so.
    pub(super) fn deadline_of<T>(request: &tonic::Request<T>) -> Option<Instant> {
        request.extensions().get::<Self>()?.deadline
    }

    /// Records that the request arrived complete and readable: its call runs until the returned value is
    /// dropped. `None` for a request that came over no connection.
    pub(super) fn of<T>(request: &tonic::Request<T>) -> Option<Counted> {
        let arrival = request.extensions().get::<Self>()?;
        arrival.is_whole.store(true, Relaxed);
        Some(arrival.calls.begin())
    }

    /// Counts a call that does not take the call path, until the returned value is dropped.
    pub(crate) fn begin(&self) -> Counted {
        self.calls.begin()
    }

    /// Whether the request reached the call path.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Relaxed)
    }
}
