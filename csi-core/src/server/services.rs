//! The gRPC services of one socket, by name.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::Bytes;
use hyper::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, StdError};
use tonic::server::NamedService;

/// The answer to a call, as soon as it begins.
type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// All calls of the plugin's socket as one service: what a [`Plugin::layer`](crate::Plugin::layer) wraps.
pub struct CallService(Box<dyn Calls>);

/// A service of any type, with any body in its answers.
pub(crate) trait Calls: Send + Sync {
    fn copy(&self) -> Box<dyn Calls>;
    fn ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>>;
    fn answer(&mut self, request: Request<Body>) -> Answer;
}

impl<S, B> Calls for S
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError>,
{
    fn copy(&self) -> Box<dyn Calls> {
        Box::new(self.clone())
    }

    fn ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.poll_ready(context)
    }

    fn answer(&mut self, request: Request<Body>) -> Answer {
        let answer = self.call(request);
        Box::pin(async move { Ok(answer.await?.map(Body::new)) })
    }
}

impl CallService {
    pub(crate) fn new(service: impl Calls + 'static) -> Self {
        Self(Box::new(service))
    }

    /// Answers one call, as soon as the service is ready for it.
    pub(super) async fn once(mut self, request: Request<Body>) -> Result<Response<Body>, Infallible> {
        poll_fn(|context| self.0.ready(context)).await?;
        self.0.answer(request).await
    }
}

impl Clone for CallService {
    fn clone(&self) -> Self {
        Self(self.0.copy())
    }
}

impl fmt::Debug for CallService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallService")
    }
}

impl Service<Request<Body>> for CallService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.0.answer(request)
    }
}

/// The services of one socket.
#[derive(Default)]
pub(super) struct Services(HashMap<&'static str, CallService>);

impl Services {
    /// Adds the server that tonic generates for a service.
    pub(super) fn add<S: Calls + NamedService + 'static>(mut self, service: S) -> Self {
        self.insert(S::NAME, CallService::new(service));
        self
    }

    pub(super) fn insert(&mut self, name: &'static str, service: CallService) {
        self.0.insert(name, service);
    }

    /// The answer of the service that the path of the request names.
    pub(super) fn answer(&self, request: Request<Body>) -> Answer {
        let service = service_of(request.uri().path()).and_then(|name| self.0.get(name));
        match service.cloned() {
            Some(service) => Box::pin(service.once(request)),
            None => Box::pin(async { Ok(Status::unimplemented("").into_http()) }),
        }
    }
}

/// The name of the service in a path of gRPC: `/service/method`.
pub(super) fn service_of(path: &str) -> Option<&str> {
    let (service, _) = path.strip_prefix('/')?.split_once('/')?;
    Some(service)
}
