//! VOLUME_MOUNT_GROUP through whole plugins: the group gets the files, or the mount shows them as the
//! group's. Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

mod common;
mod private;

use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Served, mount_capability};
use csi_core::*;
use csi_mount::{Filesystem, LoopDevice, LoopOptions};
use csi_proto::v1;
use private::on_tmpfs;
use tonic::Code;
use v1::volume_capability::AccessType;

const GROUP: u32 = 2000;

/// Volumes below a directory: as directories, or as images.
struct Store(PathBuf, MountGroup);

impl Store {
    fn loop_device(&self, id: &VolumeId) -> Result<Option<LoopDevice>> {
        Ok(LoopDevice::find(self.0.join(id.as_str()))?.into_iter().next())
    }
}

#[async_trait]
impl Directories for Store {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("n")
    }
    async fn directory(&self, id: &VolumeId) -> Result<PathBuf> {
        Ok(self.0.join(id.as_str()))
    }
    fn mount_group(&self) -> MountGroup {
        self.1
    }
}

#[async_trait]
impl BlockDevices for Store {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("n")
    }
    async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
        let image = self.0.join(volume.volume_id.as_str());
        Ok(LoopDevice::attach_or_find(image, &LoopOptions::new())?.path().to_owned())
    }
    async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
        Ok(self.loop_device(&volume.volume_id)?.map(|device| device.path().to_owned()))
    }
    async fn detach(&self, volume: &Attachment) -> Result<()> {
        Ok(self.loop_device(&volume.volume_id)?.map_or(Ok(()), LoopDevice::detach)?)
    }
    fn mount_group(&self) -> MountGroup {
        self.1
    }
    fn filesystems(&self) -> Vec<Filesystem> {
        vec![Filesystem::Ext4]
    }
}

fn capability(group: &str) -> Option<v1::VolumeCapability> {
    let mut capability = mount_capability(1);
    if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
        mount.volume_mount_group = group.to_owned();
    }
    Some(capability)
}

fn publish(place: &Path, staging: Option<&Path>) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: staging.map(|path| path.display().to_string()).unwrap_or_default(),
        target_path: place.join("pod").display().to_string(),
        volume_capability: capability("2000"),
        ..Default::default()
    }
}

fn unpublish(place: &Path) -> v1::NodeUnpublishVolumeRequest {
    let target_path = place.join("pod").display().to_string();
    v1::NodeUnpublishVolumeRequest { volume_id: "v".into(), target_path }
}

fn group_of(path: PathBuf) -> u32 {
    path.metadata().unwrap().gid()
}

const WAYS: [MountGroup; 2] = [MountGroup::ChangeFiles, MountGroup::MapOwners { on_disk: 0 }];

#[test]
fn a_directorys_files_are_the_groups() {
    for way in WAYS {
        on_tmpfs(async |place| {
            let volume = place.join("v");
            std::fs::create_dir(&volume).unwrap();
            std::fs::write(volume.join("file"), "x").unwrap();
            let node = DirectoryNode::service(Arc::new(Store(place.to_owned(), way))).volume_mount_group();
            let served = Served::start(Plugin::new("group.csi.example.org", "1").node(node)).await;
            // A read-only publish changes nothing on the disk.
            let read_only = v1::NodePublishVolumeRequest { readonly: true, ..publish(place, None) };
            served.node().node_publish_volume(read_only).await.unwrap();
            assert_eq!(group_of(volume.join("file")), 0, "{way:?}");
            served.node().node_unpublish_volume(unpublish(place)).await.unwrap();

            for _ in 0..2 {
                served.node().node_publish_volume(publish(place, None)).await.unwrap();
            }
            for name in [".", "file"] {
                assert_eq!(group_of(place.join("pod").join(name)), GROUP, "{way:?}");
            }
            let on_disk = if way == MountGroup::ChangeFiles { GROUP } else { 0 };
            assert_eq!(group_of(volume.join("file")), on_disk, "{way:?}");
            for bad in ["nobody", "4294967295", "-1"] {
                let request = v1::NodePublishVolumeRequest {
                    volume_capability: capability(bad),
                    ..publish(place, None)
                };
                let error = served.node().node_publish_volume(request).await.unwrap_err();
                assert_eq!(error.code(), Code::InvalidArgument, "{bad}: {error}");
            }
            served.node().node_unpublish_volume(unpublish(place)).await.unwrap();
        });
    }
}

#[test]
fn a_filesystem_on_a_device_is_the_groups() {
    for way in WAYS {
        on_tmpfs(async |place| {
            std::fs::File::create(place.join("v")).unwrap().set_len(16 << 20).unwrap();
            let staging = place.join("staging");
            std::fs::create_dir(&staging).unwrap();
            let node = BlockNode::service(Arc::new(Store(place.to_owned(), way))).volume_mount_group();
            let served = Served::start(Plugin::new("group.csi.example.org", "1").node(node)).await;
            let stage = v1::NodeStageVolumeRequest {
                volume_id: "v".into(),
                staging_target_path: staging.display().to_string(),
                volume_capability: capability("2000"),
                ..Default::default()
            };
            served.node().node_stage_volume(stage).await.unwrap();
            std::fs::write(staging.join("file"), "x").unwrap();
            for _ in 0..2 {
                served.node().node_publish_volume(publish(place, Some(&staging))).await.unwrap();
            }
            assert_eq!(group_of(place.join("pod/file")), GROUP, "{way:?}");
            std::fs::write(place.join("pod/new"), "x").unwrap();
            chown(place.join("pod/new"), None, Some(GROUP)).unwrap();
            let on_disk = if way == MountGroup::ChangeFiles { GROUP } else { 0 };
            assert_eq!(group_of(staging.join("new")), on_disk, "{way:?}");

            served.node().node_unpublish_volume(unpublish(place)).await.unwrap();
            let staging_target_path = staging.display().to_string();
            let unstage = v1::NodeUnstageVolumeRequest { volume_id: "v".into(), staging_target_path };
            served.node().node_unstage_volume(unstage).await.unwrap();
        });
    }
}
