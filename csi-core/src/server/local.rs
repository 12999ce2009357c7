//! The plugin's calls for a caller in the same process.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::{Request, Response};
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;

use super::services::CallService;
use crate::call::Arrival;
use crate::count::Count;

/// The calls of a plugin without a socket, for a caller in the same process: from
/// [`local_calls`](crate::internal::local_calls).
///
/// A call takes the same path as one from the socket: the plugin's layers, checks, log and metrics. It has no deadline;
/// a caller that stops waiting can repeat the call, which then waits for the running operation. Until the plugin
/// serves, a call waits.
#[derive(Clone)]
pub struct LocalCalls(watch::Receiver<Option<CallService>>);

impl LocalCalls {
    pub(crate) fn new(served: &watch::Sender<Option<CallService>>) -> Self {
        Self(served.subscribe())
    }
}

impl Service<Request<Body>> for LocalCalls {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let mut served = self.0.clone();
        // No connection counts this call. By the arrival the services tell the driver's answer from a refusal of
        // gRPC's own layer, whose code they correct.
        request.extensions_mut().insert(Arrival::new(Count::default()));
        Box::pin(async move {
            let calls = served.wait_for(Option::is_some).await.ok().and_then(|calls| calls.clone());
            match calls {
                Some(calls) => calls.once(request).await,
                None => Ok(Status::unavailable("the plugin does not serve").into_http()),
            }
        })
    }
}

impl fmt::Debug for LocalCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalCalls")
    }
}
