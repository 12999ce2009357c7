//! A volume's whole life, over a real socket and with real mounts. Needs root.

use csi_core::mount::testing::private_mount_namespace;
use csi_core::proto::v1;
use tokio::sync::oneshot;
use tonic::Code;
use v1::controller_client::ControllerClient;
use v1::node_client::NodeClient;
use v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};

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

async fn live() {
    let directory = tempfile::tempdir().unwrap();
    let (root, pods) = (directory.path().join("volumes"), directory.path().join("pods"));
    std::fs::create_dir(&pods).unwrap();
    let endpoint: csi_core::Endpoint =
        format!("unix://{}/csi.sock", directory.path().display()).parse().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn({
        let (plugin, endpoint) = (dirs::plugin(root.clone()), endpoint.clone());
        async move { plugin.serve_until(&endpoint, async { drop(stopped.await) }).await }
    });
    while !endpoint.path().exists() {
        assert!(!server.is_finished());
        tokio::task::yield_now().await;
    }
    let channel = tonic::transport::Endpoint::from_shared(endpoint.to_string()).unwrap().connect_lazy();
    let (mut controller, mut node) = (ControllerClient::new(channel.clone()), NodeClient::new(channel));

    let capability = v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeMultiWriter as i32 }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    };
    let create = v1::CreateVolumeRequest {
        name: "a/../b".into(),
        volume_capabilities: vec![capability.clone()],
        ..Default::default()
    };
    let volume = controller.create_volume(create.clone()).await.unwrap().into_inner().volume.unwrap();
    let again = controller.create_volume(create).await.unwrap().into_inner().volume.unwrap();
    assert_eq!(volume, again);
    assert_eq!(
        std::fs::read_dir(&root).unwrap().count(),
        1,
        "a name that climbs makes one directory below the root"
    );
    let volume_id = volume.volume_id;

    let publish = |name: &str, readonly| v1::NodePublishVolumeRequest {
        volume_id: volume_id.clone(),
        target_path: pods.join(name).display().to_string(),
        volume_capability: Some(capability.clone()),
        readonly,
        ..Default::default()
    };
    for _ in 0..2 {
        node.node_publish_volume(publish("writer", false)).await.unwrap();
        node.node_publish_volume(publish("reader", true)).await.unwrap();
    }
    let differs = node.node_publish_volume(publish("writer", true)).await.unwrap_err();
    assert_eq!(differs.code(), Code::AlreadyExists, "{differs}");
    std::fs::write(pods.join("writer/file"), "data").unwrap();
    assert_eq!(std::fs::read(pods.join("reader/file")).unwrap(), b"data");
    let refused = std::fs::write(pods.join("reader/other"), "data").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);

    let stats = |path: &std::path::Path, volume_id: &str| v1::NodeGetVolumeStatsRequest {
        volume_id: volume_id.to_owned(),
        volume_path: path.display().to_string(),
        ..Default::default()
    };
    let usage =
        node.node_get_volume_stats(stats(&pods.join("writer"), &volume_id)).await.unwrap().into_inner();
    assert!(usage.usage[0].total > 0);
    for (path, id) in
        [(pods.join("nowhere"), volume_id.as_str()), (pods.join("writer"), "unknown"), ("w".into(), "v")]
    {
        let missing = node.node_get_volume_stats(stats(&path, id)).await.unwrap_err();
        assert_eq!(missing.code(), Code::NotFound, "{missing}");
    }

    // The same target twice, and a target whose parent directory is gone.
    for target in ["writer", "reader", "writer", "gone/target"] {
        let target_path = pods.join(target).display().to_string();
        let unpublish = v1::NodeUnpublishVolumeRequest { volume_id: volume_id.clone(), target_path };
        node.node_unpublish_volume(unpublish).await.unwrap();
    }
    assert_eq!(std::fs::read_dir(&pods).unwrap().count(), 0, "targets are deleted");
    for id in [volume_id.as_str(), volume_id.as_str(), "../pods"] {
        let delete = v1::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        controller.delete_volume(delete).await.unwrap();
    }
    assert!(pods.exists(), "an id that climbs deletes nothing");
    assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
    stop.send(()).unwrap();
    server.await.unwrap().unwrap();
}
