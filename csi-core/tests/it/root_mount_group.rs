//! VOLUME_MOUNT_GROUP and id maps of a class through whole plugins: the group gets the files, or the mount shows
//! other owners than the disk. Needs root.
#![cfg(all(feature = "mount", target_os = "linux"))]

use std::os::unix::fs::{MetadataExt, chown};
use std::path::PathBuf;
use std::sync::Arc;

use csi_core::client::VolumeUse;
use csi_core::node_plugins::{FilesystemOptions, MountGroup};
use csi_core::*;
use csi_mount::internal::LoopDevice;
use csi_mount::{Filesystem, IdMap, LoopOptions};
use csi_proto::v1;
use tonic::Code;
use v1::volume_capability::MountVolume;

use crate::common::{Served, map, mount_with, refused};
use crate::private::on_tmpfs;

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
    async fn directory(&self, id: &VolumeId) -> Result<PathBuf> {
        Ok(self.0.join(id.as_str()))
    }
    fn mount_group(&self) -> MountGroup {
        self.1
    }
}

#[async_trait]
impl BlockDevices for Store {
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
    fn id_map(&self, volume: &Attachment) -> Result<IdMap> {
        FilesystemOptions::kept_in(&volume.volume_context)?.id_map()
    }
    fn filesystems(&self) -> Vec<Filesystem> {
        vec![Filesystem::Ext4]
    }
}

fn in_group(group: &str) -> VolumeUse {
    let mount = MountVolume { volume_mount_group: group.to_owned(), ..Default::default() };
    VolumeUse::new("v", mount_with(1, mount))
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
            let pod = place.join("pod");
            let publish = in_group("2000").node_publish_volume(&pod);
            let unpublish = v1::NodeUnpublishVolumeRequest::from(&publish);
            // A read-only publish changes nothing on the disk.
            let read_only = v1::NodePublishVolumeRequest { readonly: true, ..publish.clone() };
            served.call(read_only).await.unwrap();
            assert_eq!(group_of(volume.join("file")), 0, "{way:?}");
            served.call(unpublish.clone()).await.unwrap();

            for _ in 0..2 {
                served.call(publish.clone()).await.unwrap();
            }
            for name in [".", "file"] {
                assert_eq!(group_of(pod.join(name)), GROUP, "{way:?}");
            }
            let on_disk = if way == MountGroup::ChangeFiles { GROUP } else { 0 };
            assert_eq!(group_of(volume.join("file")), on_disk, "{way:?}");
            for bad in ["nobody", "4294967295", "-1"] {
                let request = in_group(bad).node_publish_volume(&pod);
                refused(served.call(request).await, Code::InvalidArgument);
            }
            served.call(unpublish).await.unwrap();
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
            let volume = in_group("2000").staged_at(&staging);
            let pod = place.join("pod");
            served.call(volume.node_stage_volume()).await.unwrap();
            std::fs::write(staging.join("file"), "x").unwrap();
            for _ in 0..2 {
                served.call(volume.node_publish_volume(&pod)).await.unwrap();
            }
            assert_eq!(group_of(pod.join("file")), GROUP, "{way:?}");
            std::fs::write(pod.join("new"), "x").unwrap();
            chown(pod.join("new"), None, Some(GROUP)).unwrap();
            let on_disk = if way == MountGroup::ChangeFiles { GROUP } else { 0 };
            assert_eq!(group_of(staging.join("new")), on_disk, "{way:?}");

            served.call(volume.node_unpublish_volume(&pod)).await.unwrap();
            served.call(volume.node_unstage_volume()).await.unwrap();
        });
    }
}

/// Group 5 on the disk is the pod's group 2000, by the map of the class; with a group of the call the map has both.
#[test]
fn a_class_chooses_the_owners_that_a_pod_sees() {
    for (way, context, shown, on_disk) in [
        (MountGroup::ChangeFiles, [("mapUsers", "0:1000"), ("mapGroups", "5:2000")], (1000, GROUP), (0, 5)),
        (
            MountGroup::MapOwners { on_disk: 0 },
            [("mapUsers", "0:1000"), ("mapGroups", "5:6")],
            (1000, GROUP),
            (0, 0),
        ),
    ] {
        on_tmpfs(async |place| {
            std::fs::File::create(place.join("v")).unwrap().set_len(16 << 20).unwrap();
            let [staging, pod] = ["staging", "pod"].map(|name| place.join(name));
            std::fs::create_dir(&staging).unwrap();
            let node = BlockNode::service(Arc::new(Store(place.to_owned(), way))).volume_mount_group();
            let served = Served::start(Plugin::new("group.csi.example.org", "1").node(node)).await;
            let mut volume = in_group("2000").staged_at(&staging);
            volume.volume_context = map(&context);
            served.call(volume.node_stage_volume()).await.unwrap();
            let owner = |path: PathBuf| {
                let metadata = path.metadata().unwrap();
                (metadata.uid(), metadata.gid())
            };
            for _ in 0..2 {
                served.call(volume.node_publish_volume(&pod)).await.unwrap();
            }
            assert_eq!((owner(pod.clone()), owner(staging.clone())), (shown, on_disk), "{way:?}");
            std::fs::write(pod.join("new"), "x").unwrap();
            chown(pod.join("new"), Some(1000), Some(GROUP)).unwrap();
            assert_eq!(owner(staging.join("new")), on_disk, "{way:?}");
            served.call(volume.node_unpublish_volume(&pod)).await.unwrap();

            for (key, value, field) in [
                ("mapUsers", "0-1000", "parameters[mapUsers]"),
                ("mapGroups", "0:7,7:8", "parameters[mapGroups]"),
                ("mapGroups", "0:2000,2000:1", "parameters[mapGroups]"),
            ] {
                volume.volume_context = map(&[(key, value)]);
                let error =
                    refused(served.call(volume.node_publish_volume(&pod)).await, Code::InvalidArgument);
                assert!(error.message().contains(field), "{error}");
            }
            if way != MountGroup::ChangeFiles {
                volume.volume_context = map(&[("mapGroups", "0:7")]);
                let error =
                    refused(served.call(volume.node_publish_volume(&pod)).await, Code::InvalidArgument);
                assert!(error.message().contains("volume_mount_group: map owners: 0 is already"), "{error}");
            }
            served.call(volume.node_unstage_volume()).await.unwrap();
        });
    }
}
