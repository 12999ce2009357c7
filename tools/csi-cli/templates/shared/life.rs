//! A volume's life with faults, on a simulated node. Needs no root, and no server.

use clap::Parser as _;
use csi_core::client::{Target, VolumeUse};
use csi_core::mount::testing::SimulatedNode;
use csi_core::proto::v1::{CreateVolumeRequest, VolumeCapability, volume_capability::access_mode::Mode};
use csi_core::testing::serve;

{% if stage %}
const STAGING: &str = "/var/lib/kubelet/staging/v";
{% endif %}
const TARGET: &str = "/var/lib/kubelet/pods/1/mount";

#[tokio::test]
async fn a_volume_lives_on_a_simulated_node() {
    let directory = tempfile::tempdir().unwrap();
    let node = SimulatedNode::new();
    node.create_dir("/var/lib/kubelet/pods/1");
{% if stage %}
    node.create_dir(STAGING);
{% endif %}
    let root = format!("--root={}", directory.path().join("volumes").display());
    let args = {{crate_name}}::Args::parse_from(["driver", "--node-id=node-1", "--server=192.0.2.7", &root]);
    let client = serve({{crate_name}}::plugin(&args).host(node.clone()), &directory).await;
    let capability = VolumeCapability::mount(Mode::MultiNodeMultiWriter);
    let mut volume = VolumeUse::new("v", capability.clone()){% if stage %}.staged_at(STAGING){% endif %};
    let volume_capabilities = vec![capability];
    let create = CreateVolumeRequest { name: "v".into(), volume_capabilities, ..Default::default() };
    volume.volume_context = client.call(create).await.unwrap().volume.unwrap().volume_context;
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
