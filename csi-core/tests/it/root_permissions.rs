//! The permissions of a volume's root directory, as its context says (`mountPermissions`). Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csi_core::client::VolumeUse;
use csi_core::mount::flow::{fuse::FuseDaemon, shared::SharedSource};
use csi_core::mount::{MountOptions, testing::SimulatedNode};
use csi_core::node_plugins::RootPermissions;
use csi_core::types::MountFlags;
use csi_core::*;
use csi_proto::v1;
use tonic::Code;
use v1::volume_capability::MountVolume;

use crate::common::{Served, map, mount_capability, mount_with, refused};
use crate::private::on_tmpfs;

const WRITER: i32 = 1;
const READERS: i32 = 3;

struct Volumes(PathBuf);

fn asked(volume: &Attachment) -> Result<RootPermissions> {
    RootPermissions::from_context(&volume.volume_context, "mountPermissions")
}

#[async_trait]
impl Directories for Volumes {
    async fn directory(&self, _: &VolumeId) -> Result<PathBuf> {
        Ok(self.0.join("volume"))
    }
    fn root_permissions(&self, volume: &Attachment) -> Result<RootPermissions> {
        asked(volume)
    }
}

#[async_trait]
impl SharedFilesystems for Volumes {
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
    async fn daemon(&self, _: &Attachment, _: &MountFlags, _: &Path) -> Result<FuseDaemon> {
        Ok(FuseDaemon::new("flatfs"))
    }
    fn root_permissions(&self, volume: &Attachment) -> Result<RootPermissions> {
        asked(volume)
    }
}

fn with_permissions(capability: v1::VolumeCapability, permissions: &str) -> VolumeUse {
    let mut volume = VolumeUse::new("v", capability);
    volume.volume_context = map(&[("mountPermissions", permissions)]);
    volume
}

fn publish(target: &Path, permissions: &str) -> v1::NodePublishVolumeRequest {
    with_permissions(mount_capability(WRITER), permissions).node_publish_volume(target)
}

fn stage(staging: &Path, permissions: &str) -> v1::NodeStageVolumeRequest {
    with_permissions(mount_capability(WRITER), permissions).staged_at(staging).node_stage_volume()
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
        let volume = place.join("volume");
        let target = place.join("pod");
        std::fs::create_dir(&volume).unwrap();
        let set = |mode| std::fs::set_permissions(&volume, PermissionsExt::from_mode(mode)).unwrap();
        set(0o700);
        let node = DirectoryNode::service(Arc::new(Volumes(place.to_owned()))).volume_mount_group();
        let served = serve(node).await;
        let read_only = v1::NodePublishVolumeRequest { readonly: true, ..publish(&target, "02770") };
        served.call(read_only).await.unwrap();
        assert_eq!(mode(&volume), 0o700);
        served.call(v1::NodeUnpublishVolumeRequest::from(&publish(&target, ""))).await.unwrap();

        for before in [0o700, 0o777] {
            set(before);
            served.call(publish(&target, "02770")).await.unwrap();
            assert_eq!((mode(&volume), mode(&target)), (0o2770, 0o2770));
        }
        for unchanged in ["0", ""] {
            served.call(publish(&target, unchanged)).await.unwrap();
            assert_eq!(mode(&volume), 0o2770);
        }
        let error = refused(served.call(publish(&target, "0999")).await, Code::InvalidArgument);
        assert!(error.message().contains("volume_context[mountPermissions]"), "{error}");

        // The group of the volume keeps its access.
        let mount = MountVolume { volume_mount_group: "2000".to_owned(), ..Default::default() };
        let grouped = with_permissions(mount_with(WRITER, mount), "0700");
        served.call(grouped.node_publish_volume(&target)).await.unwrap();
        assert_eq!(mode(&volume), 0o2770);
    });
}

#[test]
fn the_root_of_a_shared_filesystem_gets_its_permissions_when_it_is_mounted() {
    on_tmpfs(async |place| {
        let staging = place.join("staging");
        let target = place.join("pod");
        std::fs::create_dir(&staging).unwrap();
        let served = serve(SharedNode::service(Arc::new(Volumes(place.to_owned())))).await;
        refused(served.call(stage(&staging, "rwx")).await, Code::InvalidArgument);
        served.call(stage(&staging, "0750")).await.unwrap();
        assert_eq!(mode(&staging), 0o750);
        served.call(stage(&staging, "0700")).await.unwrap();
        assert_eq!(mode(&staging), 0o700);

        // What could not be changed does not stay mounted.
        let other = place.join("other");
        std::fs::create_dir(&other).unwrap();
        let refused = v1::NodeStageVolumeRequest { volume_id: "refuses".into(), ..stage(&other, "0750") };
        served.call(refused).await.unwrap_err();
        let mounts = csi_core::mount::mounts().unwrap();
        assert!(!mounts.iter().any(|entry| entry.mount_point == other), "it stays mounted");
        let readers = v1::NodeStageVolumeRequest {
            volume_id: "refuses".into(),
            volume_capability: Some(mount_capability(READERS)),
            ..stage(&other, "0750")
        };
        served.call(readers).await.unwrap();

        let served = serve(SharedNode::unstaged_service(Arc::new(Volumes(place.to_owned())))).await;
        served.call(publish(&target, "03775")).await.unwrap();
        assert_eq!(mode(&target), 0o3775);
    });
}

#[tokio::test]
async fn the_root_of_a_fuse_filesystem_gets_its_permissions_after_its_start() {
    let node = SimulatedNode::new();
    let staging = Path::new("/staging");
    node.create_dir(staging);
    let service = FuseNode::service(Arc::new(Volumes(PathBuf::new())));
    let plugin = Plugin::new("permissions.csi.example.org", "1").node(service).host(node.clone());
    let served = Served::start(plugin).await;
    refused(served.call(stage(staging, "8")).await, Code::InvalidArgument);
    served.call(stage(staging, "0770")).await.unwrap();
    assert_eq!(node.permissions(staging), Some(0o770));
}
