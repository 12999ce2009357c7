//! A volume's life, and a kill at every step of it, on a simulated node. Needs no root.

use std::time::Duration;

use csi_core::mount::testing::SimulatedNode;
use csi_core::proto::client::Client;
use csi_core::proto::v1;
use v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};

const TARGET: &str = "/var/lib/kubelet/pods/1/mount";

#[tokio::test]
async fn a_volume_lives_on_a_simulated_node() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint: csi_core::Endpoint = format!("unix://{}/s", directory.path().display()).parse().unwrap();
    let node = SimulatedNode::new();
    node.create_dir("/var/lib/kubelet/pods/1");
    let plugin = dirs::plugin(directory.path().join("volumes")).machine(node.clone());
    let client = Client::new(&endpoint);
    tokio::spawn(async move { plugin.serve_until(&endpoint, std::future::pending()).await });
    client.ready(Duration::from_secs(30)).await.unwrap();
    let (mut controller, mut service) = (client.controller(), client.node());
    let capability = v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeMultiWriter as i32 }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    };
    let create = v1::CreateVolumeRequest {
        name: "v".into(),
        volume_capabilities: vec![capability.clone()],
        ..Default::default()
    };
    controller.create_volume(create).await.unwrap();
    let publish = v1::NodePublishVolumeRequest {
        volume_id: "v".into(),
        target_path: TARGET.into(),
        volume_capability: Some(capability),
        ..Default::default()
    };
    let unpublish = v1::NodeUnpublishVolumeRequest { volume_id: "v".into(), target_path: TARGET.into() };
    let delete = v1::DeleteVolumeRequest { volume_id: "v".into(), ..Default::default() };
    for steps in 0.. {
        node.crash_after(steps);
        let is_finished = service.node_publish_volume(publish.clone()).await.is_ok();
        node.restart();
        service.node_publish_volume(publish.clone()).await.unwrap();
        node.write(format!("{TARGET}/file"), steps.to_string()).unwrap();
        let in_use = controller.delete_volume(delete.clone()).await.unwrap_err();
        assert_eq!(in_use.code(), tonic::Code::FailedPrecondition, "{in_use}");
        service.node_unpublish_volume(unpublish.clone()).await.unwrap();
        assert!(!node.exists(TARGET));
        if is_finished {
            break;
        }
    }
    controller.delete_volume(delete).await.unwrap();
}
