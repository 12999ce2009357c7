//! A daemon that dies is started again at the next publish, on a simulated node. Needs no root.

use clap::Parser as _;
use csi_core::client::{Target, VolumeUse};
use csi_core::mount::{MountHealth, flow::fuse::FuseDaemon, testing::SimulatedNode};
use csi_core::proto::v1::{CreateVolumeRequest, VolumeCapability, volume_capability::access_mode::Mode};
use csi_core::testing::serve;

const STAGING: &str = "/var/lib/kubelet/staging/v";
const TARGET: &str = "/var/lib/kubelet/pods/1/mount";

#[derive(clap::Parser)]
struct Args {
    #[command(flatten)]
    driver: csi_core::DriverArgs,
}

#[tokio::test]
async fn a_dead_daemon_is_started_again() {
    let (directory, node) = (tempfile::tempdir().unwrap(), SimulatedNode::new());
    ["/var/lib/kubelet/pods/1", STAGING].iter().for_each(|path| node.create_dir(path));
    let args = Args::parse_from(["fuse", "--endpoint", "unix:///unused", "--node-id", "n"]).driver;
    let plugin = fuse::plugin(directory.path().join("volumes"), FuseDaemon::new("flatfs"), None, &args);
    let client = serve(plugin.machine(node.clone()), &directory).await;
    let mount = VolumeCapability::mount(Mode::SingleNodeWriter);
    let mut volume = VolumeUse::new("v", mount.clone()).staged_at(STAGING);
    let create =
        CreateVolumeRequest { name: "v".into(), volume_capabilities: vec![mount], ..Default::default() };
    client.call(create).await.unwrap();
    let targets = [Target::new(TARGET)];
    volume.put_on_node(&client, &targets).await.unwrap();
    node.write(format!("{TARGET}/file"), "data").unwrap();
    node.set_health(STAGING, MountHealth::Dead(rustix::io::Errno::NOTCONN.raw_os_error()));
    node.read(format!("{TARGET}/file")).unwrap_err();
    volume.publish(&client, &targets).await.unwrap();
    assert_eq!(node.read(format!("{TARGET}/file")).unwrap(), b"data");
}
