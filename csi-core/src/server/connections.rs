//! The connections of one unix socket: accepted, limited in number, and closed in good order.
//!
//! There is no idle time-out and no HTTP/2 keepalive: a sidecar keeps its connection for its whole life, mostly idle,
//! and many of them end when they lose it. The kernel reports a dead peer of a unix socket at once. So an idle
//! connection is closed only to make room for a new one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep};
use tonic::service::Routes;

use super::Stop;
use super::authority::Repaired;
use super::front::Front;
use crate::admission::InFlight;
use crate::call::{Arrival, metrics::Metrics};

/// How long a connection may take to end once it has been told to and no call of it runs.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);
/// How long to leave a failed accept alone: the kernel would report it again at once.
const PAUSE: Duration = Duration::from_millis(100);
/// So long a connection has for its first call before it is closed to make room.
const NEW: Duration = Duration::from_millis(100);
/// How often to look for room while there is none.
const LOOK: Duration = Duration::from_millis(5);
/// How many calls one connection may have open. Sidecars have 100 workers, and gRPC clients queue what is above.
const STREAMS_MOST: u32 = 1024;

/// A connection, as its own task, its calls and the accept loop see it.
pub(super) struct Connection {
    since: Instant,
    /// Calls that arrived whole and have no answer yet.
    calls: Arc<InFlight>,
    called: AtomicBool,
    leaving: AtomicBool,
    leave: Notify,
}

impl Connection {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            calls: Arc::default(),
            called: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            leave: Notify::new(),
        }
    }

    /// A request begins to arrive.
    pub(super) fn is_called(&self) {
        self.called.store(true, Relaxed);
    }

    /// What a request over this connection brings along to the path of its call.
    pub(super) fn arrival(&self) -> Arrival {
        Arrival::new(Arc::clone(&self.calls))
    }

    fn has_called(&self) -> bool {
        self.called.load(Relaxed)
    }

    fn is_leaving(&self) -> bool {
        self.leaving.load(Relaxed)
    }
}

/// The open connections of a socket.
pub(super) struct Connections {
    routes: Routes,
    metrics: Arc<Metrics>,
    stop: Stop,
    most: usize,
    full: bool,
    accepted: u64,
    tasks: JoinSet<()>,
    numbers: HashMap<Id, u64>,
    /// By number: the oldest is the first.
    open: BTreeMap<u64, (Arc<Connection>, AbortHandle)>,
    /// The numbers of those that have not called when they were last looked at.
    silent: BTreeSet<u64>,
    /// How many of the open ones were told to leave.
    leaving: usize,
    /// Accepted, and served as soon as there is room.
    waiting: Option<UnixStream>,
}

impl Connections {
    /// Serves `routes`, to at most so many connections at a time.
    pub(super) fn new(routes: Routes, metrics: Arc<Metrics>, most: usize, stop: Stop) -> Self {
        Self {
            routes: routes.prepare(),
            metrics,
            stop,
            most,
            full: false,
            accepted: 0,
            tasks: JoinSet::new(),
            numbers: HashMap::new(),
            open: BTreeMap::new(),
            silent: BTreeSet::new(),
            leaving: 0,
            waiting: None,
        }
    }

    /// Accepts connections until this is dropped. Those that it has accepted go on.
    pub(super) async fn accept(&mut self, listener: &UnixListener) -> Infallible {
        loop {
            if self.waiting.is_none() {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    // A connection that ended keeps the memory of its task until this is taken.
                    Some(ended) = self.tasks.join_next_with_id() => {
                        self.forget(ended);
                        continue;
                    }
                };
                // A failure to accept, for want of file descriptors say, does not end the server.
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

    /// Done when every connection has ended: each does, once it is time to stop and its calls have their answers.
    pub(super) async fn closed(&mut self) {
        self.waiting = None;
        while let Some(ended) = self.tasks.join_next_with_id().await {
            self.forget(ended);
        }
    }

    fn open(&mut self, stream: UnixStream) {
        let number = self.accepted;
        self.accepted += 1;
        let connection = Arc::new(Connection::new());
        let front = Front::new(self.routes.clone(), Arc::clone(&self.metrics), Arc::clone(&connection));
        let task = self.tasks.spawn(serve(stream, front, Arc::clone(&connection), self.stop.clone()));
        self.numbers.insert(task.id(), number);
        self.open.insert(number, (connection, task));
        self.silent.insert(number);
    }

    /// Done when there is room for one connection more. Those that were told to leave do not count, as far as they are
    /// not too many themselves.
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

    /// Closes a connection without a running call, if there is one to close.
    ///
    /// Sidecars connect when they start, and call. So first come connections that never called, the oldest first, each
    /// with its time to do so, and only then the youngest of those that did.
    fn close_one(&mut self) -> bool {
        while let Some(number) = self.silent.first().copied() {
            match self.open.get(&number) {
                Some((oldest, _)) if !oldest.has_called() && oldest.since.elapsed() < NEW => return false,
                // Nothing was begun here that a client would miss.
                Some((oldest, task)) if !oldest.has_called() => {
                    task.abort();
                    self.remove(number);
                    return true;
                }
                _ => self.silent.remove(&number),
            };
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
        self.silent.remove(&number);
        let removed = self.open.remove(&number);
        self.leaving -= usize::from(removed.is_some_and(|(open, _)| open.is_leaving()));
    }
}

/// Serves a connection to its end. It is told to end (GOAWAY) when it is time to stop, or to make room; if it does not,
/// it is cut off as soon as none of its calls runs.
async fn serve(stream: UnixStream, front: Front, connection: Arc<Connection>, stop: Stop) {
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MOST)
        .serve_connection(TokioIo::new(Repaired::new(stream)), front);
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
                () = unused(&connection.calls) => Ok(()),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection ended: {error}");
    }
}

/// Done when no call runs, and none did a moment ago: the last answer has had its time to leave.
async fn unused(calls: &InFlight) {
    loop {
        calls.none().await;
        sleep(FAREWELL).await;
        if calls.is_zero() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_that_ended_is_forgotten_while_no_other_comes() {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
        let stop = Stop::when(std::future::pending());
        let mut connections = Connections::new(Routes::default(), Arc::default(), 8, stop);
        drop(UnixStream::connect(directory.path().join("socket")).await.unwrap());
        let end = Instant::now() + Duration::from_secs(20);
        while connections.accepted == 0 || !connections.tasks.is_empty() || !connections.open.is_empty() {
            assert!(Instant::now() < end, "{} tasks", connections.tasks.len());
            drop(tokio::time::timeout(Duration::from_millis(20), connections.accept(&listener)).await);
        }
        assert!(connections.numbers.is_empty() && connections.silent.is_empty());
    }
}
