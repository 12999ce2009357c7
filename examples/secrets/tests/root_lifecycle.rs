//! The driver as a process, and an inline volume's whole life on a real mount. Needs root.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use csi_core::mount::testing::private_mount_namespace;
use csi_core::mount::{Mount, Target, mounts};
use csi_core::proto::v1;
use v1::node_client::NodeClient;
use v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};

/// The driver, which is killed if the test fails.
struct Driver(Child);

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(endpoint: &str, socket: &Path) -> Driver {
    let mut driver = Command::new(env!("CARGO_BIN_EXE_secrets"));
    driver.args(["--endpoint", endpoint, "--node-id", "n", "--log-level", "error"]).stdin(Stdio::null());
    let mut driver = Driver(driver.spawn().unwrap());
    let end = Instant::now() + Duration::from_secs(30);
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        assert!(Instant::now() < end && driver.0.try_wait().unwrap().is_none(), "it does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    driver
}

#[test]
fn a_token_is_made_renewed_as_one_and_gone() {
    let place = tempfile::tempdir().unwrap().keep();
    private_mount_namespace(|| {
        Mount::new("tmpfs", "test").at(&Target::new(&place).unwrap()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(live(&place));
    });
    std::fs::remove_dir(&place).unwrap();
}

async fn live(place: &Path) {
    let endpoint = format!("unix://{}/csi.sock", place.display());
    let driver = start(&endpoint, &place.join("csi.sock"));
    let channel = tonic::transport::Endpoint::from_shared(endpoint).unwrap().connect_lazy();
    let mut node = NodeClient::new(channel);
    let target = place.join("pod");
    let context = [("ephemeral", "true"), ("pod.name", "web-0"), ("pod.namespace", "shop")];
    let context = context.map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()));
    let publish = v1::NodePublishVolumeRequest {
        volume_id: "csi-1f0c".into(),
        target_path: target.display().to_string(),
        volume_capability: Some(v1::VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter as i32 }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }),
        readonly: true,
        volume_context: BTreeMap::from(context),
        ..Default::default()
    };
    let read = |name: &str| std::fs::read_to_string(target.join(name)).unwrap();
    node.node_publish_volume(publish.clone()).await.unwrap();
    let first = read("token");
    assert_eq!((read("pod").as_str(), first.len()), ("shop/web-0\n", 32));
    // A process in the directory of the old version keeps reading that whole version.
    let version = std::fs::read_link(target.join("..data")).unwrap();
    node.node_publish_volume(publish).await.unwrap();
    assert_ne!(read("token"), first);
    assert_eq!(read(&format!("{}/token", version.display())), first);
    assert_eq!(mounts().unwrap().iter().filter(|entry| entry.mount_point == target).count(), 1);
    assert!(std::fs::write(target.join("token"), "mine").is_err(), "read-only");
    for _ in 0..2 {
        let target_path = target.display().to_string();
        let unpublish = v1::NodeUnpublishVolumeRequest { volume_id: "csi-1f0c".into(), target_path };
        node.node_unpublish_volume(unpublish).await.unwrap();
    }
    assert!(!target.exists());
    drop(driver);
}

#[test]
fn help_names_the_flags() {
    let output = Command::new(env!("CARGO_BIN_EXE_secrets")).arg("--help").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.contains("--endpoint") && text.contains("CSI_ENDPOINT"),
        "{text}"
    );
}
