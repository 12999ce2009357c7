//! The layer between a connection and the services: the caller's deadline, and the codes for requests that
//! are refused before they reach the call path.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use csi_proto::Rpc;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Request, Response};
use tonic::Status;
use tonic::body::Body;

use super::connection::Connection;
use super::extension::{Calls, Sending};
use crate::call::metrics::Metrics;

/// The services, as one connection reaches them.
pub(super) struct Front {
    calls: Calls,
    metrics: Arc<Metrics>,
    connection: Arc<Connection>,
}

impl Front {
    pub(super) fn new(calls: Calls, metrics: Arc<Metrics>, connection: Arc<Connection>) -> Self {
        Self { calls, metrics, connection }
    }
}

impl hyper::service::Service<Request<Incoming>> for Front {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let since = Instant::now();
        self.connection.is_called();
        let deadline = deadline(request.headers());
        let arrival = self.connection.arrival().until(deadline.and_then(|limit| since.checked_add(limit)));
        request.extensions_mut().insert(arrival.clone());
        let uri = request.uri().clone();
        let metrics = Arc::clone(&self.metrics);
        // A call of the driver's own services does not take the call path, which counts the others.
        let running = self.calls.are_own(uri.path()).then(|| arrival.begin());
        let answer = self.calls.service.clone().once(request.map(Body::new));
        Box::pin(async move {
            let response = match tokio::time::timeout(deadline.unwrap_or(Duration::MAX), answer).await {
                Ok(response) => response?,
                Err(_) => Status::deadline_exceeded("the caller's deadline is over").into_http(),
            };
            if !arrival.is_whole()
                && let Some(rpc) = Rpc::from_path(uri.path())
                && let Some(status) = Status::from_header_map(response.headers())
            {
                metrics.refused(rpc, status.code(), since.elapsed());
            }
            Ok(match running {
                Some(running) => response.map(|body| Body::new(Sending { body, _running: running })),
                None => response,
            })
        })
    }
}

/// The caller's time limit for a call, from the header `grpc-timeout`: up to eight digits and a unit (gRPC
/// over HTTP2).
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read_as_grpc_writes_them() {
        let read = |text: &'static str| {
            deadline(&HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), text.parse().unwrap())]))
        };
        assert_eq!(read("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(read("99999999M"), Some(Duration::from_secs(5_999_999_940)));
        assert_eq!(read("1S"), Some(Duration::from_secs(1)));
        assert_eq!(read("20m"), Some(Duration::from_millis(20)));
        assert_eq!(read("3u"), Some(Duration::from_micros(3)));
        assert_eq!(read("4n"), Some(Duration::from_nanos(4)));
        for bad in ["", "S", "1", "1s", "-1S", "100000000S", "1.5S"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
