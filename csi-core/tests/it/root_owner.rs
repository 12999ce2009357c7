//! A node plugin unmounts only what belongs to its volume: with any id, after a restart, and for volumes
//! that are gone. Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use csi_core::client::VolumeUse;
use csi_core::mount::flow::{ephemeral::Content, shared::SharedSource};
use csi_core::mount::{Mount, Target, mounts, unmount};
use csi_core::node::NodePublishVolumeRequest;
use csi_core::*;
use tonic::Code;

use crate::common::{Served, mount_capability, refused};
use crate::private::on_tmpfs;

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
        "directory" => plugin.node(DirectoryNode::service(volumes)),
        "ephemeral" => plugin.node(EphemeralNode::service(volumes)),
        "shared" => plugin.node(SharedNode::service(volumes)),
        _ => plugin.node(SharedNode::unstaged_service(volumes)),
    })
    .await
}

fn volume(place: &Path, id: &str) -> VolumeUse {
    VolumeUse::new(id, mount_capability(5)).staged_at(place.join("staging"))
}

fn layers(path: &Path) -> usize {
    mounts().unwrap().iter().filter(|entry| entry.mount_point == path).count()
}

// spec: node-unpublish-volume.undoes, node-unstage-volume.undoes
#[test]
fn only_the_volumes_own_mounts_are_unmounted() {
    for kind in KINDS {
        println!("{kind}");
        on_tmpfs(async |place| {
            let target = &place.join("target");
            let staging = &place.join("staging");
            for name in ["staging", "volumes/v1", "volumes/v2", "foreign"] {
                std::fs::create_dir_all(place.join(name)).unwrap();
            }
            let foreign = &place.join("foreign");
            Mount::new("tmpfs", "foreign").at(&Target::new(foreign).unwrap()).unwrap();
            let v1 = volume(place, "v1");
            let v2 = volume(place, "v2");
            let served = start(kind, place, &[]).await;
            if kind == "shared" {
                served.call(v1.node_stage_volume()).await.unwrap();
                refused(served.call(v2.node_stage_volume()).await, Code::AlreadyExists);
                refused(served.call(v2.node_publish_volume(target)).await, Code::FailedPrecondition);
                refused(served.call(v2.node_unstage_volume()).await, Code::FailedPrecondition);
                let elsewhere = v1.clone().staged_at(foreign);
                refused(served.call(elsewhere.node_unstage_volume()).await, Code::FailedPrecondition);
            }
            served.call(v1.node_publish_volume(target)).await.unwrap();
            // A later process has the same knowledge.
            drop(served);
            let served = start(kind, place, &[]).await;
            for other in [&v2, &volume(place, "unknown")] {
                refused(served.call(other.node_unpublish_volume(target)).await, Code::FailedPrecondition);
                refused(served.call(other.node_unpublish_volume(foreign)).await, Code::FailedPrecondition);
            }
            assert_eq!((layers(target), layers(foreign)), (1, 1));
            served.call(v1.node_unpublish_volume(target)).await.unwrap();
            assert!(!target.exists());
            if kind == "shared" {
                served.call(v1.node_unstage_volume()).await.unwrap();
                assert_eq!(layers(staging), 0);
            }
            // An empty directory that the driver did not create.
            std::fs::create_dir(target).unwrap();
            served.call(v1.node_unpublish_volume(target)).await.unwrap();
            assert!(target.exists());
            drop(served);
            let served = start(kind, place, &[place]).await;
            served.call(v1.node_unpublish_volume(target)).await.unwrap();
            assert!(!target.exists(), "it is below a root");
            unmount(&Target::new(foreign).unwrap()).unwrap();
        });
    }
}

#[test]
fn what_is_left_of_a_volume_that_is_gone_is_unmounted_below_the_roots_only() {
    on_tmpfs(async |place| {
        let target = &place.join("target");
        std::fs::create_dir_all(place.join("volumes/v1")).unwrap();
        let unpublish = volume(place, "v1").node_unpublish_volume(target);
        let served = start("directory", place, &[]).await;
        served.call(volume(place, "v1").node_publish_volume(target)).await.unwrap();
        std::fs::remove_dir(place.join("volumes/v1")).unwrap();
        let status = refused(served.call(unpublish.clone()).await, Code::FailedPrecondition);
        assert!(status.message().contains("VOLUME_ROOTS"), "{status}");
        assert_eq!(layers(target), 1);
        drop(served);
        let served = start("directory", place, &[place]).await;
        let others = volume(place, "v2").node_unpublish_volume(target);
        refused(served.call(others).await, Code::FailedPrecondition);
        served.call(unpublish).await.unwrap();
        assert!(!target.exists());
    });
}
