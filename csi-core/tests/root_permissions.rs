//! The permissions of a volume's root directory, as its context says (`mountPermissions`). Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

mod common;
mod private;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Served, mount_capability};
use csi_core::mount::flow::{fuse::FuseDaemon, shared::SharedSource};
use csi_core::mount::{MountOptions, testing::SimulatedNode};
use csi_core::*;
use csi_proto::v1;
use private::on_tmpfs;
use tonic::Code;
use v1::volume_capability::AccessType;

const WRITER: i32 = 1;
const READERS: i32 = 3;

struct Volumes(PathBuf);

fn asked(volume: &Attachment) -> Result<RootPermissions> {
    RootPermissions::from_context(&volume.volume_context, "mountPermissions")
}

#[async_trait]
impl Directories for Volumes {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("n")
    }
    async fn directory(&self, _: &VolumeId) -> Result<PathBuf> {
        Ok(self.0.join("volume"))
    }
    fn root_permissions(&self, volume: &Attachment) -> Result<RootPermissions> {
        asked(volume)
    }
}

#[async_trait]
impl SharedFilesystems for Volumes {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("n")
    }
    async fn source(&self, volume: &Attachment) -> Result<SharedSource> {
        let options = match volume.volume_id.as_str() {
            "refuses" => MountOptions::new().read_only(),
            _ => MountOptions::new(),
        };
        Ok(SharedSource::new("tmpfs", format!("server:/{}", volume.volume_id)).options(options))
    }
    fn root_permissions(&self, volume: &Attachment) -> Result<RootPermissions> {
        asked(volume)
    }
}

#[async_trait]
impl FuseFilesystems for Volumes {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("n")
    }
    async fn daemon(&self, _: &Attachment, _: &MountFlags, _: &Path) -> Result<FuseDaemon> {
        Ok(FuseDaemon::new("flatfs"))
    }
    fn root_permissions(&self, volume: &Attachment) -> Result<RootPermissions> {
        asked(volume)
    }
}

fn context(permissions: &str) -> std::collections::HashMap<String, String> {
    [("mountPermissions".to_owned(), permissions.to_owned())].into()
}

fn publish(target: &Path, permissions: &str) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest {
        volume_id: "v".into(),
        target_path: target.display().to_string(),
        volume_capability: Some(mount_capability(WRITER)),
        volume_context: context(permissions).into_iter().collect(),
        ..Default::default()
    }
}

fn stage(staging: &Path, permissions: &str) -> v1::NodeStageVolumeRequest {
    v1::NodeStageVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: staging.display().to_string(),
        volume_capability: Some(mount_capability(WRITER)),
        volume_context: context(permissions).into_iter().collect(),
        ..Default::default()
    }
}

async fn serve<N: Node>(node: NodeService<N>) -> Served {
    Served::start(Plugin::new("permissions.csi.example.org", "1").node(node)).await
}

fn mode(path: impl AsRef<Path>) -> u32 {
    path.as_ref().metadata().unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_directory_gets_its_permissions_at_each_writable_publish() {
    on_tmpfs(async |place| {
        let (volume, target) = (place.join("volume"), place.join("pod"));
        std::fs::create_dir(&volume).unwrap();
        let set = |mode| std::fs::set_permissions(&volume, PermissionsExt::from_mode(mode)).unwrap();
        set(0o700);
        let node = DirectoryNode::service(Arc::new(Volumes(place.to_owned()))).volume_mount_group();
        let served = serve(node).await;
        let read_only = v1::NodePublishVolumeRequest { readonly: true, ..publish(&target, "02770") };
        served.node().node_publish_volume(read_only).await.unwrap();
        assert_eq!(mode(&volume), 0o700);
        let unpublish = v1::NodeUnpublishVolumeRequest {
            volume_id: "v".into(),
            target_path: target.display().to_string(),
        };
        served.node().node_unpublish_volume(unpublish).await.unwrap();

        for before in [0o700, 0o777] {
            set(before);
            served.node().node_publish_volume(publish(&target, "02770")).await.unwrap();
            assert_eq!((mode(&volume), mode(&target)), (0o2770, 0o2770));
        }
        for unchanged in ["0", ""] {
            served.node().node_publish_volume(publish(&target, unchanged)).await.unwrap();
            assert_eq!(mode(&volume), 0o2770);
        }
        let error = served.node().node_publish_volume(publish(&target, "0999")).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains("volume_context[mountPermissions]"), "{error}");

        // The group of the volume keeps its access.
        let mut request = publish(&target, "0700");
        if let Some(AccessType::Mount(mount)) =
            request.volume_capability.as_mut().and_then(|capability| capability.access_type.as_mut())
        {
            mount.volume_mount_group = "2000".to_owned();
        }
        served.node().node_publish_volume(request).await.unwrap();
        assert_eq!(mode(&volume), 0o2770);
    });
}

#[test]
fn the_root_of_a_shared_filesystem_gets_its_permissions_when_it_is_mounted() {
    on_tmpfs(async |place| {
        let (staging, target) = (place.join("staging"), place.join("pod"));
        std::fs::create_dir(&staging).unwrap();
        let served = serve(SharedNode::service(Arc::new(Volumes(place.to_owned())))).await;
        let error = served.node().node_stage_volume(stage(&staging, "rwx")).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        served.node().node_stage_volume(stage(&staging, "0750")).await.unwrap();
        assert_eq!(mode(&staging), 0o750);
        served.node().node_stage_volume(stage(&staging, "0700")).await.unwrap();
        assert_eq!(mode(&staging), 0o700);

        // What could not be changed does not stay mounted.
        let other = place.join("other");
        std::fs::create_dir(&other).unwrap();
        let refused = v1::NodeStageVolumeRequest { volume_id: "refuses".into(), ..stage(&other, "0750") };
        served.node().node_stage_volume(refused).await.unwrap_err();
        let mounts = csi_core::mount::mounts().unwrap();
        assert!(!mounts.iter().any(|entry| entry.mount_point == other), "it stays mounted");
        let readers = v1::NodeStageVolumeRequest {
            volume_id: "refuses".into(),
            volume_capability: Some(mount_capability(READERS)),
            ..stage(&other, "0750")
        };
        served.node().node_stage_volume(readers).await.unwrap();

        let served = serve(SharedNode::unstaged_service(Arc::new(Volumes(place.to_owned())))).await;
        served.node().node_publish_volume(publish(&target, "03775")).await.unwrap();
        assert_eq!(mode(&target), 0o3775);
    });
}

#[tokio::test]
async fn the_root_of_a_fuse_filesystem_gets_its_permissions_after_its_start() {
    let node = SimulatedNode::new();
    let staging = Path::new("/staging");
    node.create_dir(staging);
    let service = FuseNode::service(Arc::new(Volumes(PathBuf::new())));
    let plugin = Plugin::new("permissions.csi.example.org", "1").node(service).machine(node.clone());
    let served = Served::start(plugin).await;
    let error = served.node().node_stage_volume(stage(staging, "8")).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    served.node().node_stage_volume(stage(staging, "0770")).await.unwrap();
    assert_eq!(node.permissions(staging), Some(0o770));
}
