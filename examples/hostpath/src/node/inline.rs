//! Inline ephemeral volumes: made by their publish, and gone with their unpublish.

use std::collections::BTreeMap;
use std::path::PathBuf;

use csi_core::mount::{LoopDevice, mounts};
use csi_core::{
    CreateRecord, CreateVolumeRequest, Error, Node as _, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnstageVolumeRequest, Quantity, Result, StageUnstageVolume as _, Volume, VolumeId, blocking,
    mounted_from, proto::v1,
};

use super::{HostNode, check_use};
use crate::Feature;
use crate::content::{self, Fill};
use crate::kind::Kind;
use crate::parameters::{Inline, Mutable};
use crate::records::VolumeRecord;

const MIB: u64 = 1 << 20;
const DEFAULT_SIZE: u64 = 512 * MIB;

impl HostNode {
    pub(super) async fn publish_inline(&self, request: NodePublishVolumeRequest) -> Result<()> {
        if !self.driver.features.has(Feature::Inline) {
            let reason = "asks for an inline volume, which this driver does not make";
            return Err(Error::invalid("volume_context[csi.storage.k8s.io/ephemeral]", reason));
        }
        let id = request
            .volume_id
            .as_file_name()
            .map_err(|_| Error::invalid("volume_id", "can't be a file name"))?;
        let record = match self.inline_store.find(id)? {
            Some(record) => VolumeRecord::clone(&record),
            None => self.make_inline(&request)?,
        };
        check_use(&record, &request.volume_capability)?;
        match record.kind {
            Kind::Directory => self.inline.directories.publish_volume(request).await,
            Kind::Image => {
                let request = self.with_staging(&request)?;
                self.inline.devices.stage_volume(staging(&request)?).await?;
                self.inline.devices.publish_volume(request).await
            }
        }
    }

    fn make_inline(&self, request: &NodePublishVolumeRequest) -> Result<VolumeRecord> {
        let asked: Inline = request.volume_context.parse_known()?;
        let uses = std::slice::from_ref(&request.volume_capability);
        let kind = self.driver.choose_kind(asked.kind, uses)?;
        let bytes =
            asked.size.map_or(DEFAULT_SIZE, Quantity::bytes).max(kind.least(uses)).next_multiple_of(MIB);
        let id = request.volume_id.to_string();
        let as_made = v1::CreateVolumeRequest {
            name: id.clone(),
            volume_capabilities: request.raw().volume_capability.iter().cloned().collect(),
            ..Default::default()
        };
        let volume = Volume::new(request.volume_id.clone(), bytes);
        let record = VolumeRecord {
            name: id.clone(),
            kind,
            pool: String::new(),
            mutable: Mutable::default(),
            created: CreateRecord::new(&CreateVolumeRequest::try_from(as_made)?, &volume),
            attached: BTreeMap::new(),
        };
        let made = self
            .inline_store
            .make(id, record.clone(), |place| content::make(kind, place, bytes, Fill::Thin))?;
        self.inline_store.commit(made)?;
        Ok(record)
    }

    /// An inline volume that is published nowhere any more is gone.
    pub(super) async fn end_inline(&self, id: &VolumeId) -> Result<()> {
        let Some(record) = self.inline_store.get(id.as_str()) else { return Ok(()) };
        let (content, staging) =
            (record.kind.content(&self.inline_store.place(id.as_str())), self.staging_of(id));
        let kind = record.kind;
        let is_used = blocking(move || match kind {
            Kind::Directory => Ok(!mounted_from(&content)?.is_empty()),
            Kind::Image => {
                let Some(device) = LoopDevice::find(&content)?.into_iter().next() else { return Ok(false) };
                let elsewhere = |entry: &csi_core::mount::MountEntry| {
                    entry.is_on(device.number()) && entry.mount_point != staging
                };
                Ok(mounts()?.iter().any(elsewhere))
            }
        });
        if is_used.await? {
            return Ok(());
        }
        if kind == Kind::Image {
            let staging_target_path = self.staging_of(id).display().to_string();
            let unstage = v1::NodeUnstageVolumeRequest { volume_id: id.to_string(), staging_target_path };
            self.inline.devices.unstage_volume(NodeUnstageVolumeRequest::try_from(unstage)?).await?;
        }
        self.inline_store.remove(id.as_str())
    }

    /// Where an inline image is staged: the orchestrator has no place for it.
    fn staging_of(&self, id: &VolumeId) -> PathBuf {
        self.inline_store.place(id.as_str()).join("staged")
    }

    /// The request with the place where the volume is staged, which that of an inline volume lacks.
    pub(super) fn with_staging(
        &self,
        request: &NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeRequest> {
        let mut wire = request.raw().clone();
        if request.volume_context.is_ephemeral() {
            wire.staging_target_path = self.staging_of(&request.volume_id).display().to_string();
        }
        wire.try_into()
    }
}

fn staging(request: &NodePublishVolumeRequest) -> Result<NodeStageVolumeRequest> {
    let wire = request.raw().clone();
    NodeStageVolumeRequest::try_from(v1::NodeStageVolumeRequest {
        volume_id: wire.volume_id,
        staging_target_path: wire.staging_target_path,
        volume_capability: wire.volume_capability,
        ..Default::default()
    })
}
