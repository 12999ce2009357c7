//! A token is renewed while it is published, and kept when that fails, on a simulated node. Needs no root.

use csi_core::client::{Target, VolumeUse};
use csi_core::mount::testing::SimulatedNode;
use csi_core::proto::v1::{VolumeCapability, volume_capability::access_mode::Mode};
use csi_core::testing::serve;
use test_support::driver::parse;

const TARGET: &str = "/var/lib/kubelet/pods/1/mount";

#[tokio::test]
async fn a_token_is_renewed_on_a_simulated_node() {
    let directory = tempfile::tempdir().unwrap();
    let node = SimulatedNode::new();
    node.create_dir("/var/lib/kubelet/pods/1");
    let client = serve(secrets::plugin(&parse(&["--node-id=n"])).host(node.clone()), &directory).await;
    let mut volume = VolumeUse::new("csi-1", VolumeCapability::mount(Mode::SingleNodeWriter));
    volume.volume_context.insert("csi.storage.k8s.io/pod.name".into(), "pod-1".into());
    let targets = [Target::new(TARGET).read_only()];
    let token = || node.read(format!("{TARGET}/token")).unwrap();
    volume.publish(&client, &targets).await.unwrap();
    let first = token();
    assert_eq!(node.read(format!("{TARGET}/pod")).unwrap(), b"unknown/pod-1\n");
    let refused = node.write(format!("{TARGET}/token"), "mine").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    node.crash_after(0);
    volume.publish(&client, &targets).await.unwrap_err();
    assert_eq!(token(), first, "a publish that fails leaves what is there");
    node.restart();
    volume.publish(&client, &targets).await.unwrap();
    assert_ne!(token(), first);
    volume.unpublish(&client, &targets).await.unwrap();
    assert!(!node.exists(TARGET));
}
