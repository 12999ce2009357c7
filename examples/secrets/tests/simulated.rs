//! A token is renewed while it is published, and kept when that fails, on a simulated node. Needs no root.

use std::collections::BTreeMap;
use std::time::Duration;

use csi_core::mount::testing::SimulatedNode;
use csi_core::proto::client::Client;
use csi_core::proto::v1;
use v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};

const TARGET: &str = "/var/lib/kubelet/pods/1/mount";

#[derive(clap::Parser)]
struct Args {
    #[command(flatten)]
    driver: csi_core::DriverArgs,
}

#[tokio::test]
async fn a_token_is_renewed_on_a_simulated_node() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint: csi_core::Endpoint = format!("unix://{}/s", directory.path().display()).parse().unwrap();
    let node = SimulatedNode::new();
    node.create_dir("/var/lib/kubelet/pods/1");
    let args =
        <Args as clap::Parser>::parse_from(["secrets", "--endpoint", "unix:///unused", "--node-id", "n"]);
    let (plugin, client) = (secrets::plugin(&args.driver).machine(node.clone()), Client::new(&endpoint));
    tokio::spawn(async move { plugin.serve_until(&endpoint, std::future::pending()).await });
    client.ready(Duration::from_secs(30)).await.unwrap();
    let mut service = client.node();
    let publish = v1::NodePublishVolumeRequest {
        volume_id: "csi-1".into(),
        target_path: TARGET.into(),
        readonly: true,
        volume_capability: Some(v1::VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter as i32 }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }),
        volume_context: BTreeMap::from([("csi.storage.k8s.io/pod.name".into(), "pod-1".into())]),
        ..Default::default()
    };
    let token = || node.read(format!("{TARGET}/token")).unwrap();
    service.node_publish_volume(publish.clone()).await.unwrap();
    let first = token();
    assert_eq!(node.read(format!("{TARGET}/pod")).unwrap(), b"unknown/pod-1\n");
    let refused = node.write(format!("{TARGET}/token"), "mine").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    node.crash_after(0);
    service.node_publish_volume(publish.clone()).await.unwrap_err();
    assert_eq!(token(), first, "a publish that fails leaves what is there");
    node.restart();
    service.node_publish_volume(publish).await.unwrap();
    assert_ne!(token(), first);
    let unpublish = v1::NodeUnpublishVolumeRequest { volume_id: "csi-1".into(), target_path: TARGET.into() };
    service.node_unpublish_volume(unpublish).await.unwrap();
    assert!(!node.exists(TARGET));
}
