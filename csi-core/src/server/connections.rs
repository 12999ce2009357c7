//! The connections of one unix socket: accepts them, limits their number, and closes them in order.
//!
//! There is no idle timeout and no HTTP/2 keepalive: a sidecar keeps its connection for its whole life,
//! mostly idle, and many sidecars exit when they lose it. The kernel reports a dead peer of a unix socket
//! at once. So an idle connection is closed only to make room for a new one.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::sleep;
use uds_authority::RepairedStream;

use super::Stop;
use super::connection::Connection;
use super::extension::Calls;
use super::front::Front;
use crate::call::metrics::Metrics;
use crate::count::Count;

/// How long a connection can take to end after it was told to end and has no running call.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);
/// The pause after a failed accept; without it the kernel would report the same failure again at once.
const PAUSE: Duration = Duration::from_millis(100);
/// The time that a connection has for its first call before it can be closed to make room.
const NEW: Duration = Duration::from_millis(100);
/// How often to check for room while there is none.
const LOOK: Duration = Duration::from_millis(5);
/// How many calls one connection can have open. Sidecars have 100 workers, and gRPC clients queue calls
/// above the limit.
const MAX_STREAMS: u32 = 1024;

/// The open connections of a socket.
pub(super) struct Connections {
    calls: Calls,
    metrics: Arc<Metrics>,
    stop: Stop,
    most: usize,
    full: bool,
    accepted: u64,
    tasks: JoinSet<()>,
    numbers: HashMap<Id, u64>,
    /// The open connections by number, the oldest first.
    open: BTreeMap<u64, (Arc<Connection>, AbortHandle)>,
    /// How many of the open connections were told to end.
    leaving: usize,
    /// An accepted connection that is served as soon as there is room.
    waiting: Option<UnixStream>,
}

impl Connections {
    /// Serves `calls` to at most `most` connections at a time.
    pub(super) fn new(calls: Calls, metrics: Arc<Metrics>, most: usize, stop: Stop) -> Self {
        Self {
            calls,
            metrics,
            stop,
            most,
            full: false,
            accepted: 0,
            tasks: JoinSet::new(),
            numbers: HashMap::new(),
            open: BTreeMap::new(),
            leaving: 0,
            waiting: None,
        }
    }

