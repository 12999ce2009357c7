//! A volume's whole life, over a real socket and with real mounts. Needs root.

use std::fs;
use std::path::Path;
use std::process::Command;

use csi_core::client::{Target, VolumeUse};
use csi_core::mount::testing::private_mount_namespace;
use csi_core::proto::v1;
use csi_core::testing::serve;
use test_support::driver::Driver;
use tonic::Code;
use v1::volume_capability::access_mode::Mode;

// spec: node-publish-volume.creates-target, node-publish-volume.directory-at-target
// spec: node-publish-volume.usable-as-described, node-unpublish-volume.undoes
// spec: node-unpublish-volume.deletes-target, node-unpublish-volume.repeated-is-ok
#[test]
fn a_volume_lives_and_leaves_nothing() {
    private_mount_namespace(|| {
        // The runtime's threads are children of this one and share its mount namespace.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(live());
    });
}

/// The kubelet of some distributions has its directory elsewhere. The manifests name it to the driver.
#[test]
fn a_lost_volume_ends_where_the_kubelet_has_its_directory() {
    private_mount_namespace(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(lose());
    });
}

async fn lose() {
    let directory = tempfile::tempdir().unwrap();
    let of = |name: &str| directory.path().join(name);
    let socket = of("csi.sock");
    let start = async |roots: Option<&Path>| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_dirs"));
        program.env("CSI_ENDPOINT", &socket).env("DIRS_ROOT", of("volumes")).env_remove("VOLUME_ROOTS");
        program.envs(roots.map(|roots| ("VOLUME_ROOTS", roots)));
        Driver::start(program, &socket).await
    };
    let capability = v1::VolumeCapability::mount(Mode::SingleNodeMultiWriter);
    let create = v1::CreateVolumeRequest {
        name: "lost".into(),
        volume_capabilities: vec![capability.clone()],
        ..Default::default()
    };
    fs::create_dir_all(of("kubelet/pods")).unwrap();
    let target = of("kubelet/pods/one");

    let driver = start(None).await;
    let client = driver.client();
    let volume = VolumeUse::new(client.call(create).await.unwrap().volume.unwrap().volume_id, capability);
    volume.publish(&client, &[Target::new(&target)]).await.unwrap();
    fs::remove_dir(of("volumes").join(&volume.volume_id)).unwrap();
    let refused = volume.unpublish(&client, &[&target]).await.unwrap_err();
    assert!(refused.message().contains("VOLUME_ROOTS of a driver"), "{refused}");
    drop(driver);

    let driver = start(Some(&of("kubelet"))).await;
    volume.unpublish(&driver.client(), &[&target]).await.unwrap();
    assert!(!target.exists());
}

async fn live() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("volumes");
    let pods = directory.path().join("pods");
    fs::create_dir(&pods).unwrap();
    let client = serve(dirs::plugin(root.clone()), &directory).await;

    let capability = v1::VolumeCapability::mount(Mode::SingleNodeMultiWriter);
    let create = v1::CreateVolumeRequest {
        name: "a/../b".into(),
        volume_capabilities: vec![capability.clone()],
        ..Default::default()
    };
    let created = client.call(create.clone()).await.unwrap().volume.unwrap();
    assert_eq!(client.call(create).await.unwrap().volume, Some(created.clone()));
    assert_eq!(
        fs::read_dir(&root).unwrap().count(),
        1,
        "a name that climbs makes one directory below the root"
    );

    let volume = VolumeUse::new(created.volume_id, capability);
    let writer = Target::new(pods.join("writer"));
    let reader = Target::new(pods.join("reader")).read_only();
    let targets = [writer.clone(), reader];
    for _ in 0..2 {
        volume.publish(&client, &targets).await.unwrap();
    }
    let differs = volume.publish(&client, &[writer.clone().read_only()]).await.unwrap_err();
    assert_eq!(differs.code(), Code::AlreadyExists, "{differs}");
    fs::write(pods.join("writer/file"), "data").unwrap();
    assert_eq!(fs::read(pods.join("reader/file")).unwrap(), b"data");
    let refused = fs::write(pods.join("reader/other"), "data").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);

    let usage = client.call(volume.node_get_volume_stats(&writer.path)).await.unwrap().usage;
    assert!(usage[0].total > 0);
    let unknown = VolumeUse::new("unknown", volume.capability.clone());
    for missing in [
        volume.node_get_volume_stats(&pods.join("nowhere")),
        unknown.node_get_volume_stats(&writer.path),
        unknown.node_get_volume_stats(Path::new("w")),
    ] {
        let missing = client.call(missing).await.unwrap_err();
        assert_eq!(missing.code(), Code::NotFound, "{missing}");
    }

    // Each target twice, and a target whose parent directory is gone.
    for _ in 0..2 {
        volume.unpublish(&client, &targets).await.unwrap();
    }
    volume.unpublish(&client, &[pods.join("gone/target")]).await.unwrap();
    assert_eq!(fs::read_dir(&pods).unwrap().count(), 0, "targets are deleted");
    for id in [volume.volume_id.as_str(), volume.volume_id.as_str(), "../pods"] {
        let delete = v1::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        client.call(delete).await.unwrap();
    }
    assert!(pods.exists(), "an id that climbs deletes nothing");
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
}
