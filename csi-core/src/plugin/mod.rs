//! A whole plugin: its name, its services, and which of them this instance serves.
//!
//! A driver builds a [`Plugin`]. The plugin makes the offer and the adapter from its parts and hands them
//! to the server. This module imports everything below it; only the flags import it.

mod extension;
#[cfg(feature = "manifests")]
mod manifests;
#[cfg(all(feature = "clap", feature = "mount", target_os = "linux"))]
mod mounter;
mod run;
mod services;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use csi_proto::v1;

#[cfg(feature = "manifests")]
pub(crate) use manifests::DriverCommand;
#[cfg(all(feature = "clap", feature = "mount", target_os = "linux"))]
pub(crate) use mounter::{copy_program, serve_as_mounter};
#[cfg(feature = "clap")]
pub(crate) use run::exit_code;

use crate::adapters::{Adapter, Core};
use crate::admission::{Admission, Claims};
use crate::call::metrics::Metrics;
use crate::call::request::PluginContext;
use crate::call::{CallPath, PathGate};
use crate::capabilities::Declared;
use crate::controller::{Controller, ControllerService, ControllerTable};
use crate::group_controller::GroupController;
use crate::identity::{AlwaysReady, Identity};
use crate::mode::Mode;
use crate::node::{Node, NodeService, NodeTable};
use crate::offer::PluginService;
use crate::server::{Extension, Failure, Registration, ServeError, Settings, SocketRemoval};
use crate::snapshot_metadata::SnapshotMetadata;
use crate::types::Topology;

/// A CSI plugin: built by the driver, then served on a unix socket.
///
/// Build the whole plugin whatever the instance serves, then choose with [`mode`](Self::mode).
///
/// ```no_run
/// # use csi_core::node::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
/// # use csi_core::{Result, prelude::*};
/// # #[derive(Clone)] struct Driver;
/// # #[async_trait] impl Node for Driver {
/// #   async fn info(&self) -> Result<NodeInfo> { NodeInfo::new("node-1") }
/// #   async fn publish_volume(&self, _: NodePublishVolumeRequest) -> Result<()> { Ok(()) }
/// #   async fn unpublish_volume(&self, _: NodeUnpublishVolumeRequest) -> Result<()> { Ok(()) }
/// # }
/// #[tokio::main]
/// async fn main() -> std::process::ExitCode {
///     let node = NodeService::new(std::sync::Arc::new(Driver));
///     Plugin::new("driver.csi.example.org", env!("CARGO_PKG_VERSION")).node(node).run().await
/// }
/// ```
pub struct Plugin {
    pub(crate) name: String,
    vendor_version: String,
    identity: Arc<dyn Identity>,
    controller: Option<ControllerTable>,
    node: Option<NodeTable>,
    group_controller: Option<Arc<dyn GroupController>>,
    snapshot_metadata: Option<Arc<dyn SnapshotMetadata>>,
    pub(crate) declared: Declared,
    mode: Mode,
    #[cfg(all(feature = "mount", target_os = "linux"))]
    host: csi_mount::Host,
    admission: Arc<Admission>,
    metrics: Arc<Metrics>,
    extension: Extension,
    topologies: Vec<Topology>,
    #[cfg(feature = "manifests")]
    declare: Option<manifests::Declare>,
    pub(crate) settings: Settings,
    on_failure: Option<run::OnFailure>,
}

