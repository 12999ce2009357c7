//! A volume's life with faults, on a simulated node. Needs no root.

use csi_core::client::{Target, VolumeUse};
use csi_core::mount::testing::SimulatedNode;
use csi_core::proto::v1::volume_capability::access_mode::Mode;
use csi_core::proto::v1::{CapacityRange, CreateVolumeRequest, VolumeCapability};
use csi_core::testing::serve;

const STAGING: &str = "/var/lib/kubelet/staging/v";
const TARGET: &str = "/var/lib/kubelet/pods/1/mount";

#[tokio::test]
async fn a_volume_lives_on_a_simulated_node() {
    let directory = tempfile::tempdir().unwrap();
    let node = SimulatedNode::new();
    let pool = directory.path().join("pool");
    ["/var/lib/kubelet/pods/1", STAGING].iter().for_each(|path| node.create_dir(path));
    let client = serve(block::plugin(pool).host(node.clone()), &directory).await;
    let mount = VolumeCapability::mount(Mode::SingleNodeSingleWriter);
    let mut volume = VolumeUse::new("v", mount.clone()).staged_at(STAGING);
    let create = CreateVolumeRequest {
        name: "v".into(),
        capacity_range: Some(CapacityRange { required_bytes: 64 << 20, limit_bytes: 0 }),
        volume_capabilities: vec![mount],
        ..Default::default()
    };
    client.call(create).await.unwrap();
    let targets = [Target::new(TARGET)];
    node.remove_tool("mkfs.ext4");
    let missing = volume.attach_stage_publish(&client, &targets).await.unwrap_err();
    assert!(missing.message().contains("mkfs.ext4"), "{missing}");
    node.install_tool("mkfs.ext4");
    volume.attach_stage_publish(&client, &targets).await.unwrap();
    node.write(format!("{TARGET}/file"), "data").unwrap();
    node.set_full(TARGET, true);
    let full = node.write(format!("{TARGET}/more"), "data").unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    // After a reboot the loop device is attached again, and the filesystem is kept.
    node.reboot();
    volume.attach_stage_publish(&client, &targets).await.unwrap();
    assert_eq!(node.read(format!("{TARGET}/file")).unwrap(), b"data");
}
