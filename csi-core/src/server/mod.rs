//! Serves a plugin on a unix socket, with registration, health, metrics, and shutdown.
//!
//! It serves an adapter with its settings on an endpoint, and imports the adapters, the call
//! counters, and the Identity service for the plugin's health. It does not know how a plugin is built.

mod connection;
mod connections;
mod descriptors;
mod error;
#[cfg(feature = "http")]
pub(crate) mod exposition;
mod extension;
mod front;
#[cfg(feature = "grpc-health")]
mod grpc_health;
#[cfg(any(feature = "http", feature = "grpc-health"))]
mod health;
#[cfg(feature = "http")]
mod http;
pub(crate) mod local;
#[cfg(feature = "http")]
mod openmetrics;
#[cfg(feature = "http")]
mod process;
#[cfg(feature = "grpc-reflection")]
mod reflection;
mod registration;
mod services;
mod settings;
mod socket;
pub(crate) mod stop;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::{Endpoint, v1};
use tokio::net::UnixListener;
use tokio::task::JoinSet;

pub(crate) use error::Failure;
pub use error::ServeError;
#[cfg(feature = "http")]
pub(crate) use exposition::OwnMetrics;
#[cfg(feature = "http")]
pub use exposition::PluginMetrics;
pub(crate) use extension::Extension;
pub(crate) use local::LocalCalls;
pub use registration::Registration;
pub use services::CallService;
pub(crate) use settings::Settings;
pub use settings::SocketRemoval;
pub(crate) use stop::{Ended, Stop};

use crate::adapters::Adapter;
use connections::{Connections, FAREWELL};
use registration::Registrar;
use services::Services;
use socket::{Lost, Socket};

/// How often to check whether the plugin's socket still exists.
const WATCH: Duration = Duration::from_secs(1);

/// How often memory that calls have left is given back. It takes some hundred microseconds.
#[cfg(all(feature = "mount", target_os = "linux"))]
const TRIM_INTERVAL: Duration = Duration::from_secs(20);

/// Serves until `stop`, then lets running operations finish within the grace period. `at_start` runs once
/// the plugin serves.
pub(crate) async fn serve(
    adapter: Adapter,
    extension: Extension,
    settings: &Settings,
    endpoint: &Endpoint,
    stop: Stop,
    at_start: Option<Box<dyn FnOnce() + Send>>,
) -> (Ended, Result<(), ServeError>) {
    let served = match Served::start(&adapter, extension, settings, endpoint, &stop).await {
        Ok(started) => started,
        Err(error) => return (Ended::Idle, Err(error)),
    };
    // Runs in parallel with the first calls, which need not wait for it.
    at_start.map(tokio::task::spawn_blocking);
    #[cfg(all(feature = "mount", target_os = "linux"))]
    let _trimming = {
        let mut trimming = JoinSet::new();
        trimming.spawn(trim_after_calls(adapter.clone()));
        trimming
    };
    let result = served.until_stopped(&adapter, settings, &stop).await;
    tracing::info!("stopped");
    let ended = if adapter.0.path.running.list().is_some() { Ended::Running } else { Ended::Idle };
    (ended, result)
}

/// A plugin that has started. Everything else that it serves ends when this is dropped.
struct Served {
    path: PathBuf,
    socket: Socket,
    listener: UnixListener,
    connections: Connections,
    registering: JoinSet<Result<(), ServeError>>,
    #[cfg(feature = "http")]
    _health_and_metrics: JoinSet<()>,
}

impl Served {
    async fn start(
        adapter: &Adapter,
        extension: Extension,
        settings: &Settings,
        endpoint: &Endpoint,
        stop: &Stop,
    ) -> Result<Self, ServeError> {
        let metrics = &adapter.0.path.metrics;
        let calls = extension.apply(services(adapter)?);
        // The port is opened before the socket exists: a caller that finds the socket finds the port too.
        #[cfg(feature = "http")]
        let health_and_metrics = serve_http(settings, adapter, stop).await?;
        let (socket, listener) = Socket::bind(endpoint.path(), settings.socket_mode)?;
        let mut registering = JoinSet::new();
        if let Some(registration) = settings.registration.clone() {
            // The kubelet calls as soon as it finds the plugin, so the plugin's socket already exists here.
            let registrar =
                Registrar::bind(registration, settings.registered.clone(), &adapter.0.info.name, endpoint)?;
            registering.spawn(registrar.serve(Arc::clone(metrics), stop.clone()));
        }
        let most = descriptors::connection_limit(settings.max_connections);
        settings.served.send_replace(Some(calls.service.clone()));
        let connections = Connections::new(calls, Arc::clone(metrics), most, stop.clone());
        tracing::info!(endpoint = %endpoint, max_connections = most, "serving");
        Ok(Self {
            path: endpoint.path().to_owned(),
            socket,
            listener,
            connections,
            registering,
            #[cfg(feature = "http")]
            _health_and_metrics: health_and_metrics,
        })
    }

