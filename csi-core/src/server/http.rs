//! Health and metrics over HTTP, for the kubelet's probes and for Prometheus.
//!
//! A connection serves one request and has a time limit. When there are too many, an old connection of the
//! busiest peer is closed for a new one, so a client that sends no request, or does not read the answer,
//! can't block others.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use super::exposition::{self, OwnMetrics, PluginMetrics};
use super::health::{self, Health};
use super::{Failure, ServeError, Stop, descriptors, openmetrics};
use crate::adapters::Core;

/// How many connections are served at a time, if there are enough descriptors.
const MAX_CONNECTIONS: usize = 128;
/// The share of the descriptors for these connections is one in `PART`.
const PART: usize = 8;
/// How long a client can take to send the head of a request.
const HEAD: Duration = Duration::from_secs(2);
/// The maximum lifetime of a connection, including the probe and sending the answer to a slow reader.
const EXCHANGE: Duration = Duration::from_secs(5);
/// How long a new connection can't be closed to make room, so that its request can arrive. It also limits
/// how often a client that sends nothing is closed and reconnects.
const NEW: Duration = Duration::from_millis(200);
/// How often to check for room while no connection can be closed.
const LOOK: Duration = Duration::from_millis(5);
/// The pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

/// # Errors
/// [`ServeError`] when the server can't listen there.
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, ServeError> {
    let bound = match TcpListener::bind(address).await {
        Err(error) => match without_ipv6(address, &error) {
            Some(address) => TcpListener::bind(address).await,
            None => Err(error),
        },
        bound => bound,
    };
    bound.map_err(|source| Failure::Http { address, source }.into())
}

/// All addresses of a node without IPv6, if all addresses were asked for.
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let has_none = error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error());
    let is_all = address.ip() == Ipv6Addr::UNSPECIFIED;
    (has_none && is_all).then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

/// Serves until this future is dropped.
pub(super) async fn serve(listener: TcpListener, core: Arc<Core>, own: Arc<[OwnMetrics]>, stop: Stop) {
    let most = (descriptors::limit() / PART).clamp(1, MAX_CONNECTIONS);
    let mut exchanges = Exchanges::new(most);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(ended) = exchanges.tasks.join_next_with_id() => {
                exchanges.forget(ended);
                continue;
            }
        };
        match accepted {
            Ok((stream, peer)) => {
                exchanges.make_room().await;
                let about_health = Arc::new(AtomicBool::new(false));
                let exchange = exchange(
                    stream,
                    Arc::clone(&core),
                    Arc::clone(&own),
                    stop.clone(),
                    Arc::clone(&about_health),
                );
                exchanges.begin(peer.ip(), about_health, exchange);
            }
            Err(error) => {
                tracing::warn!("can't accept a connection for health and metrics: {error}");
                sleep(PAUSE).await;
            }
        }
    }
}

struct Open {
    number: u64,
    since: Instant,
    peer: IpAddr,
    /// Whether its request asks for health: such a connection is not closed to make room.
    about_health: Arc<AtomicBool>,
    task: AbortHandle,
}

struct Exchanges {
    most: usize,
    begun: u64,
    tasks: JoinSet<()>,
    open: HashMap<Id, Open>,
}

impl Exchanges {
    fn new(most: usize) -> Self {
        Self { most, begun: 0, tasks: JoinSet::new(), open: HashMap::new() }
    }

    fn begin(
        &mut self,
        peer: IpAddr,
        about_health: Arc<AtomicBool>,
        exchange: impl Future<Output = ()> + Send + 'static,
    ) {
        let task = self.tasks.spawn(exchange);
        let number = self.begun;
        let since = Instant::now();
        self.open.insert(task.id(), Open { number, since, peer, about_health, task });
        self.begun += 1;
    }

    /// Completes when there is room for one more connection.
    async fn make_room(&mut self) {
        loop {
            while let Some(ended) = self.tasks.try_join_next_with_id() {
                self.forget(ended);
            }
            if self.open.len() < self.most {
                return;
            }
            if self.close_one() {
                continue;
            }
            tokio::select! {
                Some(ended) = self.tasks.join_next_with_id() => self.forget(ended),
                () = sleep(LOOK) => {}
            }
        }
    }

    /// Closes the oldest connection of the peer with the most connections, unless it is new. Health
    /// requests are exempt.
    fn close_one(&mut self) -> bool {
        let mut peers: HashMap<IpAddr, usize> = HashMap::new();
        self.open.values().for_each(|open| *peers.entry(open.peer).or_default() += 1);
        let others = self.open.iter().filter(|(_, open)| !open.about_health.load(Relaxed));
        let worst = others.min_by_key(|(_, open)| (usize::MAX - peers[&open.peer], open.number));
        let Some((id, open)) = worst.filter(|(_, open)| open.since.elapsed() >= NEW) else { return false };
        open.task.abort();
        let id = *id;
        self.open.remove(&id);
        true
    }

