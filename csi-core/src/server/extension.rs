//! What a driver adds to the server: gRPC services of its own, and layers around all calls.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Bytes, Frame, SizeHint};
use hyper::{Request, Response};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::service::Routes;
use tower::util::BoxCloneSyncService;

use super::front::recode;
use crate::Rpc;
use crate::call::{Arrival, RunningCall};

/// All calls of the plugin's socket as one service: what a [`Plugin::layer`](crate::Plugin::layer) wraps.
pub type CallService = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

type AddService = Box<dyn FnOnce(Routes) -> Routes + Send>;
type Wrap = Box<dyn FnOnce(CallService) -> CallService + Send>;

/// Services and layers of the driver, in the order in which they were added.
#[derive(Default)]
pub(crate) struct Extension {
    /// By their names.
    pub(crate) services: Vec<(&'static str, AddService)>,
    /// The first one is the outermost.
    pub(crate) layers: Vec<Wrap>,
}

impl Extension {
    /// # Errors
    /// A service that the plugin itself serves, or that was added twice.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (place, (name, _)) in self.services.iter().enumerate() {
            if name.starts_with("csi.v1.") || BUILT_IN.contains(name) {
                return Err(format!("the plugin itself serves {name}: leave out service() for it"));
            }
            if self.services[..place].iter().any(|(other, _)| other == name) {
                return Err(format!("{name} is served twice: call service() once for it"));
            }
        }
        Ok(())
    }

    /// Adds the services, puts the layers around all calls, and returns the names of the services.
    pub(super) fn apply(self, mut routes: Routes) -> Calls {
        let mut own = Vec::new();
        for (name, add) in self.services {
            own.push(name);
            routes = add(routes);
        }
        let calls = CallService::new(Recoded(routes.prepare()));
        Calls { service: self.layers.into_iter().rev().fold(calls, |calls, wrap| wrap(calls)), own }
    }
}

/// Services that a feature of this crate adds.
const BUILT_IN: &[&str] = &[
    #[cfg(feature = "grpc-health")]
    "grpc.health.v1.Health",
    #[cfg(feature = "grpc-reflection")]
    "grpc.reflection.v1.ServerReflection",
    #[cfg(feature = "grpc-reflection")]
    "grpc.reflection.v1alpha.ServerReflection",
];

impl fmt::Debug for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.services.iter().map(|(name, _)| name)).finish()
    }
}

/// Everything that the socket serves.
#[derive(Clone)]
pub(super) struct Calls {
    pub(super) service: CallService,
    /// The names of the driver's own services.
    own: Vec<&'static str>,
}

impl Calls {
    /// Whether the path is a method of a service that the driver added.
    pub(super) fn are_own(&self, path: &str) -> bool {
        let service = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        service.is_some_and(|(name, _)| self.own.contains(&name))
    }
}

/// The services. If gRPC's own layer refuses a call of the spec, its code is corrected.
#[derive(Clone)]
struct Recoded(Routes);

impl Service<Request<Body>> for Recoded {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Body>>::poll_ready(&mut self.0, context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let arrival = request.extensions().get::<Arrival>().cloned();
        let is_ours = Rpc::from_path(request.uri().path()).is_some();
        let answer = self.0.call(request);
        Box::pin(async move {
            let mut response = answer.await?;
            if is_ours && !arrival.is_some_and(|arrival| arrival.is_whole()) {
                recode(response.headers_mut());
            }
            Ok(response)
        })
    }
}

/// The body of an answer that is still being sent: until its end the call counts as running.
pub(super) struct Sending {
    pub(super) body: Body,
    pub(super) _running: RunningCall,
}

impl hyper::body::Body for Sending {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
