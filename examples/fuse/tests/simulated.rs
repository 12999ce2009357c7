//! A daemon that dies is started again at the next publish, on a simulated node. Needs no root.

use std::time::Duration;

use csi_core::mount::{MountHealth, testing::SimulatedNode};
use csi_core::proto::client::Client;
use csi_core::proto::v1;
use v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};

const STAGING: &str = "/var/lib/kubelet/staging/v";
const TARGET: &str = "/var/lib/kubelet/pods/1/mount";

#[derive(clap::Parser)]
struct Args {
    #[command(flatten)]
    driver: csi_core::DriverArgs,
}

#[tokio::test]
async fn a_dead_daemon_is_started_again() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint: csi_core::Endpoint = format!("unix://{}/s", directory.path().display()).parse().unwrap();
    let node = SimulatedNode::new();
    ["/var/lib/kubelet/pods/1", STAGING].iter().for_each(|path| node.create_dir(path));
    let args =
        <Args as clap::Parser>::parse_from(["fuse", "--endpoint", "unix:///s", "--node-id", "n"]).driver;
    let plugin = fuse::plugin(directory.path().join("volumes"), "flatfs".into(), &args).machine(node.clone());
    let client = Client::new(&endpoint);
    tokio::spawn(async move { plugin.serve_until(&endpoint, std::future::pending()).await });
    client.ready(Duration::from_secs(30)).await.unwrap();
    let (mut controller, mut service) = (client.controller(), client.node());
    let capability = v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter as i32 }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    };
    let create = v1::CreateVolumeRequest {
        name: "v".into(),
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
    service.node_stage_volume(stage).await.unwrap();
    service.node_publish_volume(publish.clone()).await.unwrap();
    node.write(format!("{TARGET}/file"), "data").unwrap();
    node.set_health(STAGING, MountHealth::Dead(rustix::io::Errno::NOTCONN.raw_os_error()));
    node.read(format!("{TARGET}/file")).unwrap_err();
    service.node_publish_volume(publish).await.unwrap();
    assert_eq!(node.read(format!("{TARGET}/file")).unwrap(), b"data");
}