    async fn until_stopped(
        mut self,
        adapter: &Adapter,
        settings: &Settings,
        stop: &Stop,
    ) -> Result<(), ServeError> {
        let mut result = self.accept(settings, stop).await;
        // From here on, new callers are refused. A failure of the server itself is a reason to stop too.
        drop(self.listener);
        stop.request();
        let path = &adapter.0.path;
        let finished = async {
            self.connections.closed().await;
            // Callers can have left; their operations continue, because they will ask for them again.
            path.idle().await;
        };
        let told = async {
            tokio::time::sleep(FAREWELL).await;
            if let Some(running) = path.running.list() {
                tracing::info!("waits at most {:?} for what runs: {running}", settings.grace);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = finished => {}
            () = told => {}
            () = stop.grace_period_end(settings.grace) => match path.running.list() {
                Some(running) => tracing::warn!("stops while this runs, and a retry continues it: {running}"),
                None => tracing::debug!("stops with connections open that have no call"),
            }
        }
        self.connections.close().await;
        if let Some(Ok(Err(refused))) = self.registering.join_next().await {
            result = Err(refused);
        }
        drop(self.socket);
        result
    }

    /// Serves until the stop request.
    async fn accept(&mut self, settings: &Settings, stop: &Stop) -> Result<(), ServeError> {
        loop {
            let lost = tokio::select! {
                never = self.connections.accept(&self.listener) => match never {},
                () = stop.requested() => return Ok(()),
                lost = self.socket.wait_until_lost(WATCH) => lost,
            };
            match (lost, settings.socket_removal) {
                (Lost::Replaced, _) => return Err(Failure::SocketTaken(self.path.clone()).into()),
                (Lost::Removed, SocketRemoval::Stop) => {
                    return Err(Failure::SocketRemoved(self.path.clone()).into());
                }
                (Lost::Removed, SocketRemoval::Recreate) => {
                    let again = tokio::select! {
                        again = Socket::recreate(&self.path, settings.socket_mode, WATCH) => again,
                        () = stop.requested() => return Ok(()),
                    };
                    (self.socket, self.listener) = match again {
                        Err(error) if !error.is_socket_lost() => {
                            return Err(Failure::SocketTaken(self.path.clone()).into());
                        }
                        again => again?,
                    };
                }
            }
        }
    }
}

/// Gives the memory of past calls back to the kernel, as long as calls come.
#[cfg(all(feature = "mount", target_os = "linux"))]
async fn trim_after_calls(adapter: Adapter) {
    csi_mount::trim_heap();
    let path = &adapter.0.path;
    let mut trimmed_at = path.calls();
    loop {
        tokio::time::sleep(TRIM_INTERVAL).await;
        let calls = path.calls();
        if calls == trimmed_at {
            continue;
        }
        let is_quiet = path.running.list().is_none();
        let _ = tokio::task::spawn_blocking(csi_mount::trim_heap).await;
        // What runs now leaves its memory later.
        if is_quiet {
            trimmed_at = calls;
        }
    }
}

/// The services of the CSI socket, without the driver's own.
fn services(adapter: &Adapter) -> Result<Services, ServeError> {
    let services = Services::default()
        .add(v1::identity_server::IdentityServer::new(adapter.clone()))
        .add(v1::controller_server::ControllerServer::new(adapter.clone()))
        .add(v1::group_controller_server::GroupControllerServer::new(adapter.clone()))
        .add(v1::snapshot_metadata_server::SnapshotMetadataServer::new(adapter.clone()))
        .add(v1::node_server::NodeServer::new(adapter.clone()));
    #[cfg(feature = "grpc-health")]
    let services = services.add(grpc_health::service(&adapter.0));
    #[cfg(feature = "grpc-reflection")]
    let services = reflection::add(services, &adapter.0)?;
    Ok(services)
}

#[cfg(feature = "http")]
async fn serve_http(settings: &Settings, adapter: &Adapter, stop: &Stop) -> Result<JoinSet<()>, ServeError> {
    let mut serving = JoinSet::new();
    if let Some(address) = settings.http_address {
        let listener = http::bind(address).await?;
        // Port 0 means any port: this finds out which one it is.
        let address = listener.local_addr().unwrap_or(address);
        tracing::info!(%address, "serves health and metrics");
        serving.spawn(http::serve(
            listener,
            adapter.0.clone(),
            settings.own_metrics.clone().into(),
            stop.clone(),
        ));
    }
    Ok(serving)
}
