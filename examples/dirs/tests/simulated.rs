//! A volume's life, and a kill at every step of it, on a simulated node. Needs no root.

use csi_core::client::{Target, VolumeUse};
use csi_core::mount::testing::SimulatedNode;
use csi_core::proto::v1::{CreateVolumeRequest, VolumeCapability, volume_capability::access_mode::Mode};
use csi_core::testing::serve;

const TARGET: &str = "/var/lib/kubelet/pods/1/mount";

#[tokio::test]
async fn a_volume_lives_on_a_simulated_node() {
    let directory = tempfile::tempdir().unwrap();
    let node = SimulatedNode::new();
    node.create_dir("/var/lib/kubelet/pods/1");
    let plugin = dirs::plugin(directory.path().join("volumes")).host(node.clone());
    let client = serve(plugin, &directory).await;
    let mut volume = VolumeUse::new("v", VolumeCapability::mount(Mode::SingleNodeMultiWriter));
    let volume_capabilities = vec![volume.capability.clone()];
    let create = CreateVolumeRequest { name: "v".into(), volume_capabilities, ..Default::default() };
    client.call(create).await.unwrap();
    let targets = [Target::new(TARGET)];
    for steps in 0.. {
        node.crash_after(steps);
        let is_finished = volume.attach_stage_publish(&client, &targets).await.is_ok();
        node.restart();
        volume.attach_stage_publish(&client, &targets).await.unwrap();
        node.write(format!("{TARGET}/file"), steps.to_string()).unwrap();
        let in_use = client.call(volume.delete_volume()).await.unwrap_err();
        assert_eq!(in_use.code(), tonic::Code::FailedPrecondition, "{in_use}");
        volume.unpublish_unstage_detach(&client, &targets).await.unwrap();
        assert!(!node.exists(TARGET));
        if is_finished {
            break;
        }
    }
    client.call(volume.delete_volume()).await.unwrap();
}
