//! Shared filesystems through the whole plugin, staged and not, on real mounts. A tmpfs stands for the
//! share of a server. Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

use std::path::Path;
use std::sync::Arc;

use csi_core::client::VolumeUse;
use csi_core::mount::{MountOptions, flow::shared::SharedSource};
use csi_core::*;
use csi_proto::v1;
use tonic::Code;
use v1::volume_capability::MountVolume;

use crate::common::{Served, map, mount_capability, mount_with, refused};
use crate::foreign;
use crate::private::on_tmpfs;

/// A volume is a tmpfs of the size that its secret gives.
struct Memories;

#[async_trait]
impl SharedFilesystems for Memories {
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

fn volume(place: &Path, id: &str) -> VolumeUse {
    let capability = mount_with(5, MountVolume { mount_flags: vec!["noexec".into()], ..Default::default() });
    VolumeUse::new(id, capability).staged_at(place.join("staging"))
}

fn stage(volume: &VolumeUse) -> v1::NodeStageVolumeRequest {
    v1::NodeStageVolumeRequest { secrets: map(&[("size", "1m")]), ..volume.node_stage_volume() }
}

async fn serve(node: NodeService<SharedNode<Memories>>) -> Served {
    Served::start(Plugin::new("shared.csi.example.org", "1").node(node)).await
}

/// The group is an option of the filesystem, staged or mounted at the target.
#[test]
fn the_volumes_group_reaches_the_driver() {
    use std::os::unix::fs::MetadataExt as _;
    let of_group = |id: &str, group: &str| {
        let mount = MountVolume { volume_mount_group: group.to_owned(), ..Default::default() };
        VolumeUse::new(id, mount_with(5, mount))
    };
    on_tmpfs(async |place| {
        let served = serve(SharedNode::service(Arc::new(Memories)).volume_mount_group()).await;
        let staging = place.join("staging");
        let target = place.join("target");
        std::fs::create_dir(&staging).unwrap();
        let request = |group| stage(&of_group("one", group).staged_at(&staging));
        refused(served.call(request("users")).await, Code::InvalidArgument);
        served.call(request("4321")).await.unwrap();
        assert_eq!(staging.metadata().unwrap().gid(), 4321);

        let served = serve(SharedNode::unstaged_service(Arc::new(Memories)).volume_mount_group()).await;
        served.call(of_group("two", "1234").node_publish_volume(&target)).await.unwrap();
        assert_eq!(target.metadata().unwrap().gid(), 1234);
    });
}

#[test]
fn staged_once_and_bound_for_each_workload() {
    on_tmpfs(async |place| {
        let served = serve(SharedNode::service(Arc::new(Memories))).await;
        std::fs::create_dir(place.join("staging")).unwrap();
        let other = volume(place, "two");
        let volume = volume(place, "one");
        let [a, b, c] = ["a", "b", "c"].map(|target| place.join(target));
        refused(served.call(volume.node_publish_volume(&a)).await, Code::FailedPrecondition);
        for _ in 0..2 {
            served.call(stage(&volume)).await.unwrap();
        }
        refused(served.call(stage(&other)).await, Code::AlreadyExists);

        let read_only = v1::NodePublishVolumeRequest { readonly: true, ..volume.node_publish_volume(&b) };
        for request in [volume.node_publish_volume(&a), volume.node_publish_volume(&a), read_only] {
            served.call(request).await.unwrap();
        }
        std::fs::write(a.join("file"), "shared").unwrap();
        assert_eq!(std::fs::read_to_string(b.join("file")).unwrap(), "shared");
        assert!(std::fs::write(b.join("file"), "x").is_err());

        let stats = served.call(volume.node_get_volume_stats(&a)).await.unwrap();
        assert_eq!(stats.usage[0].total, 1 << 20, "the driver's option got to the kernel");

        refused(served.call(other.node_publish_volume(&c)).await, Code::FailedPrecondition);
        assert!(!c.exists());
        refused(served.call(other.node_get_volume_stats(&a)).await, Code::NotFound);

        for target in [&a, &b, &b] {
            served.call(volume.node_unpublish_volume(target)).await.unwrap();
            assert!(!target.exists());
        }
        for _ in 0..2 {
            served.call(volume.node_unstage_volume()).await.unwrap();
        }
        assert!(!csi_mount::mounts().unwrap().iter().any(|entry| entry.source == "server:/one"));
    });
}

/// The volume is a share of a server, and the foreign mount is a tmpfs.
#[test]
fn a_foreign_mount_at_a_volumes_place_is_refused_and_stays() {
    on_tmpfs(async |place| {
        let volume = volume(place, "one");
        let staged = serve(SharedNode::service(Arc::new(Memories))).await;
        let publish = volume.node_publish_volume(&place.join("a"));
        foreign::mounts_are_refused_and_stay(&staged, Some(stage(&volume)), publish).await;
        let unstaged = serve(SharedNode::unstaged_service(Arc::new(Memories))).await;
        let publish = volume.node_publish_volume(&place.join("b"));
        foreign::mounts_are_refused_and_stay(&unstaged, None, publish).await;
    });
}

#[test]
fn without_staging_each_target_is_a_mount() {
    on_tmpfs(async |place| {
        let served = serve(SharedNode::unstaged_service(Arc::new(Memories))).await;
        let volume = volume(place, "one");
        let [a, b, c] = ["a", "b", "c"].map(|target| place.join(target));
        for target in [&a, &a, &b] {
            served.call(volume.node_publish_volume(target)).await.unwrap();
        }
        // A mode that allows one target on a node.
        let one_only = VolumeUse::new("one", mount_capability(2));
        refused(served.call(one_only.node_publish_volume(&c)).await, Code::FailedPrecondition);
        assert!(!c.exists());
        let mounts = csi_mount::mounts().unwrap();
        assert_eq!(mounts.iter().filter(|entry| entry.source == "server:/one").count(), 2);
        for target in [&a, &b] {
            served.call(volume.node_unpublish_volume(target)).await.unwrap();
        }
    });
}
