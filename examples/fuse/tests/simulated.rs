//! A daemon that dies is started again at the next publish, on a simulated node. Needs no root.

use csi_core::client::{Target, VolumeUse};
use csi_core::mount::{MountHealth, flow::fuse::FuseDaemon, testing::SimulatedNode};
use csi_core::proto::v1::{CreateVolumeRequest, VolumeCapability, volume_capability::access_mode::Mode};
use csi_core::testing::serve;
use test_support::driver::parse;

const STAGING: &str = "/var/lib/kubelet/staging/v";
const TARGET: &str = "/var/lib/kubelet/pods/1/mount";

#[tokio::test]
async fn a_dead_daemon_is_started_again() {
    let directory = tempfile::tempdir().unwrap();
    let node = SimulatedNode::new();
    ["/var/lib/kubelet/pods/1", STAGING].iter().for_each(|path| node.create_dir(path));
    let args = parse(&["--node-id=n"]);
    let plugin = fuse::plugin(directory.path().join("volumes"), FuseDaemon::new("flatfs"), None, &args);
    let client = serve(plugin.host(node.clone()), &directory).await;
    let mount = VolumeCapability::mount(Mode::SingleNodeWriter);
    let mut volume = VolumeUse::new("v", mount.clone()).staged_at(STAGING);
    let create =
        CreateVolumeRequest { name: "v".into(), volume_capabilities: vec![mount], ..Default::default() };
    client.call(create).await.unwrap();
    let targets = [Target::new(TARGET)];
    volume.attach_stage_publish(&client, &targets).await.unwrap();
    node.write(format!("{TARGET}/file"), "data").unwrap();
    node.set_health(STAGING, MountHealth::Dead(rustix::io::Errno::NOTCONN.raw_os_error()));
    node.read(format!("{TARGET}/file")).unwrap_err();
    volume.publish(&client, &targets).await.unwrap();
    assert_eq!(node.read(format!("{TARGET}/file")).unwrap(), b"data");
}

#[tokio::test]
async fn a_volume_that_does_not_exist_gets_no_pod() {
    let directory = tempfile::tempdir().unwrap();
    let args = parse(&["--node-id=n", "--fuse-pods=flat-fuse"]);
    let plugin = fuse::plugin(directory.path().join("volumes"), FuseDaemon::new("flatfs"), None, &args);
    let client = serve(plugin, &directory).await;
    let mut volume = VolumeUse::new("v", VolumeCapability::mount(Mode::SingleNodeWriter));
    volume.node_id = Some("n".to_owned());
    let missing = volume.attach_stage_publish(&client, &[Target::new(TARGET)]).await.unwrap_err();
    assert_eq!(missing.code(), tonic::Code::NotFound, "{missing}");
}

#[test]
fn the_manifests_with_pods_need_no_cluster() {
    for (kind, object) in [("per-volume", "kind: PodTemplate"), ("per-node", "type: OnDelete")] {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_fuse"));
        program.args(["manifests", "--image=a/b:1", "--single", "--fuse-pods", kind]);
        let made = program.env("KUBECONFIG", "/nonexistent").output().unwrap();
        assert!(made.status.success(), "{made:?}");
        assert!(String::from_utf8(made.stdout).unwrap().contains(object), "{kind}");
    }
}

#[test]
fn the_program_explains_itself() {
    test_support::driver::explains_itself(env!("CARGO_BIN_EXE_fuse"));
}
