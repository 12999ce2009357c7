//! The files are replaced while they are published, and kept when that fails, on a simulated node. Needs no root.

use clap::Parser as _;
use csi_core::client::{Target, VolumeUse};
use csi_core::mount::testing::SimulatedNode;
use csi_core::proto::v1::{VolumeCapability, volume_capability::access_mode::Mode};
use csi_core::testing::serve;

const TARGET: &str = "/var/lib/kubelet/pods/1/mount";

#[tokio::test]
async fn a_token_is_renewed_on_a_simulated_node() {
    let directory = tempfile::tempdir().unwrap();
    let node = SimulatedNode::new();
    node.create_dir("/var/lib/kubelet/pods/1");
    let args = {{crate_name}}::Args::parse_from(["driver", "--node-id=node-1"]);
    let client = serve({{crate_name}}::plugin(&args).host(node.clone()), &directory).await;
    let mut volume = VolumeUse::new("csi-1", VolumeCapability::mount(Mode::SingleNodeWriter));
    volume.volume_context.insert("csi.storage.k8s.io/pod.name".into(), "pod-1".into());
    let targets = [Target::new(TARGET).read_only()];
    let token = || node.read(format!("{TARGET}/token")).unwrap();
    volume.publish(&client, &targets).await.unwrap();
    let first = token();
    assert_eq!(node.read(format!("{TARGET}/pod")).unwrap(), b"pod-1\n");
    node.crash_after(0);
    volume.publish(&client, &targets).await.unwrap_err();
    assert_eq!(token(), first, "a publish that fails keeps the files");
    node.restart();
    volume.publish(&client, &targets).await.unwrap();
    assert_ne!(token(), first);
    volume.unpublish(&client, &targets).await.unwrap();
    assert!(!node.exists(TARGET));
}
