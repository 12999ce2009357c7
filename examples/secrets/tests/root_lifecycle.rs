//! The driver as a process, and an inline volume's whole life on a real mount. Needs root.

use std::fs;
use std::path::Path;
use std::process::Command;

use csi_core::client::{Target, VolumeUse};
use csi_core::mount::mounts;
use csi_core::proto::v1::{VolumeCapability, volume_capability::access_mode::Mode};
use test_support::driver::{Driver, on_tmpfs};

#[test]
fn a_token_is_made_renewed_as_one_and_gone() {
    on_tmpfs(live);
}

async fn live(place: &Path) {
    let socket = place.join("csi.sock");
    let mut program = Command::new(env!("CARGO_BIN_EXE_secrets"));
    program.args(["--node-id", "n", "--log-level", "error", "--endpoint"]).arg(&socket);
    let driver = Driver::start(program, socket).await;
    let client = driver.client();
    let path = place.join("pod");
    let targets = [Target::new(&path).read_only()];
    let mut volume = VolumeUse::new("csi-1f0c", VolumeCapability::mount(Mode::SingleNodeWriter));
    for (key, value) in [("ephemeral", "true"), ("pod.name", "web-0"), ("pod.namespace", "shop")] {
        volume.volume_context.insert(format!("csi.storage.k8s.io/{key}"), value.to_owned());
    }
    let read = |name: &str| fs::read_to_string(path.join(name)).unwrap();
    volume.publish(&client, &targets).await.unwrap();
    let first = read("token");
    assert_eq!((read("pod").as_str(), first.len()), ("shop/web-0\n", 32));
    // A process in the directory of the old version keeps reading that whole version.
    let version = fs::read_link(path.join("..data")).unwrap();
    volume.publish(&client, &targets).await.unwrap();
    assert_ne!(read("token"), first);
    assert_eq!(read(&format!("{}/token", version.display())), first);
    assert_eq!(mounts().unwrap().iter().filter(|entry| entry.mount_point == path).count(), 1);
    assert!(fs::write(path.join("token"), "mine").is_err(), "read-only");
    for _ in 0..2 {
        volume.unpublish(&client, &targets).await.unwrap();
    }
    assert!(!path.exists());
}
