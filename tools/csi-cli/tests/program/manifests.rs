//! The manifests of a driver on its sockets are those of the same plugin without a socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use csi_core::client::Client;
use csi_core::deploy::{Manifests, Options, manifests};
use csi_core::{Endpoint, Mode, Result, prelude::*};
use tokio::runtime::Runtime;

use crate::support::*;

const IMAGE: &str = "registry.example.org/volumes:1.0.0";

struct Volumes;

#[async_trait]
impl Controller for Volumes {
    async fn lookup(&self, _: &VolumeId) -> Result<Option<Volume>> {
        Ok(None)
    }
    fn supports(&self, _: &VolumeCapability) -> bool {
        true
    }
}

#[async_trait]
impl CreateDeleteVolume for Volumes {
    async fn create_volume(&self, _: CreateVolumeRequest) -> Result<Volume> {
        Err(Error::Unimplemented("it has no storage".into()))
    }
    async fn delete_volume(&self, _: DeleteVolumeRequest) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl Directories for Volumes {
    async fn directory(&self, _: &VolumeId) -> Result<PathBuf> {
        Ok("/".into())
    }
}

fn plugin() -> Plugin {
    let volumes = Arc::new(Volumes);
    Plugin::new("volumes.csi.example.org", "1")
        .controller(ControllerService::new(volumes.clone()).create_delete_volume())
        .node(DirectoryNode::service(volumes))
}

/// What csi-deploy makes of the plugin itself.
fn due() -> Manifests {
    let mut options = Options::new(IMAGE);
    options.classic = true;
    manifests(&plugin().facts().expect("facts"), &options).expect("manifests")
}

/// Serves the plugin on this socket until the runtime is dropped.
fn serve(runtime: &Runtime, socket: &Path, mode: Mode) {
    let endpoint: Endpoint = format!("unix://{}", socket.display()).parse().unwrap();
    let served = endpoint.clone();
    runtime.spawn(async move { plugin().mode(mode).serve_until(&served, std::future::pending()).await });
    let _entered = runtime.enter();
    runtime.block_on(Client::new(&endpoint).ready(Duration::from_secs(60))).unwrap();
}

#[test]
fn the_manifests_of_a_socket_are_those_of_the_plugin() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    let socket = folder.path().join("csi.sock");
    serve(&runtime, &socket, Mode::All);
    let words = ["manifests", "--classic", "--image", IMAGE];
    let single = ok(&run(&socket, &[&words[..], &["--single"]].concat()));
    assert!(single.contains("sig-storage/csi-provisioner:"), "{single}");
    assert_eq!(single, due().single());

    let to = folder.path().join("deploy");
    ok(&run(&socket, &[&words[..], &["--to", to.to_str().unwrap()]].concat()));
    for (name, text) in due().files() {
        assert_eq!(std::fs::read_to_string(to.join(name)).unwrap(), text, "{name}");
    }
    assert_eq!(std::fs::read_dir(to).unwrap().count(), due().files().len());
}

#[test]
fn a_controller_on_another_socket_is_asked_there() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    let node = folder.path().join("node.sock");
    let controller = folder.path().join("controller.sock");
    serve(&runtime, &node, Mode::Node);
    serve(&runtime, &controller, Mode::Controller);
    let words = ["manifests", "--classic", "--single", "--image", IMAGE];
    let shown = errors(&run(&node, &words), 2);
    assert!(shown.contains("--controller-endpoint"), "{shown}");
    let controller = format!("unix://{}", controller.display());
    let made = ok(&run(&node, &[&words[..], &["--controller-endpoint", &controller]].concat()));
    assert_eq!(made, due().single());
}
