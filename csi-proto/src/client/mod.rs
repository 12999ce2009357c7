//! A client of a plugin's socket, for tests and tools: [`Client`] makes the calls, and [`VolumeUse`] knows the
//! requests of a volume's life and their order.
//!
//! ```no_run
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! use csi_proto::client::Client;
//! use csi_proto::v1;
//! use std::time::Duration;
//!
//! let client = Client::new(&"unix:///run/csi/csi.sock".parse()?);
//! client.ready(Duration::from_secs(30)).await?;
//! let info = client.call(v1::NodeGetInfoRequest {}).await?;
//! println!("{}", info.node_id);
//! # Ok(()) }
//! ```

pub(crate) mod calls;
mod requests;
mod volume;

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::codegen::http::Uri;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, IntoRequest, Request, Status};
use v1::snapshot_metadata_client::SnapshotMetadataClient;

use crate::{Endpoint, RpcRequest, Service, escape, v1};

pub use volume::{Target, VolumeUse};

const PAUSE: Duration = Duration::from_millis(10);
/// A limit without an end: 100 years. No clock counts to the end of `Duration::MAX`.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
const TIMEOUT: &str = "grpc-timeout";

/// The transport of [`Client::snapshot_metadata`].
pub type Transport = InterceptedService<Channel, Deadline>;

/// A client of one plugin's socket. It connects at the first call, and again after the connection is lost;
/// clones share the connection.
#[derive(Debug, Clone)]
pub struct Client {
    transport: Transport,
    channel: Channel,
}

impl Client {
    /// Creates a client of the plugin at this endpoint. Its calls have a deadline of two minutes, like the
    /// kubelet's, unless [`deadline`](Self::deadline) sets another.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(endpoint: &Endpoint) -> Self {
        let path = endpoint.path().to_owned();
        // The name is a placeholder for a host; a unix socket has none.
        let channel = tonic::transport::Endpoint::from_static("http://localhost")
            .connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
                let path = path.clone();
                async move { connect(&path).await }
            }));
        Self {
            transport: InterceptedService::new(channel.clone(), Deadline(Duration::from_secs(120))),
            channel,
        }
    }

    /// Sets the deadline of each call. The plugin receives it, and the client stops waiting then; an
    /// operation that the plugin has started continues. A request with its own deadline
    /// ([`set_timeout`](tonic::Request::set_timeout)) keeps it.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self {
            transport: InterceptedService::new(self.channel.clone(), Deadline(deadline.min(LONGEST))),
            ..self
        }
    }

    /// Waits until the plugin's Probe reports that it is ready.
    ///
    /// # Errors
    /// [`NotReady`] after this time, or at once if the plugin reports that it failed.
    pub async fn ready(&self, within: Duration) -> Result<(), NotReady> {
        let end = Instant::now() + within.min(LONGEST);
        let mut last = "it did not answer".to_owned();
        loop {
            match timeout_at(end, self.call(v1::ProbeRequest {})).await {
                Ok(Ok(answer)) if answer.ready != Some(false) => return Ok(()),
                Ok(Ok(_)) => last = "it is still starting".to_owned(),
                Ok(Err(status)) if status.code() == Code::FailedPrecondition => {
                    let why = escape::terminal(status.message());
                    return Err(NotReady(format!("it is not healthy: {why}")));
                }
                Ok(Err(status)) => last = explain(&status),
                Err(_) => return Err(NotReady(format!("not in {within:?}: {last}"))),
            }
            sleep(PAUSE.min(end.saturating_duration_since(Instant::now()))).await;
            if Instant::now() >= end {
                return Err(NotReady(format!("not in {within:?}: {last}")));
            }
        }
    }

    /// Makes a call, and returns its answer. The type of the request chooses the RPC. A
    /// [`tonic::Request`] around it can have metadata and a deadline of its own: `call::<v1::ProbeRequest>(request)`.
    ///
    /// # Errors
    /// The driver's status, or why the call did not reach it; [`explain`] has both as text. UNIMPLEMENTED,
    /// without a call, for an RPC that answers with a stream: use [`snapshot_metadata`](Self::snapshot_metadata).
    pub async fn call<R: RpcRequest>(&self, request: impl IntoRequest<R>) -> Result<R::Answer, Status> {
        let rpc = R::RPC;
        if rpc.service() == Service::SnapshotMetadata {
            return Err(Status::unimplemented(format!(
                "{rpc} answers with a stream: call snapshot_metadata()"
            )));
        }
        let mut grpc = tonic::client::Grpc::new(self.transport.clone());
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let path = format!("/csi.v1.{}/{rpc}", rpc.service());
        let path = path.parse().map_err(|_| Status::internal(format!("the path {path}")))?;
        let codec = tonic_prost::ProstCodec::default();
        Ok(grpc.unary(request.into_request(), path, codec).await?.into_inner())
    }

    /// Returns a client of the SnapshotMetadata service.
    pub fn snapshot_metadata(&self) -> SnapshotMetadataClient<Transport> {
        SnapshotMetadataClient::new(self.transport.clone())
    }

    /// Returns the connection, for other services on the same socket, and for the clients of tonic
    /// ([`v1::node_client`] and so on); its calls have no deadline.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }
}

async fn connect(path: &Path) -> std::io::Result<TokioIo<UnixStream>> {
    UnixStream::connect(path)
        .await
        .map(TokioIo::new)
        .map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Formats a status as text: its code, its message, and, if the call did not reach the plugin, why. The
/// message comes from the plugin: escape it with [`escape::terminal`] before printing it on a terminal.
pub fn explain(status: &Status) -> String {
    let mut text = format!("{:?}: {}", status.code(), status.message());
    let mut next = std::error::Error::source(status);
    while let Some(cause) = next {
        let words = cause.to_string();
        // A status repeats its causes, and an error of the connection that of the system.
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        next = cause.source();
    }
    text
}

/// Sets the deadline of each call that has none.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Duration);

impl Interceptor for Deadline {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if request.metadata().get(TIMEOUT).is_none() {
            request.set_timeout(self.0);
        }
        Ok(request)
    }
}

/// The plugin did not become ready; the text says why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReady(String);

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the plugin is not ready: {}", self.0)
    }
}

impl Error for NotReady {}
