//! Puts each call of a driver into the trace of its caller.
//!
//! The caller sends its place in a trace as the metadata `traceparent` ([W3C Trace Context]). The span of the call gets
//! it as its parent, and so does all that the driver does for the call. docs/metrics.md says how it is exported.
//!
//! [W3C Trace Context]: https://docs.rs/opentelemetry_sdk/latest/opentelemetry_sdk/propagation/

use std::convert::Infallible;

use csi_core::server::CallService;
use hyper::{HeaderMap, Request, Response};
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tonic::body::Body;
use tower::util::BoxCloneSyncService;
use tower::{ServiceExt as _, service_fn};
use tracing::Instrument as _;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// Use it as `Plugin::layer(tower::layer::layer_fn(traced::in_callers_trace))`.
pub fn in_callers_trace(
    calls: CallService,
) -> BoxCloneSyncService<Request<Body>, Response<Body>, Infallible> {
    let propagator = TraceContextPropagator::new();
    BoxCloneSyncService::new(service_fn(move |request: Request<Body>| {
        let span = tracing::info_span!("grpc", method = request.uri().path());
        // Without a subscriber for OpenTelemetry there is no trace to be a part of.
        let _ = span.set_parent(propagator.extract(&Metadata(request.headers())));
        calls.clone().oneshot(request).instrument(span)
    }))
}

/// The metadata of a call, as text.
struct Metadata<'a>(&'a HeaderMap);

impl Extractor for Metadata<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(hyper::header::HeaderName::as_str).collect()
    }
}