    /// Accepts connections until this future is dropped. Connections that are already accepted continue.
    pub(super) async fn accept(&mut self, listener: &UnixListener) -> Infallible {
        loop {
            if self.waiting.is_none() {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    // A task that ended keeps its memory until it is joined.
                    Some(ended) = self.tasks.join_next_with_id() => {
                        self.forget(ended);
                        continue;
                    }
                };
                // A failed accept, for example for lack of file descriptors, does not end the server.
                match accepted {
                    Ok((stream, _)) => self.waiting = Some(stream),
                    Err(error) => {
                        tracing::warn!("can't accept a connection: {error}");
                        sleep(PAUSE).await;
                    }
                }
            }
            if self.waiting.is_some() {
                self.make_room().await;
            }
            if let Some(stream) = self.waiting.take() {
                self.open(stream);
            }
        }
    }

    /// Completes when every connection has ended. Each ends after the stop request, when its calls have
    /// their answers.
    pub(super) async fn closed(&mut self) {
        self.waiting = None;
        while let Some(ended) = self.tasks.join_next_with_id().await {
            self.forget(ended);
        }
    }

    /// Closes the connections that are left. Callers then know that they get no answer, even if a thread of this
    /// process waits in the kernel and keeps its descriptors open after its end.
    pub(super) async fn close(&mut self) {
        self.waiting = None;
        self.tasks.shutdown().await;
    }

    fn open(&mut self, stream: UnixStream) {
        let number = self.accepted;
        self.accepted += 1;
        let connection = Arc::new(Connection::new());
        let front = Front::new(self.calls.clone(), Arc::clone(&self.metrics), Arc::clone(&connection));
        let task = self.tasks.spawn(serve(stream, front, Arc::clone(&connection), self.stop.clone()));
        self.numbers.insert(task.id(), number);
        self.open.insert(number, (connection, task));
    }

    /// Completes when there is room for one more connection. Connections that were told to end do not
    /// count, as long as there are not too many of them.
    async fn make_room(&mut self) {
        loop {
            while let Some(ended) = self.tasks.try_join_next_with_id() {
                self.forget(ended);
            }
            if self.open.len() - self.leaving < self.most && self.tasks.len() < 2 * self.most {
                self.full &= self.open.len() > self.most / 2;
                return;
            }
            if !std::mem::replace(&mut self.full, true) {
                tracing::warn!(
                    most = self.most,
                    "too many connections: idle ones are closed to make room for new ones"
                );
            }
            if self.leaving < self.most && self.close_one() {
                continue;
            }
            tokio::select! {
                Some(ended) = self.tasks.join_next_with_id() => self.forget(ended),
                () = sleep(LOOK) => {}
            }
        }
    }

    /// Closes a connection without a running call, if there is one.
    ///
    /// Sidecars connect when they start, and call at once. So connections that never made a call are closed
    /// first, the oldest first, each after its time for a first call. After these, the youngest idle
    /// connection is closed.
    fn close_one(&mut self) -> bool {
        if let Some((&number, (oldest, task))) = self.open.iter().find(|(_, (open, _))| !open.has_called()) {
            let is_new = oldest.since.elapsed() < NEW;
            if !is_new {
                // The connection never made a call, so its client loses nothing.
                task.abort();
                self.remove(number);
            }
            return !is_new;
        }
        let is_idle = |open: &&(Arc<Connection>, AbortHandle)| !open.0.is_leaving() && open.0.calls.is_zero();
        let Some((youngest, _)) = self.open.values().rev().find(is_idle) else { return false };
        youngest.leaving.store(true, Relaxed);
        youngest.leave.notify_one();
        self.leaving += 1;
        true
    }

    fn forget(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
        if let Some(number) = self.numbers.remove(&id) {
            self.remove(number);
        }
    }

    fn remove(&mut self, number: u64) {
        let removed = self.open.remove(&number);
        self.leaving -= usize::from(removed.is_some_and(|(open, _)| open.is_leaving()));
    }
}

/// Serves a connection to its end. At a stop request, or to make room, it is told to end (GOAWAY). If it
/// does not end, it is closed as soon as none of its calls runs.
async fn serve(stream: UnixStream, front: Front, connection: Arc<Connection>, stop: Stop) {
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        // A driver that was stopped for a while finds the calls of all workers and their end at once.
        .max_pending_accept_reset_streams(MAX_STREAMS as usize)
        .serve_connection(TokioIo::new(RepairedStream::new(stream)), front);
    let mut served = std::pin::pin!(served);
    let ended = tokio::select! {
        ended = &mut served => Some(ended),
        () = connection.leave.notified() => None,
        () = stop.requested() => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            served.as_mut().graceful_shutdown();
            tokio::select! {
                ended = &mut served => ended,
                () = wait_until_unused(&connection.calls) => Ok(()),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection ended: {error}");
    }
}

/// Completes when no call runs and none ran a moment ago, so that the last answer has had time to be sent.
async fn wait_until_unused(calls: &Count) {
    loop {
        calls.zero().await;
        sleep(FAREWELL).await;
        if calls.is_zero() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::extension::Extension;
    use crate::server::services::Services;
    use tokio::time::Instant;

    #[tokio::test]
    async fn a_connection_that_ended_is_forgotten_while_no_other_comes() {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
        let stop = Stop::when(std::future::pending());
        let mut connections =
            Connections::new(Extension::default().apply(Services::default()), Arc::default(), 8, stop);
        drop(UnixStream::connect(directory.path().join("socket")).await.unwrap());
        let end = Instant::now() + Duration::from_secs(20);
        while connections.accepted == 0 || !connections.tasks.is_empty() || !connections.open.is_empty() {
            assert!(Instant::now() < end, "{} tasks", connections.tasks.len());
            drop(tokio::time::timeout(Duration::from_millis(20), connections.accept(&listener)).await);
        }
        assert!(connections.numbers.is_empty());
    }
}
