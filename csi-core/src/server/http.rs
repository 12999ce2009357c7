//! Health and metrics over HTTP, for the kubelet's probes and for Prometheus.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::health::{self, Health};
use super::{ServeError, Stop, exposition};
use crate::adapters::Core;

/// How many connections are served at a time; others wait.
const CONNECTIONS_MOST: usize = 64;
/// How long a client may take for the head of a request, and a connection may lie idle.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// How long to leave a failed accept alone.
const PAUSE: Duration = Duration::from_millis(100);

/// # Errors
/// [`ServeError::Http`] when nobody can listen there.
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Http { address, source })
}

/// Serves until it is dropped.
pub(super) async fn serve(listener: TcpListener, core: Arc<Core>, stop: Stop) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MOST));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let place = Arc::clone(&places).acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let (core, stop) = (Arc::clone(&core), stop.clone());
                connections.spawn(async move {
                    connection(stream, core, stop).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("can't accept a connection for health and metrics: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(stream: TcpStream, core: Arc<Core>, stop: Stop) {
    let service = service_fn(|request: Request<Incoming>| {
        let (core, stop) = (Arc::clone(&core), stop.clone());
        async move { Ok::<_, Infallible>(answer(&request, &core, &stop).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!("a connection for health and metrics ended: {error}");
    }
}

async fn answer(request: &Request<Incoming>, core: &Core, stop: &Stop) -> Response<Full<Bytes>> {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    }
    match request.uri().path() {
        "/healthz" => match health::ask(&core.identity).await {
            Health::Serving => text(StatusCode::OK, "ok\n"),
            Health::Starting => text(StatusCode::OK, "starting\n"),
            Health::Failed(why) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
        },
        // New calls are not taken any more, while those that run finish.
        "/readyz" if stop.is_requested() => text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
        "/readyz" => match health::ask(&core.identity).await {
            Health::Serving => text(StatusCode::OK, "ok\n"),
            Health::Starting => text(StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
            Health::Failed(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        "/metrics" => {
            let metrics = exposition::text(&core.path.metrics, &core.info);
            typed(StatusCode::OK, exposition::CONTENT_TYPE, metrics)
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
