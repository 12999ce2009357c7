//! A request's arrival, as the server hands it to the path of the call: when the request is whole and readable, its
//! connection has one more running call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::admission::InFlight;

/// The arrival of one request. It travels in the request's extensions.
#[derive(Clone)]
pub(crate) struct Arrival {
    /// The running calls of the connection.
    calls: Arc<InFlight>,
    is_whole: Arc<AtomicBool>,
}

impl Arrival {
    /// A request that begins to arrive over the connection that has these calls.
    pub(crate) fn new(calls: Arc<InFlight>) -> Self {
        Self { calls, is_whole: Arc::default() }
    }

    /// The request arrived whole and readable: its call runs until the returned value is dropped. `None` for a request
    /// that came over no connection.
    pub(super) fn of<T>(request: &tonic::Request<T>) -> Option<RunningCall> {
        let arrival = request.extensions().get::<Self>()?;
        arrival.is_whole.store(true, Relaxed);
        arrival.calls.enter();
        Some(RunningCall(Arc::clone(&arrival.calls)))
    }

    /// Whether the request reached the path of its call.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Relaxed)
    }
}

/// A call of a connection, while it runs.
pub(super) struct RunningCall(Arc<InFlight>);

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.0.leave();
    }
}
