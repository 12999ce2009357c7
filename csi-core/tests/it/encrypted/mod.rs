//! A plugin whose volumes are encrypted.
#![cfg(all(feature = "luks", target_os = "linux"))]
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use csi_core::client::VolumeUse;
use csi_core::*;
use csi_mount::internal::LoopDevice;
use csi_mount::{Filesystem, LoopOptions, Luks, LuksPbkdf};
use csi_proto::v1;
use tonic::Status;
use v1::volume_capability::{AccessType, BlockVolume};

use crate::common::{Served, map, mount_capability};

pub(crate) const KEY: &str = "canary-of-the-key";

/// Images in a directory, all of them encrypted.
pub(crate) struct Images(PathBuf);

impl Images {
    fn loop_device(&self, id: &VolumeId) -> Result<Option<LoopDevice>> {
        Ok(LoopDevice::find(self.0.join(id.as_str()))?.into_iter().next())
    }
}

#[async_trait]
impl BlockDevices for Images {
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
    async fn refresh(&self, volume: &Attachment) -> Result<()> {
        Ok(self.loop_device(&volume.volume_id)?.map_or(Ok(()), |device| device.refresh_size())?)
    }
    fn encryption(&self, volume: &Attachment) -> Result<Option<Luks>> {
        let cheap = LuksPbkdf::Pbkdf2 { iterations: 1000 };
        Ok((volume.volume_context.get("encrypted") == Some("true")).then(|| Luks::new().pbkdf(cheap)))
    }
    fn filesystems(&self) -> Vec<Filesystem> {
        vec![Filesystem::Ext4]
    }
}

/// A volume of 24 MiB, and a plugin for it.
pub(crate) struct Volume<'a> {
    pub(crate) place: &'a Path,
    pub(crate) served: Served,
}

impl<'a> Volume<'a> {
    pub(crate) async fn new(place: &'a Path) -> Self {
        std::fs::File::create(place.join("v")).unwrap().set_len(24 << 20).unwrap();
        std::fs::create_dir(place.join("staging")).unwrap();
        let node = BlockNode::service(Arc::new(Images(place.to_owned())));
        Self { place, served: Served::start(Plugin::new("luks.csi.example.org", "1").node(node)).await }
    }

    pub(crate) fn used_as(&self, access: AccessType) -> VolumeUse {
        let capability = v1::VolumeCapability { access_type: Some(access), ..mount_capability(1) };
        let mut volume = VolumeUse::new("v", capability).staged_at(self.place.join("staging"));
        volume.volume_context = map(&[("encrypted", "true")]);
        volume
    }

    pub(crate) async fn stage(
        &self,
        secrets: &[(&str, &str)],
        access: AccessType,
    ) -> Result<v1::NodeStageVolumeResponse, Status> {
        let request = self.used_as(access).node_stage_volume();
        self.served.call(v1::NodeStageVolumeRequest { secrets: map(secrets), ..request }).await
    }

    pub(crate) async fn publish(&self, access: AccessType) -> Result<v1::NodePublishVolumeResponse, Status> {
        self.served.call(self.used_as(access).node_publish_volume(&self.place.join("pod"))).await
    }

    pub(crate) fn is_zero(&self) -> bool {
        std::fs::read(self.place.join("v")).unwrap() == vec![0; 24 << 20]
    }
}

pub(crate) fn mount() -> AccessType {
    mount_capability(1).access_type.unwrap()
}

pub(crate) fn block() -> AccessType {
    AccessType::Block(BlockVolume {})
}
