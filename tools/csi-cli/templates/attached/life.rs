//! A volume's life with faults of the cloud, on a simulated node. Needs no root, and no cloud.

mod fake;

use csi_core::client::{Target, VolumeUse};
use csi_core::mount::testing::SimulatedNode;
use csi_core::proto::v1::{CreateVolumeRequest, VolumeCapability, volume_capability::access_mode::Mode};
use csi_core::testing::serve;
use fake::{FakeCloud, MACHINE, Machine, TOKEN};

const STAGING: &str = "/var/lib/kubelet/staging/v";
const TARGET: &str = "/var/lib/kubelet/pods/1/mount";

#[tokio::test]
async fn a_disk_lives_in_a_fake_cloud() {
    let directory = tempfile::tempdir().unwrap();
    let node = SimulatedNode::new();
    ["/var/lib/kubelet/pods/1", STAGING].iter().for_each(|path| node.create_dir(path));
    let cloud = FakeCloud::start(Machine::Simulated(node.clone()), directory.path());
    let client = serve(cloud.plugin(), &directory).await;
    let capability = VolumeCapability::mount(Mode::SingleNodeWriter);
    let mut volume = VolumeUse::new("v", capability.clone()).attached_to(MACHINE).staged_at(STAGING);
    let volume_capabilities = vec![capability];
    let create = CreateVolumeRequest { name: "v".into(), volume_capabilities, ..Default::default() };

    // A token that the cloud refuses is in no error, and can be replaced.
    cloud.set_token("expired");
    let refused = client.call(create.clone()).await.unwrap_err();
    assert!(refused.message().contains("token in") && !refused.message().contains("expired"), "{refused}");
    cloud.set_token(TOKEN);
    client.call(create).await.unwrap();

    let targets = [Target::new(TARGET)];
    volume.attach_stage_publish(&client, &targets).await.unwrap();
    node.write(format!("{TARGET}/file"), "data").unwrap();
    volume.unpublish_unstage_detach(&client, &targets).await.unwrap();
    volume.stage(&client).await.expect_err("the machine does not have the disk");

    volume.attach_stage_publish(&client, &targets).await.unwrap();
    assert_eq!(node.read(format!("{TARGET}/file")).unwrap(), b"data");
    volume.unpublish_unstage_detach(&client, &targets).await.unwrap();

    // A blank disk in place of one with data is not formatted.
    cloud.lose_disk("v");
    volume.attach(&client).await.unwrap();
    let refused = volume.stage(&client).await.unwrap_err();
    assert!(refused.message().contains("the filesystem is missing"), "{refused}");
    volume.unpublish_unstage_detach(&client, &targets).await.unwrap();
    client.call(volume.delete_volume()).await.unwrap();
}
