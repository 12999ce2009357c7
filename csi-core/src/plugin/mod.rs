//! A whole plugin: its name, its services, and which of them this instance serves.
//!
//! [`Plugin`] is built up by a driver; it makes the offer and the adapter from its parts and hands them to the server. It
//! imports everything below it, and is imported by the flags alone.

mod run;
mod services;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use csi_proto::v1;

#[cfg(feature = "clap")]
pub(crate) use run::exit_code;

use crate::adapters::{Adapter, Core};
use crate::call::request::PluginContext;
use crate::call::{CallPath, PathGate};
use crate::capabilities::Declared;
use crate::controller::{Controller, ControllerService, ControllerTable};
use crate::group_controller::GroupController;
use crate::identity::{AlwaysReady, Identity};
use crate::mode::Mode;
use crate::node::{Node, NodeService, NodeTable};
use crate::server::{Registration, ServeError, Settings, SocketRemoval};
use crate::snapshot_metadata::SnapshotMetadata;

/// A CSI plugin, built up and then served on a unix socket.
///
/// Build all of it whatever the instance is to serve, then choose with [`mode`](Self::mode).
///
/// ```no_run
/// # use csi_core::*;
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
    declared: Declared,
    mode: Mode,
    pub(crate) settings: Settings,
}

impl Plugin {
    /// A plugin of this name, a domain name the vendor owns as the spec wants it (`driver.csi.example.org`), and
    /// this version, which is for people only.
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
            settings: Settings::default(),
        }
    }

    /// What the driver adds to the Identity service: its health, and facts for people.
    #[must_use]
    pub fn identity(mut self, identity: impl Identity) -> Self {
        self.identity = Arc::new(identity);
        self
    }

    /// The plugin's Controller service.
    #[must_use]
    pub fn controller<D: Controller>(mut self, service: ControllerService<D>) -> Self {
        self.controller = Some(service.into_table());
        self
    }

    /// The plugin's Node service.
    #[must_use]
    pub fn node<D: Node>(mut self, service: NodeService<D>) -> Self {
        self.node = Some(service.into_table());
        self
    }

    /// Serves only this part of the plugin.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Permissions of the socket, 0660 unless said otherwise. Whoever can write to it commands the driver.
    #[must_use]
    pub fn socket_mode(mut self, mode: u32) -> Self {
        self.settings.socket_mode = mode & 0o777;
        self
    }

    /// What to do when somebody removes the socket: [`SocketRemoval::MakeAgain`] unless said otherwise. When another
    /// process puts its own in the place, the plugin stops in any case ([`ServeError::SocketTaken`]).
    #[must_use]
    pub fn socket_removal(mut self, removal: SocketRemoval) -> Self {
        self.settings.socket_removal = removal;
        self
    }

    /// How many connections the socket takes at a time. Unless said otherwise, and at most, a quarter of the descriptors
    /// that the process may have (RLIMIT_NOFILE); 1024 unless said otherwise, where these are many.
    ///
    /// At the limit an idle connection is closed to make room for a new one: first those that never called, then the
    /// youngest. While all have calls, new ones wait.
    #[must_use]
    pub fn max_connections(mut self, most: usize) -> Self {
        self.settings.max_connections = Some(most);
        self
    }

    /// How long running operations may go on after a signal to stop: 30 seconds unless said otherwise. Connections
    /// without a call are closed within a second, whatever this is.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    /// A directory of the driver's own: where it keeps its volumes, records or sockets. No Node RPC is given a path that is
    /// this directory, is in it or holds it, by whatever name: INVALID_ARGUMENT. Without it a mount by a wrong path can
    /// hide all volumes. The directory of the socket is protected anyway.
    #[must_use]
    pub fn own_directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.own_directories.push(path.into());
        self
    }

    /// Where the orchestrator keeps target paths and staging directories, `/var/lib/kubelet` unless said otherwise.
    /// What is left on the node of a volume that the driver no longer knows is unmounted in these directories only, and an
    /// empty target whose maker is not known is removed in these only. They are no volume's place themselves, and neither
    /// are those in them that hold all volumes.
    #[must_use]
    pub fn volume_roots(mut self, roots: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.settings.volume_roots = roots.into_iter().map(Into::into).collect();
        self
    }

    /// Registers the plugin with the kubelet of this node, without a node-driver-registrar beside it.
    #[must_use]
    pub fn register(mut self, registration: Registration) -> Self {
        self.settings.registration = Some(registration);
        self
    }

    /// Answers HTTP at this address, without a livenessprobe beside it: `/healthz` is 200 while the plugin's
    /// [`probe`](crate::Identity::probe) does not fail, `/readyz` while it says
    /// [`Readiness::Ready`](crate::Readiness::Ready) and the plugin is not stopping, and `/metrics` is for Prometheus,
    /// with `csi_plugin_operations_seconds` by method and status code.
    #[cfg(feature = "http")]
    #[must_use]
    pub fn http(mut self, address: std::net::SocketAddr) -> Self {
        self.settings.http_address = Some(address);
        self
    }

    fn path_gate(&self, socket: &Path) -> PathGate {
        let Settings { own_directories, volume_roots, registration, .. } = &self.settings;
        let sockets = socket.parent().into_iter();
        let sockets = sockets.chain(registration.as_ref().map(Registration::directory)).map(Path::to_owned);
        PathGate::new(own_directories.clone(), sockets.collect(), volume_roots)
    }

    /// The plugin as it is served, once it makes sense.
    fn build(mut self, socket: &Path) -> Result<Adapter, ServeError> {
        check_name(&self.name).map_err(ServeError::Plugin)?;
        if self.vendor_version.is_empty() {
            let text = "the vendor version is empty: pass env!(\"CARGO_PKG_VERSION\") to Plugin::new";
            return Err(ServeError::Plugin(text.to_owned()));
        }
        if self.settings.registration.is_some() && (self.mode == Mode::Controller || self.node.is_none()) {
            let text = "only a plugin that serves its node service registers with the kubelet: leave out the \
                        registration, or serve the node";
            return Err(ServeError::Plugin(text.to_owned()));
        }
        let offer = self.offer().map_err(ServeError::Plugin)?;
        let gate = self.path_gate(socket);
        let context =
            PluginContext { driver: self.name.clone(), volume_roots: self.settings.volume_roots.clone() };
        let info = v1::GetPluginInfoResponse {
            name: self.name,
            vendor_version: self.vendor_version,
            manifest: self.identity.manifest(),
        };
        Ok(Adapter(Arc::new(Core {
            path: CallPath::new(Arc::new(offer), gate, context),
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

    // spec: process.knows-its-mode
    #[test]
    fn a_mode_without_its_service_is_refused_with_how_to_fix_it() {
        let error = Plugin::new("a.b", "1").mode(Mode::Node).build(Path::new("/run/csi.sock")).err().unwrap();
        assert!(error.is_start_up());
        assert!(error.to_string().contains("choose another mode"), "{error}");
    }
}
