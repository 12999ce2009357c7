//! The life of an image and of a directory, with attachments and a reboot, on a simulated node. Needs no root.

use clap::Parser as _;
use csi_core::client::{Client, Target, VolumeUse};
use csi_core::mount::testing::SimulatedNode;
use csi_core::proto::v1::volume_capability::access_mode::Mode;
use csi_core::proto::v1::{CapacityRange, CreateVolumeRequest, VolumeCapability};
use csi_core::testing::serve;
use tonic::Code;

const STAGING: &str = "/var/lib/kubelet/staging/v";
const TARGET: &str = "/var/lib/kubelet/pods/1/mount";
const SIZE: i64 = 64 << 20;

async fn created(client: &Client, kind: &str) -> VolumeUse {
    let mount = VolumeCapability::mount(Mode::SingleNodeWriter);
    let create = CreateVolumeRequest {
        name: format!("a-{kind}"),
        capacity_range: Some(CapacityRange { required_bytes: SIZE, limit_bytes: 0 }),
        volume_capabilities: vec![mount.clone()],
        parameters: [("kind".to_owned(), kind.to_owned())].into(),
        ..Default::default()
    };
    let made = client.call(create).await.unwrap().volume.unwrap();
    let mut volume = VolumeUse::new(made.volume_id, mount).attached_to("n").staged_at(STAGING);
    volume.volume_context = made.volume_context;
    volume
}

#[tokio::test]
async fn a_volume_of_each_kind_lives_on_a_simulated_node() {
    let directory = tempfile::tempdir().unwrap();
    let node = SimulatedNode::new();
    ["/var/lib/kubelet/pods/1", STAGING].iter().for_each(|path| node.create_dir(path));
    let data = format!("--data={}", directory.path().join("data").display());
    let args = hostpath::Args::parse_from(["hostpath", "--endpoint=unix:///unused", "--node-id=n", &data]);
    let client = serve(hostpath::plugin(&args).unwrap().host(node.clone()), &directory).await;
    let targets = [Target::new(TARGET)];
    for kind in ["image", "directory"] {
        let mut volume = created(&client, kind).await;
        volume.attach_stage_publish(&client, &targets).await.unwrap();
        node.write(format!("{TARGET}/file"), kind).unwrap();
        let attached = client.call(volume.delete_volume()).await.unwrap_err();
        assert_eq!(attached.code(), Code::FailedPrecondition, "{attached}");
        node.reboot();
        volume.attach_stage_publish(&client, &targets).await.unwrap();
        assert_eq!(node.read(format!("{TARGET}/file")).unwrap(), kind.as_bytes());
        volume.unpublish_unstage_detach(&client, &targets).await.unwrap();
        assert!(!node.exists(TARGET));
        client.call(volume.delete_volume()).await.unwrap();
    }
}