impl Plugin {
    /// Creates a plugin with this name and version. The spec requires the name to be a domain name that the
    /// vendor owns (`driver.csi.example.org`). The version is for people only.
    pub fn new(name: impl Into<String>, vendor_version: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            vendor_version: vendor_version.into(),
            identity: Arc::new(AlwaysReady),
            controller: None,
            node: None,
            group_controller: None,
            snapshot_metadata: None,
            declared: Declared::default(),
            mode: Mode::All,
            #[cfg(all(feature = "mount", target_os = "linux"))]
            host: csi_mount::Host::kernel(),
            admission: Arc::default(),
            metrics: Arc::default(),
            extension: Extension::default(),
            topologies: Vec::new(),
            #[cfg(feature = "manifests")]
            declare: None,
            settings: Settings::default(),
            on_failure: None,
        }
    }

    /// Returns the driver's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets what the driver adds to the Identity service: its health, and information for people.
    #[must_use]
    pub fn identity<D: Identity>(mut self, driver: Arc<D>) -> Self {
        self.identity = driver;
        self
    }

    /// Adds the plugin's Controller service.
    #[must_use]
    pub fn controller<D: Controller>(mut self, service: ControllerService<D>) -> Self {
        self.controller = Some(service.into_table());
        self
    }

    /// Adds the plugin's Node service.
    #[must_use]
    pub fn node<D: Node>(mut self, service: NodeService<D>) -> Self {
        let table = service.into_table();
        #[cfg(all(feature = "http", feature = "mount", target_os = "linux"))]
        if let Some(write) = table.metrics.clone() {
            self = self.metrics(move |out| write(out));
        }
        self.node = Some(table);
        self
    }

    /// Serves only this part of the plugin.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the permissions of the socket. The default is 0660. Any process that can write to the socket
    /// controls the driver.
    #[must_use]
    pub fn socket_mode(mut self, mode: u32) -> Self {
        self.settings.socket_mode = mode & 0o777;
        self
    }

    /// Sets what happens when the socket is removed. The default is [`SocketRemoval::Recreate`]. When
    /// another process puts its own socket in that place, the plugin stops in any case
    /// ([`ServeError`]).
    #[must_use]
    pub fn socket_removal(mut self, removal: SocketRemoval) -> Self {
        self.settings.socket_removal = removal;
        self
    }

    /// Sets how many connections the socket accepts at a time. The limit is at most a quarter of the file
    /// descriptors that the process is allowed to open (RLIMIT_NOFILE). The default is that quarter or
    /// 1024, whichever is less.
    ///
    /// At the limit an idle connection is closed to make room for a new one: first connections that never
    /// made a call, then the youngest. While all connections have running calls, new connections wait.
    #[must_use]
    pub fn max_connections(mut self, most: usize) -> Self {
        self.settings.max_connections = Some(most);
        self
    }

    /// Sets how long running operations are allowed to continue after a stop signal. The default is 30
    /// seconds. Connections without a call are closed within a second in any case.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    /// Adds a directory that belongs to the driver, where it keeps its volumes, records or sockets. A Node
    /// RPC with a path that is this directory, lies inside it or contains it, under any name, is refused
    /// (INVALID_ARGUMENT). Without this protection a mount on a wrong path can hide all volumes. The
    /// directory of the socket is always protected. A plugin with a relative path here does not start, and neither
    /// does a node plugin with a directory that contains one of its [`volume_roots`](Self::volume_roots).
    #[must_use]
    pub fn own_directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.own_directories.push(path.into());
        self
    }

    /// Sets the directories in which the orchestrator keeps target paths and staging directories. The
    /// default is the kubelet's directory as the paths of the [`Registration`] show it
    /// (`…/plugins_registry`, `…/plugins/NAME/csi.sock`), else `/var/lib/kubelet`. Leftovers of a volume that
    /// the driver no longer knows are unmounted in these directories only. An empty target of unknown origin is
    /// removed in these directories only. Neither these directories nor the directories in them that contain all
    /// volumes can be a target or staging path. A plugin with a relative path here does not start.
    #[must_use]
    pub fn volume_roots(mut self, roots: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.settings.volume_roots = Some(roots.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the host that the plugin's calls work on. The default is the kernel
    /// ([`Host::kernel`](csi_mount::Host::kernel)). A test of a driver can pass a simulated node, which needs no
    /// root.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    #[must_use]
    pub fn host(mut self, host: impl Into<csi_mount::Host>) -> Self {
        self.host = host.into();
        self
    }

    /// Registers the plugin with the kubelet of this node; no node-driver-registrar sidecar is needed.
    #[must_use]
    pub fn register(mut self, registration: Registration) -> Self {
        self.settings.registration = Some(registration);
        self
    }

    /// Completes when the kubelet has reported that it registered the plugin that this process serves. A former
    /// registration, such as one from before a reboot, does not count: the kubelet registers each new process.
    ///
    /// It never completes without [`register`](Self::register): a registrar in a container of its own gets the
    /// kubelet's report.
    pub fn registered(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut registered = self.settings.registered.subscribe();
        async move {
            if registered.wait_for(|is_registered| *is_registered).await.is_err() {
                // The plugin has ended.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Serves HTTP at this address; no livenessprobe sidecar is needed. `/healthz` is 200 while the
    /// plugin's [`probe`](crate::Identity::probe) does not fail. `/readyz` is 200 while the probe returns
    /// [`Readiness::Ready`](crate::identity::Readiness::Ready) and the plugin is not stopping. `/metrics` is
    /// for Prometheus and has `csi_plugin_operations_seconds` by method and status code.
    #[cfg(feature = "http")]
    #[must_use]
    pub fn http(mut self, address: std::net::SocketAddr) -> Self {
        self.settings.http_address = Some(address);
        self
    }

    /// Adds the driver's own metrics to `/metrics` ([`http`](Self::http)), with any library that writes OpenMetrics
    /// text. Call it again for a further library. The function is called for each request; it leaves out the line
    /// `# EOF`. The names must differ from those of the plugin (`csi_plugin_…`) and of the process (`process_…`).
    ///
    /// ```
    /// use csi_core::Plugin;
    /// use prometheus_client::encoding::text::encode_registry;
    /// use prometheus_client::{metrics::counter::Counter, registry::Registry};
    ///
    /// let rebuilds = Counter::<u64>::default();
    /// let mut registry = Registry::default();
    /// registry.register("example_rebuilds", "Rebuilds of volumes", rebuilds.clone());
    /// let plugin = Plugin::new("driver.csi.example.org", "1");
    /// let plugin = plugin.http(([127, 0, 0, 1], 9808).into());
    /// let plugin = plugin.metrics(move |out| encode_registry(out, &registry));
    /// rebuilds.inc();
    /// ```
    #[cfg(feature = "http")]
    #[must_use]
    pub fn metrics(
        mut self,
        write: impl Fn(&mut String) -> std::fmt::Result + Send + Sync + 'static,
    ) -> Self {
        self.settings.own_metrics.push(crate::server::OwnMetrics::new(write));
        self
    }

    /// Returns the plugin's metrics, for a driver that serves its metrics itself: `Display` writes them at any time.
    #[cfg(feature = "http")]
    #[must_use]
    pub fn plugin_metrics(&self) -> crate::server::PluginMetrics {
        crate::server::PluginMetrics::new(Arc::clone(&self.metrics), &self.name, &self.vendor_version)
    }

    /// Returns a handle with which the driver's own work claims volumes and snapshots, so that no operation
    /// runs on them meanwhile.
    #[must_use]
    pub fn claims(&self) -> Claims {
        Claims(Arc::clone(&self.admission))
    }

    /// See [`local_calls`](crate::internal::local_calls).
    pub(crate) fn local_calls(&self) -> crate::server::LocalCalls {
        crate::server::LocalCalls::new(&self.settings.served)
    }

    fn path_gate(&self, socket: &Path) -> PathGate {
        let Settings { own_directories, registration, .. } = &self.settings;
        let sockets = socket.parent().into_iter();
        let sockets = sockets.chain(registration.as_ref().map(Registration::directory)).map(Path::to_owned);
        PathGate::new(own_directories.clone(), sockets.collect(), &self.settings.volume_roots())
    }

    /// Checks the plugin and builds the adapter that the server serves.
    fn build(mut self, socket: &Path) -> Result<Adapter, ServeError> {
        check_name(&self.name).map_err(Failure::Plugin)?;
        if self.vendor_version.is_empty() {
            let text = "the vendor version is empty: pass env!(\"CARGO_PKG_VERSION\") to Plugin::new";
            return Err(Failure::Plugin(text.to_owned()).into());
        }
        if self.settings.registration.is_some() && (self.mode == Mode::Controller || self.node.is_none()) {
            let text = "only a plugin that serves its node service registers with the kubelet: leave out the \
                        registration, or serve the node";
            return Err(Failure::Plugin(text.to_owned()).into());
        }
        let own = self.settings.own_directories.iter().map(|path| ("driver's directory", path));
        let roots = self.settings.volume_roots.iter().flatten().map(|path| ("volume root", path));
        if let Some((what, path)) = own.chain(roots).find(|(_, path)| !path.is_absolute()) {
            let text = format!("the {what} {} is not an absolute path: give one", path.display());
            return Err(Failure::Plugin(text).into());
        }
        let volume_roots = self.settings.volume_roots();
        let serves_node = self.mode != Mode::Controller && self.node.is_some();
        let holds_volumes = |own: &&PathBuf| volume_roots.iter().any(|root| root.starts_with(own));
        if let Some(own) = self.settings.own_directories.iter().find(holds_volumes).filter(|_| serves_node) {
            let text = format!(
                "the driver's directory {} contains the volumes' paths (VOLUME_ROOTS), so none could be \
                 published: give a directory that only the driver uses",
                own.display()
            );
            return Err(Failure::Plugin(text).into());
        }
        let offer = self.offer().map_err(Failure::Plugin)?;
        let needs = PluginService::VolumeAccessibilityConstraints;
        if let Some(fault) = offer.topology_fault(&self.topologies, needs) {
            return Err(Failure::Plugin(format!("a topology of this plugin{fault}")).into());
        }
        let gate = self.path_gate(socket);
        let context = PluginContext {
            driver: self.name.clone(),
            volume_roots,
            #[cfg(all(feature = "mount", target_os = "linux"))]
            host: self.host,
        };
        let info = v1::GetPluginInfoResponse {
            name: self.name,
            vendor_version: self.vendor_version,
            manifest: self.identity.manifest(),
        };
        Ok(Adapter(Arc::new(Core {
            path: CallPath::new(Arc::new(offer), gate, context, self.admission, self.metrics),
            info,
            identity: self.identity,
            controller: self.controller,
            node: self.node,
            group_controller: self.group_controller,
            snapshot_metadata: self.snapshot_metadata,
            mode: self.mode,
        })))
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin").field("name", &self.name).field("mode", &self.mode).finish_non_exhaustive()
    }
}

/// The spec's rule for a plugin name.
// spec: get-plugin-info.name
fn check_name(name: &str) -> Result<(), String> {
    let alphanumeric = |character: Option<char>| character.is_some_and(|c| c.is_ascii_alphanumeric());
    let fits = (1..=63).contains(&name.len())
        && alphanumeric(name.chars().next())
        && alphanumeric(name.chars().next_back())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.');
    if fits {
        return Ok(());
    }
    Err(format!(
        "plugin name {name:?} is not 1 to 63 letters, digits, dashes and dots, alphanumeric at both ends: give \
         Plugin::new a name like driver.csi.example.org"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: get-plugin-info.name
    #[test]
    fn plugin_names_keep_the_rule() {
        for good in ["a", "driver.csi.example.org", "a-b.c", &"x".repeat(63)] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a.", "a_b", "a b", "é", &"x".repeat(64)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
