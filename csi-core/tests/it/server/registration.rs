//! Registration, against a double of the kubelet's plugin watcher that dials in the same way.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use csi_core::Mode;
use csi_core::server::{Registration, ServeError};
use csi_proto::pluginregistration::{PluginInfo, RegistrationStatus};
use csi_proto::v1;
use prost::Message;

use crate::common::*;
use crate::driver::plugin;
use crate::raw::*;

const NAME: &str = "test.csi.example.org";

/// Does what the kubelet does when it sees a plugin's socket.
struct Watcher(Raw);

impl Watcher {
    async fn sees(socket: &Path) -> (Self, PluginInfo) {
        let mut raw = Raw::open(socket).await;
        let ask = kubelet_get_info();
        let ask = raw.call(&ask, &[]);
        let answer = ask.await.expect("no error");
        (Self(raw), PluginInfo::decode(&answer[..]).unwrap())
    }

    async fn notify(mut self, error: &str) {
        let status = RegistrationStatus { plugin_registered: error.is_empty(), error: error.to_owned() };
        let block = kubelet_again("/pluginregistration.Registration/NotifyRegistrationStatus");
        let message = status.encode_to_vec();
        self.0.call(&block, &message).await.expect("no error");
    }
}

struct Node {
    served: Served,
    registry: tempfile::TempDir,
    socket: PathBuf,
    registered: Pin<Box<dyn Future<Output = ()>>>,
}

impl Node {
    async fn start() -> Self {
        let registry = tempfile::tempdir().unwrap();
        let registration =
            Registration::new(registry.path()).kubelet_socket_path("/var/lib/kubelet/plugins/test/csi.sock");
        let plugin = plugin(&Arc::default()).register(registration);
        let registered = Box::pin(plugin.registered());
        let served = Served::start(plugin).await;
        let socket = registry.path().join(format!("{NAME}-reg.sock"));
        eventually("the registration is served", || is_listening(&socket)).await;
        Self { served, registry, socket, registered }
    }

    /// Returns how the server ended, and checks that it leaves no files behind.
    async fn ended(self) -> Result<(), ServeError> {
        let result = self.served.server.await.unwrap();
        assert!(!self.served.endpoint.path().exists(), "the plugin's socket is gone");
        assert_eq!(std::fs::read_dir(self.registry.path()).unwrap().count(), 0, "the registration's too");
        result
    }
}

#[tokio::test]
async fn the_kubelet_finds_the_plugin_and_takes_it() {
    let mut node = Node::start().await;
    assert_eq!(node.socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    // The kubelet calls the plugin as soon as it sees the registration socket.
    node.served.call(v1::NodeGetInfoRequest {}).await.expect("served by then");

    let began = Instant::now();
    let (watcher, info) = Watcher::sees(&node.socket).await;
    println!("GetInfo took {:?}", began.elapsed());
    let due = PluginInfo {
        r#type: "CSIPlugin".into(),
        name: NAME.into(),
        endpoint: "/var/lib/kubelet/plugins/test/csi.sock".into(),
        supported_versions: vec!["1.0.0".into()],
    };
    assert_eq!(info, due);
    let now = tokio::time::timeout(Duration::ZERO, &mut node.registered).await;
    assert!(now.is_err(), "the kubelet has not registered it yet");
    watcher.notify("").await;
    tokio::time::timeout(PATIENCE, &mut node.registered).await.expect("the kubelet has registered it");

    // A restarted kubelet asks again.
    let (watcher, info) = Watcher::sees(&node.socket).await;
    assert_eq!(info, due);
    watcher.notify("").await;

    drop(node.served.stop.take());
    node.ended().await.expect("a stop is no error");
}

#[tokio::test]
async fn a_refusal_is_shown_escaped_and_in_bounds() {
    let node = Node::start().await;
    let (watcher, _) = Watcher::sees(&node.socket).await;
    watcher.notify(&format!("no\x1b[2J\u{202e}\r{}", "x".repeat(10_000))).await;
    let text = node.ended().await.expect_err("refused").to_string();
    assert!(text.contains(r"no\u{1b}[2J\u{202e}\rxxx") && text.contains("bytes left out"), "{text}");
    assert!(text.len() < 2048 + 300, "{} bytes", text.len());
}

#[tokio::test]
async fn a_socket_that_somebody_removed_is_made_again() {
    let mut node = Node::start().await;
    std::fs::remove_file(&node.socket).unwrap();
    eventually("it is served again", || is_listening(&node.socket)).await;
    let (watcher, _) = Watcher::sees(&node.socket).await;
    watcher.notify("").await;
    drop(node.served.stop.take());
    node.ended().await.unwrap();
}

#[tokio::test]
async fn the_socket_of_a_dead_plugin_is_replaced_and_a_live_ones_is_not() {
    let registry = tempfile::tempdir().unwrap();
    let socket = registry.path().join(format!("{NAME}-reg.sock"));
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let register = || plugin(&Arc::default()).register(Registration::new(registry.path()));
    let served = Served::start(register()).await;
    eventually("it is served", || std::os::unix::net::UnixStream::connect(&socket).is_ok()).await;
    // Without a host path, the plugin reports the endpoint's own path.
    let (_, info) = Watcher::sees(&socket).await;
    assert_eq!(Path::new(&info.endpoint), served.endpoint.path());

    let other = tempfile::tempdir().unwrap();
    let endpoint = format!("unix://{}/csi.sock", other.path().display()).parse().unwrap();
    let error = register().serve_until(&endpoint, std::future::pending()).await.expect_err("it lives");
    assert!(error.is_start_up() && error.to_string().contains("a live process"), "{error}");
    assert!(!endpoint.path().exists(), "nothing is left of the second one");
}

#[tokio::test]
async fn only_a_node_registers() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint = format!("{}/csi.sock", directory.path().display()).parse().unwrap();
    let register = |registration| plugin(&Arc::default()).register(registration);
    let controller = register(Registration::new("/registration")).mode(Mode::Controller);
    let error = controller.serve_until(&endpoint, std::future::pending()).await.unwrap_err();
    assert!(error.to_string().contains("leave out the registration"), "{error}");

    let relative = register(Registration::new(directory.path()).kubelet_socket_path("csi.sock"));
    let error = relative.serve_until(&endpoint, std::future::pending()).await.unwrap_err();
    assert!(error.to_string().contains("absolute"), "{error}");

    let long = directory.path().join("x".repeat(90));
    std::fs::create_dir(&long).unwrap();
    let unreachable = Registration::new(directory.path()).kubelet_socket_path(long.join("csi.sock"));
    for registration in [Registration::new(&long), unreachable] {
        let too_long = register(registration).serve_until(&endpoint, std::future::pending());
        let text = too_long.await.unwrap_err().to_string();
        assert!(text.contains(long.to_str().unwrap()) && text.contains("at most 107: mount"), "{text}");
    }
}
