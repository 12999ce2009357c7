//! A node plugin unmounts only what belongs to its volume: with any id, after a restart, and for volumes
//! that are gone. Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

mod common;
mod private;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Served, mount_capability};
use csi_core::mount::flow::{ephemeral::Content, shared::SharedSource};
use csi_core::mount::{Mount, Target, mounts, unmount};
use csi_core::*;
use csi_proto::v1;
use private::on_tmpfs;
use tonic::{Code, Status};

/// Volumes of three kinds, with any id.
struct Volumes(PathBuf);

#[async_trait]
impl Directories for Volumes {
    async fn directory(&self, id: &VolumeId) -> Result<PathBuf> {
        Ok(self.0.join(id.as_str()))
    }
}

#[async_trait]
impl SharedFilesystems for Volumes {
    /// One share of one server for all volumes: only the mark distinguishes two of them.
    async fn source(&self, _: &Attachment) -> Result<SharedSource> {
        Ok(SharedSource::new("tmpfs", "server:/share"))
    }
}

#[async_trait]
impl EphemeralContent for Volumes {
    async fn content(&self, _: &NodePublishVolumeRequest) -> Result<Content> {
        Ok(Content::new().file("file", "text")?)
    }
}

const KINDS: [&str; 4] = ["directory", "ephemeral", "shared", "unstaged"];

/// Starts the driver of this kind, like a new process.
async fn start(kind: &str, place: &Path, roots: &[&Path]) -> Served {
    let volumes = Arc::new(Volumes(place.join("volumes")));
    let plugin = Plugin::new("driver.csi.example.org", "1").volume_roots(roots);
    Served::start(match kind {
        "directory" => plugin.node(DirectoryNode::service(volumes).without_self_check()),
        "ephemeral" => plugin.node(EphemeralNode::service(volumes).without_self_check()),
        "shared" => plugin.node(SharedNode::service(volumes).without_self_check()),
        _ => plugin.node(SharedNode::unstaged_service(volumes).without_self_check()),
    })
    .await
}

async fn stage(served: &Served, place: &Path, id: &str) -> std::result::Result<(), Status> {
    let staging_target_path = place.join("staging").display().to_string();
    let volume_capability = Some(mount_capability(5));
    let request = v1::NodeStageVolumeRequest {
        volume_id: id.into(),
        staging_target_path,
        volume_capability,
        ..Default::default()
    };
    served.node().node_stage_volume(request).await.map(drop)
}

async fn publish(served: &Served, place: &Path, id: &str) -> std::result::Result<(), Status> {
    let request = v1::NodePublishVolumeRequest {
        volume_id: id.into(),
        staging_target_path: place.join("staging").display().to_string(),
        target_path: place.join("target").display().to_string(),
        volume_capability: Some(mount_capability(5)),
        ..Default::default()
    };
    served.node().node_publish_volume(request).await.map(drop)
}

async fn unpublish(served: &Served, target: &Path, id: &str) -> std::result::Result<(), Status> {
    let target_path = target.display().to_string();
    let request = v1::NodeUnpublishVolumeRequest { volume_id: id.into(), target_path };
    served.node().node_unpublish_volume(request).await.map(drop)
}

async fn unstage(served: &Served, staging: &Path, id: &str) -> std::result::Result<(), Status> {
    let staging_target_path = staging.display().to_string();
    let request = v1::NodeUnstageVolumeRequest { volume_id: id.into(), staging_target_path };
    served.node().node_unstage_volume(request).await.map(drop)
}

fn layers(path: &Path) -> usize {
    mounts().unwrap().iter().filter(|entry| entry.mount_point == path).count()
}

fn refused(outcome: std::result::Result<(), Status>, what: &str) {
    let status = outcome.expect_err(what);
    assert_eq!(status.code(), Code::FailedPrecondition, "{what}: {status}");
}

// spec: node-unpublish-volume.undoes, node-unstage-volume.undoes
#[test]
fn only_the_volumes_own_mounts_are_unmounted() {
    for kind in KINDS {
        on_tmpfs(async |place| {
            let (target, staging) = (&place.join("target"), &place.join("staging"));
            for name in ["staging", "volumes/v1", "volumes/v2", "foreign"] {
                std::fs::create_dir_all(place.join(name)).unwrap();
            }
            let foreign = &place.join("foreign");
            Mount::new("tmpfs", "foreign").at(&Target::new(foreign).unwrap()).unwrap();
            let served = start(kind, place, &[]).await;
            if kind == "shared" {
                stage(&served, place, "v1").await.unwrap();
                let taken = stage(&served, place, "v2").await.unwrap_err();
                assert_eq!(taken.code(), Code::AlreadyExists, "{taken}");
                refused(publish(&served, place, "v2").await, "publish of v2 from v1's staging path");
                refused(unstage(&served, staging, "v2").await, "unstage of v1 as v2");
                refused(unstage(&served, foreign, "v1").await, "unstage of a foreign mount");
            }
            publish(&served, place, "v1").await.unwrap();
            // A later process has the same knowledge.
            drop(served);
            let served = start(kind, place, &[]).await;
            for id in ["v2", "unknown"] {
                refused(unpublish(&served, target, id).await, &format!("{kind}: unpublish of v1 as {id}"));
                refused(unpublish(&served, foreign, id).await, &format!("{kind}: foreign mount as {id}"));
            }
            assert_eq!((layers(target), layers(foreign)), (1, 1), "{kind}");
            unpublish(&served, target, "v1").await.unwrap();
            assert!(!target.exists(), "{kind}");
            if kind == "shared" {
                unstage(&served, staging, "v1").await.unwrap();
                assert_eq!(layers(staging), 0);
            }
            // An empty directory that the driver did not create.
            std::fs::create_dir(target).unwrap();
            unpublish(&served, target, "v1").await.unwrap();
            assert!(target.exists(), "{kind}");
            drop(served);
            let served = start(kind, place, &[place]).await;
            unpublish(&served, target, "v1").await.unwrap();
            assert!(!target.exists(), "{kind}: it is below a root");
            unmount(&Target::new(foreign).unwrap()).unwrap();
        });
    }
}

#[test]
fn what_is_left_of_a_volume_that_is_gone_is_unmounted_below_the_roots_only() {
    on_tmpfs(async |place| {
        let target = &place.join("target");
        std::fs::create_dir_all(place.join("volumes/v1")).unwrap();
        let served = start("directory", place, &[]).await;
        publish(&served, place, "v1").await.unwrap();
        std::fs::remove_dir(place.join("volumes/v1")).unwrap();
        refused(unpublish(&served, target, "v1").await, "no root is above it");
        assert_eq!(layers(target), 1);
        drop(served);
        let served = start("directory", place, &[place]).await;
        refused(unpublish(&served, target, "v2").await, "it is v1's");
        unpublish(&served, target, "v1").await.unwrap();
        assert!(!target.exists());
    });
}
