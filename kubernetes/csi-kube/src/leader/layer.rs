use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response};
use tower::{Layer, Service};

use super::leadership::{Leadership, State};
use crate::error::Error;

/// Refuses calls of the services that only a leader serves, with UNAVAILABLE: Controller, GroupController and
/// SnapshotMetadata. From [`Leadership::layer`](crate::Leadership::layer).
#[derive(Clone)]
pub struct LeaderLayer(Arc<State>);

impl Leadership {
    /// Returns a layer for `Plugin::layer` that refuses the calls of the controller services once the
    /// leadership is over. [`Election::run`](super::Election::run) adds it.
    pub fn layer(&self) -> LeaderLayer {
        LeaderLayer(Arc::clone(&self.state))
    }
}

impl<S> Layer<S> for LeaderLayer {
    type Service = LeaderOnly<S>;

    fn layer(&self, calls: S) -> LeaderOnly<S> {
        LeaderOnly { state: Arc::clone(&self.0), calls }
    }
}

/// The calls behind a [`LeaderLayer`].
#[derive(Clone)]
pub struct LeaderOnly<S> {
    state: Arc<State>,
    calls: S,
}

/// The methods of these services are not refused: they say who the plugin is, and work on the own node.
const SERVED_BY_ALL: [&str; 2] = ["/csi.v1.Identity/", "/csi.v1.Node/"];

impl<S, A, B> Service<Request<A>> for LeaderOnly<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
    B: Default + Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.calls.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let path = request.uri().path();
        let is_for_leader =
            path.starts_with("/csi.v1.") && !SERVED_BY_ALL.iter().any(|start| path.starts_with(start));
        // The last check before the driver: the clock is asked, so a process that was frozen finds out here.
        if is_for_leader && !self.state.is_leader() {
            Box::pin(async { Ok(refusal()) })
        } else {
            Box::pin(self.calls.call(request))
        }
    }
}

/// gRPC's form of an answer that has a status only.
fn refusal<B: Default>() -> Response<B> {
    const UNAVAILABLE: HeaderValue = HeaderValue::from_static("14");
    let mut answer = Response::new(B::default());
    let headers = answer.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", UNAVAILABLE);
    if let Ok(text) = HeaderValue::from_str(&Error::NotLeading.to_string()) {
        headers.insert("grpc-message", text);
    }
    answer
}

impl fmt::Debug for LeaderLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderLayer").finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for LeaderOnly<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderOnly").finish_non_exhaustive()
    }
}
