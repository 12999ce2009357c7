//! A daemon that dies is started again at the next publish, on a simulated node. Needs no root.

use csi_core::client::{Target, VolumeUse};
use csi_core::mount::{MountHealth, flow::fuse::FuseDaemon, testing::SimulatedNode};
use csi_core::proto::v1::{CreateVolumeRequest, VolumeCapability, volume_capability::access_mode::Mode};
use csi_core::testing::serve;
use fuse::Volumes;
use test_support::driver::parse;

const STAGING: &str = "/var/lib/kubelet/staging/v";
const TARGET: &str = "/var/lib/kubelet/pods/1/mount";

#[tokio::test]
async fn a_dead_daemon_is_started_again() {
    let directory = tempfile::tempdir().unwrap();
    let node = SimulatedNode::new();
    ["/var/lib/kubelet/pods/1", STAGING].iter().for_each(|path| node.create_dir(path));
    let args = parse(&["--node-id=n"]);
    let volumes = Volumes::Directory(directory.path().join("volumes"));
    let plugin = fuse::plugin(volumes, FuseDaemon::new("flatfs"), None, &args);
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
    let volumes = Volumes::Directory(directory.path().join("volumes"));
    let plugin = fuse::plugin(volumes, FuseDaemon::new("flatfs"), None, &args);
    let client = serve(plugin, &directory).await;
    let mut volume = VolumeUse::new("v", VolumeCapability::mount(Mode::SingleNodeWriter));
    volume.node_id = Some("n".to_owned());
    let missing = volume.attach_stage_publish(&client, &[Target::new(TARGET)]).await.unwrap_err();
    assert_eq!(missing.code(), tonic::Code::NotFound, "{missing}");
}

#[tokio::test]
async fn a_class_bounds_how_long_users_wait() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = Volumes::Directory(directory.path().join("volumes"));
    let plugin = fuse::plugin(volumes, FuseDaemon::new("flatfs"), None, &parse(&["--node-id=n"]));
    let client = serve(plugin, &directory).await;
    let create = |seconds: &str| CreateVolumeRequest {
        name: "v".into(),
        volume_capabilities: vec![VolumeCapability::mount(Mode::SingleNodeWriter)],
        parameters: [("waitSeconds".to_owned(), seconds.to_owned())].into(),
        ..Default::default()
    };
    let made = client.call(create("30")).await.unwrap().volume.unwrap();
    assert_eq!(made.volume_context["waitSeconds"], "30");
    let refused = client.call(create("soon")).await.unwrap_err();
    assert!(refused.message().contains("parameters[waitSeconds]"), "{refused}");
}

#[test]
fn the_manifests_with_pods_need_no_cluster() {
    for (kind, object) in [("per-volume", "kind: PodTemplate"), ("per-node", "type: OnDelete")] {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_fuse"));
        program.args(["manifests", "--image=a/b:1", "--single", "--fuse-pods", kind]);
        let made = program.env("KUBECONFIG", "/nonexistent").output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let made = String::from_utf8(made.stdout).unwrap();
        assert!(made.contains(object), "{kind}");
        // Whom the policy of the store lets connect.
        for known in ["app.kubernetes.io/name: flat-csi-example-org\n", ": flat-csi-example-org-fuse\n"] {
            assert!(made.contains(known) && include_str!("../store.yaml").contains(known), "{kind}: {known}");
        }
    }
}

#[test]
fn the_program_explains_itself() {
    test_support::driver::explains_itself(env!("CARGO_BIN_EXE_fuse"));
}
