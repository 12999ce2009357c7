//! A volume's life with faults, on a simulated node. Needs no root.

use std::time::Duration;

use csi_core::mount::testing::SimulatedNode;
use csi_core::proto::client::Client;
use csi_core::proto::v1;
use v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};

const STAGING: &str = "/var/lib/kubelet/staging/v";
const TARGET: &str = "/var/lib/kubelet/pods/1/mount";

#[tokio::test]
async fn a_volume_lives_on_a_simulated_node() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint: csi_core::Endpoint = format!("unix://{}/s", directory.path().display()).parse().unwrap();
    let (node, pool) = (SimulatedNode::new(), directory.path().join("pool"));
    std::fs::create_dir(&pool).unwrap();
    ["/var/lib/kubelet/pods/1", STAGING].iter().for_each(|path| node.create_dir(path));
    let (plugin, client) = (block::plugin(pool).machine(node.clone()), Client::new(&endpoint));
    tokio::spawn(async move { plugin.serve_until(&endpoint, std::future::pending()).await });
    client.ready(Duration::from_secs(30)).await.unwrap();
    let (mut controller, mut service) = (client.controller(), client.node());
    let capability = v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeSingleWriter as i32 }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    };
    let create = v1::CreateVolumeRequest {
        name: "v".into(),
        capacity_range: Some(v1::CapacityRange { required_bytes: 64 << 20, limit_bytes: 0 }),
        volume_capabilities: vec![capability.clone()],
        ..Default::default()
    };
    controller.create_volume(create).await.unwrap();
    let stage = v1::NodeStageVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: STAGING.into(),
        volume_capability: Some(capability.clone()),
        ..Default::default()
    };
    let publish = v1::NodePublishVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: STAGING.into(),
        target_path: TARGET.into(),
        volume_capability: Some(capability),
        ..Default::default()
    };
    node.remove_tool("mkfs.ext4");
    let missing = service.node_stage_volume(stage.clone()).await.unwrap_err();
    assert!(missing.message().contains("mkfs.ext4"), "{missing}");
    node.install_tool("mkfs.ext4");
    service.node_stage_volume(stage.clone()).await.unwrap();
    service.node_publish_volume(publish.clone()).await.unwrap();
    node.write(format!("{TARGET}/file"), "data").unwrap();
    node.set_full(TARGET, true);
    let full = node.write(format!("{TARGET}/more"), "data").unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    // After a reboot the loop device is attached again, and the filesystem is kept.
    node.reboot();
    service.node_stage_volume(stage).await.unwrap();
    service.node_publish_volume(publish).await.unwrap();
    assert_eq!(node.read(format!("{TARGET}/file")).unwrap(), b"data");
}
