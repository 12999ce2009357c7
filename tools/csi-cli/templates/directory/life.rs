//! A volume's life, and a kill at every step of it, on a simulated node. Needs no root.

use clap::Parser as _;
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
    let root = format!("--root={}", directory.path().join("volumes").display());
    let args = {{crate_name}}::Args::parse_from(["driver", "--node-id=node-1", &root]);
    let client = serve({{crate_name}}::plugin(&args).host(node.clone()), &directory).await;
    let mut volume = VolumeUse::new("v", VolumeCapability::mount(Mode::SingleNodeWriter));
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
        volume.unpublish_unstage_detach(&client, &targets).await.unwrap();
        assert!(!node.exists(TARGET));
        if is_finished {
            break;
        }
    }
    client.call(volume.delete_volume()).await.unwrap();
}
