//! A volume's life with faults, on a simulated node. Needs no root.

use clap::Parser as _;
use csi_core::client::{Target, VolumeUse};
use csi_core::mount::testing::SimulatedNode;
use csi_core::proto::v1::{CreateVolumeRequest, VolumeCapability, volume_capability::access_mode::Mode};
use csi_core::testing::serve;

const STAGING: &str = "/var/lib/kubelet/staging/v";
const TARGET: &str = "/var/lib/kubelet/pods/1/mount";

#[tokio::test]
async fn a_volume_lives_on_a_simulated_node() {
    let directory = tempfile::tempdir().unwrap();
    let node = SimulatedNode::new();
    ["/var/lib/kubelet/pods/1", STAGING].iter().for_each(|path| node.create_dir(path));
    let root = format!("--root={}", directory.path().display());
    let args = {{crate_name}}::Args::parse_from(["driver", "--node-id=node-1", &root]);
    let client = serve({{crate_name}}::plugin(&args).host(node.clone()), &directory).await;
    let mut volume = VolumeUse::new("v", VolumeCapability::mount(Mode::SingleNodeWriter)).staged_at(STAGING);
    let volume_capabilities = vec![volume.capability.clone()];
    let create = CreateVolumeRequest { name: "v".into(), volume_capabilities, ..Default::default() };
    client.call(create).await.unwrap();
    let targets = [Target::new(TARGET)];
    node.remove_tool("mkfs.ext4");
    let missing = volume.attach_stage_publish(&client, &targets).await.unwrap_err();
    assert!(missing.message().contains("mkfs.ext4"), "{missing}");
    node.install_tool("mkfs.ext4");
    volume.attach_stage_publish(&client, &targets).await.unwrap();
    node.write(format!("{TARGET}/file"), "data").unwrap();
    // After a reboot the device is attached again, and the filesystem is kept.
    node.reboot();
    volume.attach_stage_publish(&client, &targets).await.unwrap();
    assert_eq!(node.read(format!("{TARGET}/file")).unwrap(), b"data");
    volume.unpublish_unstage_detach(&client, &targets).await.unwrap();
    client.call(volume.delete_volume()).await.unwrap();
}