    fn forget(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
        self.open.remove(&id);
    }
}

/// One request and its answer.
async fn exchange(
    stream: TcpStream,
    core: Arc<Core>,
    own: Arc<[OwnMetrics]>,
    stop: Stop,
    about_health: Arc<AtomicBool>,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let core = Arc::clone(&core);
        let own = Arc::clone(&own);
        let stop = stop.clone();
        about_health.store(["/healthz", "/readyz"].contains(&request.uri().path()), Relaxed);
        async move { Ok::<_, Infallible>(answer(&request, &core, &own, &stop).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(EXCHANGE, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("a connection for health and metrics ended: {error}"),
        Err(_) => tracing::debug!("a connection for health and metrics took longer than {EXCHANGE:?}"),
    }
}

async fn answer(
    request: &Request<Incoming>,
    core: &Core,
    own: &[OwnMetrics],
    stop: &Stop,
) -> Response<Full<Bytes>> {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    }
    match request.uri().path() {
        "/healthz" => match health::ask(&core.identity).await {
            Health::Serving => text(StatusCode::OK, "ok\n"),
            Health::Starting => text(StatusCode::OK, "starting\n"),
            Health::Failed(why) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
        },
        // No new calls are accepted while the running ones finish.
        "/readyz" if stop.is_requested() => text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
        "/readyz" => match health::ask(&core.identity).await {
            Health::Serving => text(StatusCode::OK, "ok\n"),
            Health::Starting => text(StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
            Health::Failed(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        "/metrics" => {
            let info = &core.info;
            let metrics =
                PluginMetrics::new(Arc::clone(&core.path.metrics), &info.name, &info.vendor_version);
            match exposition::text(&metrics, own) {
                Ok(metrics) => typed(StatusCode::OK, openmetrics::CONTENT_TYPE, metrics),
                Err(error) => text(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    format!("the driver's own metrics can't be written: {error}\n"),
                ),
            }
        }
        _ => text(StatusCode::NOT_FOUND, "there are /healthz, /readyz and /metrics\n"),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    typed(status, "text/plain; charset=utf-8", body)
}

fn typed(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_are_those_of_ipv4_where_there_is_no_ipv6() {
        let none = io::Error::from(Errno::AFNOSUPPORT);
        let all = "[::]:9808".parse().unwrap();
        assert_eq!(without_ipv6(all, &none), Some("0.0.0.0:9808".parse().unwrap()));
        assert_eq!(without_ipv6("[::1]:9808".parse().unwrap(), &none), None);
        assert_eq!(without_ipv6(all, &io::Error::from(Errno::ADDRINUSE)), None);
    }

    fn peer(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn numbers(exchanges: &Exchanges) -> Vec<u64> {
        let mut numbers: Vec<u64> = exchanges.open.values().map(|open| open.number).collect();
        numbers.sort_unstable();
        numbers
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_left_alone_while_it_is_new() {
        let mut exchanges = Exchanges::new(1);
        let begun = Instant::now();
        for _ in 0..3 {
            exchanges.make_room().await;
            exchanges.begin(peer(1), Arc::default(), std::future::pending());
        }
        assert_eq!(numbers(&exchanges), [2]);
        assert!(begun.elapsed() >= 2 * NEW, "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_of_the_peer_with_the_most_gives_way_and_health_does_not() {
        let mut exchanges = Exchanges::new(5);
        for (last, about_health) in [(1, false), (2, true), (2, false), (2, false), (3, false)] {
            let about_health = Arc::new(AtomicBool::new(about_health));
            exchanges.begin(peer(last), about_health, std::future::pending());
        }
        exchanges.make_room().await;
        assert_eq!(numbers(&exchanges), [0, 1, 3, 4], "the oldest of peer 2 that does not ask for health");
        exchanges.begin(peer(4), Arc::default(), std::future::pending());
        exchanges.make_room().await;
        assert_eq!(numbers(&exchanges), [0, 1, 4, 5]);
        exchanges.open.values().for_each(|open| open.about_health.store(true, Relaxed));
        exchanges.begin(peer(1), Arc::new(AtomicBool::new(true)), async {});
        exchanges.make_room().await;
        assert_eq!(numbers(&exchanges), [0, 1, 4, 5], "who asks for health is waited for");
    }
}
