//! Shared filesystems through the whole plugin, staged and not, on real mounts. A tmpfs stands for the
//! share of a server. Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

mod common;
mod foreign;
mod private;

use std::path::Path;
use std::sync::Arc;

use common::{Served, mount_capability};
use csi_core::mount::{MountOptions, flow::shared::SharedSource};
use csi_core::*;
use csi_proto::v1;
use private::on_tmpfs;
use tonic::Code;
use v1::volume_capability::AccessType;

/// A volume is a tmpfs of the size that its secret gives.
struct Memories;

#[async_trait]
impl SharedFilesystems for Memories {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("n")
    }

    async fn source(&self, volume: &Attachment) -> Result<SharedSource> {
        let mut options = MountOptions::new();
        if let Some(size) = volume.secrets.get("size") {
            options = options.with_option("size", size)?;
        }
        if let Some(group) = volume.mount_group()? {
            options = options.with_option("gid", &group.to_string())?;
        }
        Ok(SharedSource::new("tmpfs", format!("server:/{}", volume.volume_id)).options(options))
    }
}

fn with_flags(flags: &[&str]) -> Option<v1::VolumeCapability> {
    let mut capability = mount_capability(5);
    if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
        mount.mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }
    Some(capability)
}

fn stage(place: &Path, volume: &str) -> v1::NodeStageVolumeRequest {
    v1::NodeStageVolumeRequest {
        volume_id: volume.into(),
        staging_target_path: place.join("staging").display().to_string(),
        volume_capability: with_flags(&["noexec"]),
        secrets: [("size".to_owned(), "1m".to_owned())].into(),
        ..Default::default()
    }
}

fn publish(place: &Path, target: &str) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest {
        volume_id: "one".into(),
        staging_target_path: place.join("staging").display().to_string(),
        target_path: place.join(target).display().to_string(),
        volume_capability: with_flags(&["noexec"]),
        ..Default::default()
    }
}

fn unpublish(place: &Path, target: &str) -> v1::NodeUnpublishVolumeRequest {
    let target_path = place.join(target).display().to_string();
    v1::NodeUnpublishVolumeRequest { volume_id: "one".into(), target_path }
}

async fn serve(node: NodeService<SharedNode<Memories>>) -> Served {
    Served::start(Plugin::new("shared.csi.example.org", "1").node(node)).await
}

/// The group is an option of the filesystem, staged or mounted at the target.
#[test]
fn the_volumes_group_reaches_the_driver() {
    use std::os::unix::fs::MetadataExt as _;
    let with_group = |group: &str| {
        let mut capability = with_flags(&[]);
        if let Some(AccessType::Mount(mount)) = capability.as_mut().and_then(|it| it.access_type.as_mut()) {
            mount.volume_mount_group = group.to_owned();
        }
        capability
    };
    on_tmpfs(async |place| {
        let served = serve(SharedNode::service(Arc::new(Memories)).volume_mount_group()).await;
        std::fs::create_dir(place.join("staging")).unwrap();
        let request = |group| v1::NodeStageVolumeRequest {
            volume_capability: with_group(group),
            ..stage(place, "one")
        };
        let error = served.node().node_stage_volume(request("users")).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        served.node().node_stage_volume(request("4321")).await.unwrap();
        assert_eq!(place.join("staging").metadata().unwrap().gid(), 4321);

        let served = serve(SharedNode::unstaged_service(Arc::new(Memories)).volume_mount_group()).await;
        let request = v1::NodePublishVolumeRequest {
            volume_id: "two".into(),
            staging_target_path: String::new(),
            volume_capability: with_group("1234"),
            ..publish(place, "target")
        };
        served.node().node_publish_volume(request).await.unwrap();
        assert_eq!(place.join("target").metadata().unwrap().gid(), 1234);
    });
}

#[test]
fn staged_once_and_bound_for_each_workload() {
    on_tmpfs(async |place| {
        let served = serve(SharedNode::service(Arc::new(Memories))).await;
        std::fs::create_dir(place.join("staging")).unwrap();
        let early = served.node().node_publish_volume(publish(place, "a")).await.unwrap_err();
        assert_eq!(early.code(), Code::FailedPrecondition, "{early}");
        for _ in 0..2 {
            served.node().node_stage_volume(stage(place, "one")).await.unwrap();
        }
        let other = served.node().node_stage_volume(stage(place, "two")).await.unwrap_err();
        assert_eq!(other.code(), Code::AlreadyExists, "{other}");

        let read_only = v1::NodePublishVolumeRequest { readonly: true, ..publish(place, "b") };
        for request in [publish(place, "a"), publish(place, "a"), read_only] {
            served.node().node_publish_volume(request).await.unwrap();
        }
        std::fs::write(place.join("a/file"), "shared").unwrap();
        assert_eq!(std::fs::read_to_string(place.join("b/file")).unwrap(), "shared");
        assert!(std::fs::write(place.join("b/file"), "x").is_err());

        let volume_path = place.join("a").display().to_string();
        let asked =
            v1::NodeGetVolumeStatsRequest { volume_id: "one".into(), volume_path, ..Default::default() };
        let stats = served.node().node_get_volume_stats(asked.clone()).await.unwrap().into_inner();
        assert_eq!(stats.usage[0].total, 1 << 20, "the driver's option got to the kernel");

        let others = v1::NodePublishVolumeRequest { volume_id: "two".into(), ..publish(place, "c") };
        let refused = served.node().node_publish_volume(others).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(!place.join("c").exists());
        let others = v1::NodeGetVolumeStatsRequest { volume_id: "two".into(), ..asked };
        let refused = served.node().node_get_volume_stats(others).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{refused}");

        for target in ["a", "b", "b"] {
            served.node().node_unpublish_volume(unpublish(place, target)).await.unwrap();
            assert!(!place.join(target).exists());
        }
        let staging_target_path = place.join("staging").display().to_string();
        let request = v1::NodeUnstageVolumeRequest { volume_id: "one".into(), staging_target_path };
        for _ in 0..2 {
            served.node().node_unstage_volume(request.clone()).await.unwrap();
        }
        assert!(!csi_mount::mounts().unwrap().iter().any(|entry| entry.source == "server:/one"));
    });
}

/// The volume is a share of a server, and the foreign mount is a tmpfs.
#[test]
fn a_foreign_mount_at_a_volumes_place_is_refused_and_stays() {
    on_tmpfs(async |place| {
        let staged = serve(SharedNode::service(Arc::new(Memories))).await;
        foreign::mounts_are_refused_and_stay(&staged, Some(stage(place, "one")), publish(place, "a")).await;
        let unstaged = serve(SharedNode::unstaged_service(Arc::new(Memories))).await;
        foreign::mounts_are_refused_and_stay(&unstaged, None, publish(place, "b")).await;
    });
}

#[test]
fn without_staging_each_target_is_a_mount() {
    on_tmpfs(async |place| {
        let served = serve(SharedNode::unstaged_service(Arc::new(Memories))).await;
        for target in ["a", "a", "b"] {
            served.node().node_publish_volume(publish(place, target)).await.unwrap();
        }
        // A mode that allows one target on a node.
        let one_only = v1::NodePublishVolumeRequest {
            volume_capability: Some(mount_capability(2)),
            ..publish(place, "c")
        };
        let refused = served.node().node_publish_volume(one_only).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(!place.join("c").exists());
        let mounts = csi_mount::mounts().unwrap();
        assert_eq!(mounts.iter().filter(|entry| entry.source == "server:/one").count(), 2);
        for target in ["a", "b"] {
            served.node().node_unpublish_volume(unpublish(place, target)).await.unwrap();
        }
    });
}
