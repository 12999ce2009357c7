//! What a driver adds to the server: gRPC services of its own, and layers around all calls.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use csi_proto::{Rpc, escape};
use hyper::body::{Bytes, Frame, SizeHint};
use hyper::header::HeaderMap;
use hyper::{Request, Response};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Code, Status};

use super::services::{CallService, Services, service_of};
use crate::call::Arrival;
use crate::count::Counted;

type Wrap = Box<dyn FnOnce(CallService) -> CallService + Send>;

/// Services and layers of the driver, in the order in which they were added.
#[derive(Default)]
pub(crate) struct Extension {
    /// By their names.
    pub(crate) services: Vec<(&'static str, CallService)>,
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
    pub(super) fn apply(self, mut services: Services) -> Calls {
        let mut own = Vec::new();
        for (name, service) in self.services {
            own.push(name);
            services.insert(name, service);
        }
        let calls = CallService::new(Recoded(Arc::new(services)));
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
        service_of(path).is_some_and(|name| self.own.contains(&name))
    }
}

/// The services. If gRPC's own layer refuses a call of the spec, its code is corrected.
#[derive(Clone)]
struct Recoded(Arc<Services>);

impl Service<Request<Body>> for Recoded {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    /// Each call waits for its own service.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let arrival = request.extensions().get::<Arrival>().cloned();
        let uri = request.uri().clone();
        let is_ours = Rpc::from_path(uri.path()).is_some();
        let answer = self.0.answer(request);
        Box::pin(async move {
            let mut response = answer.await?;
            if !is_ours && lacks_message(response.headers()) {
                let text = format!("this plugin has no method {}", uri.path());
                return Ok(Status::unimplemented(escape::message(&text)).into_http());
            }
            if is_ours && !arrival.is_some_and(|arrival| arrival.is_whole()) {
                recode(response.headers_mut());
            }
            Ok(response)
        })
    }
}

/// Whether this is the answer of gRPC's own layer to a method that it does not know, such as one of a later spec.
// spec: errors.message
fn lacks_message(headers: &HeaderMap) -> bool {
    let status = Status::from_header_map(headers);
    status.is_some_and(|status| status.code() == Code::Unimplemented && status.message().is_empty())
}

/// Replaces the code of an answer from gRPC's own layer with one that callers interpret correctly.
///
/// That layer answers OUT_OF_RANGE to a message that is too long, which external-provisioner and
/// external-resizer interpret as an impossible volume size, and INTERNAL to a message that it can't parse.
fn recode(headers: &mut HeaderMap) {
    let Some(status) = Status::from_header_map(headers) else { return };
    let better = match status.code() {
        Code::OutOfRange => Code::ResourceExhausted,
        Code::Internal => Code::InvalidArgument,
        other => other,
    };
    headers.insert(Status::GRPC_STATUS, (better as i32).into());
}

/// The body of an answer that is still being sent: until its end the call counts as running.
pub(super) struct Sending {
    pub(super) body: Body,
    pub(super) _running: Counted,
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
