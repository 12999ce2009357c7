//! Services and layers of the driver's own, on the plugin's socket.

use std::convert::Infallible;

use hyper::body::Bytes;
use hyper::{Request, Response};
use tonic::body::Body;
use tonic::codegen::{Service, StdError};
use tonic::server::NamedService;
use tower_layer::Layer;

use super::Plugin;
use crate::server::CallService;

impl Plugin {
    /// Serves one more gRPC service on the plugin's socket, for example the driver's own management calls. It
    /// takes the server that tonic generates.
    ///
    /// Its calls have the socket's limits, their callers' deadlines and the layers of [`layer`](Self::layer).
    /// A stop waits for them, as long as the grace period allows. Unlike an operation of the spec, a call
    /// ends when its caller gives up. `/metrics` does not count it. [`Mode`](crate::Mode) does not apply.
    ///
    /// A service of the spec (`csi.v1.…`), or one that is added twice, is refused at the start
    /// ([`ServeError`](crate::server::ServeError)).
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use csi_core::{Plugin, proto::pluginregistration::registration_server::{Registration, RegistrationServer}};
    /// # fn serve<Nvme: Registration>(nvme: Nvme) -> Plugin {
    /// Plugin::new("driver.csi.example.org", "1").service(RegistrationServer::new(nvme))
    /// # }
    /// ```
    #[must_use]
    pub fn service<S>(mut self, service: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        self.extension.services.push((S::NAME, CallService::new(service)));
        self
    }

    /// Puts a tower layer around all calls of the socket: tracing, authorization, an interceptor of tonic.
    /// The layer that is added first sees a call first.
    ///
    /// A layer runs within the caller's deadline, before the request is read. It sees the retry of a call as
    /// one more call, although the retry joins the running operation. A code that a layer answers reaches the
    /// caller unchanged, so choose it by the RPC: callers act on codes. A layer must keep the request's
    /// extensions.
    ///
    /// ```
    /// use csi_core::Plugin;
    /// use tonic::{Request, Status, service::InterceptorLayer};
    ///
    /// let plugin = Plugin::new("driver.csi.example.org", "1");
    /// let plugin = plugin.layer(InterceptorLayer::new(|request: Request<()>| {
    ///     match request.metadata().contains_key("x-tenant") {
    ///         true => Ok(request),
    ///         false => Err(Status::permission_denied("x-tenant is missing")),
    ///     }
    /// }));
    /// ```
    #[must_use]
    pub fn layer<L, B>(mut self, layer: L) -> Self
    where
        L: Layer<CallService> + Send + 'static,
        L::Service: Service<Request<Body>, Response = Response<B>, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        <L::Service as Service<Request<Body>>>::Future: Send + 'static,
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<StdError>,
    {
        self.extension.layers.push(Box::new(move |calls| CallService::new(layer.layer(calls))));
        self
    }
}
