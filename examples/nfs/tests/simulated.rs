//! A volume's life, with a server that hangs and a reboot, on a simulated node. Needs no root, and no server: the
//! controller works on a local directory.

mod support;

use csi_core::client::{Target, VolumeUse};
use csi_core::mount::MountHealth;
use csi_core::mount::testing::SimulatedNode;
use csi_core::proto::v1::{VolumeCapability, volume_capability::access_mode::Mode};
use csi_core::{Mode as Serves, testing::serve};
use nfs::VolumeArgs;
use support::Places;
use support::calls::{Ask, delete};
use tonic::Code;

const STAGING: &str = "/var/lib/kubelet/staging/v";
const PODS: [&str; 2] = ["/var/lib/kubelet/pods/1", "/var/lib/kubelet/pods/2"];

#[tokio::test]
async fn a_volume_lives_on_a_simulated_node() {
    let places = Places::new();
    let node = SimulatedNode::new();
    PODS.iter().chain([&STAGING]).for_each(|path| node.create_dir(path));
    let plugin = places.controller(&VolumeArgs::default()).mode(Serves::All).host(node.clone());
    let client = serve(plugin, places.path()).await;
    let made = Ask::new("a").create(&client).await.unwrap();
    let capability = VolumeCapability::mount(Mode::MultiNodeMultiWriter);
    let mut volume = VolumeUse::new(made.volume_id.clone(), capability).staged_at(STAGING);
    volume.volume_context = made.volume_context.clone();

    let targets = PODS.map(|pod| Target::new(format!("{pod}/mount")));
    volume.attach_stage_publish(&client, &targets).await.unwrap();
    let file = targets.each_ref().map(|target| target.path.join("file"));
    node.write(&file[0], "data").unwrap();
    assert_eq!(node.read(&file[1]).unwrap(), b"data", "both pods have the same share");

    node.set_health(STAGING, MountHealth::Unresponsive);
    let hangs = volume.attach_stage_publish(&client, &targets).await.unwrap_err();
    assert_eq!(hangs.code(), Code::Unavailable, "{hangs}");
    volume.unpublish_unstage_detach(&client, &targets).await.unwrap();
    assert!(targets.iter().all(|target| !node.exists(&target.path)), "whatever state the server is in");

    volume.attach_stage_publish(&client, &targets).await.unwrap();
    node.reboot();
    volume.attach_stage_publish(&client, &targets).await.unwrap();
    assert_eq!(node.read(&file[0]).unwrap(), b"data");
    volume.unpublish_unstage_detach(&client, &targets).await.unwrap();
    delete(&client, &made).await.unwrap();
}
