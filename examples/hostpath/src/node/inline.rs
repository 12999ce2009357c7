//! Inline ephemeral volumes: created at publish, deleted at unpublish.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use csi_core::mount::{LoopDevice, MountEntry, Target, mounts, unmount};
use csi_core::{
    CreateRecord, CreateVolumeRequest, Error, Node as _, NodeId, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnstageVolumeRequest, Quantity, Result, StageUnstageVolume as _, Volume,
    VolumeId, blocking, mounted_from, proto::v1,
};

use super::{HostNode, check_use};
use crate::Feature;
use crate::content::{self, Fill};
use crate::host::Driver;
use crate::kind::Kind;
use crate::parameters::{Inline, Mutable};
use crate::records::{InlineRecord, VolumeRecord};
use crate::store::Store;

const MIB: u64 = 1 << 20;
const DEFAULT_SIZE: u64 = 512 * MIB;

/// The directory of a node's inline volumes. Each node that has the data directory has its own.
pub(super) fn directory(driver: &Driver) -> PathBuf {
    driver.data.join("inline").join(file_name(&driver.node.node_id))
}

/// A file name for a node id, which can hold any character. Different ids have different names.
fn file_name(node: &NodeId) -> String {
    let plain = |at: usize, byte: u8| {
        byte.is_ascii_alphanumeric() || b"-_".contains(&byte) || (byte == b'.' && at > 0)
    };
    let bytes = node.as_str().bytes().enumerate();
    bytes
        .map(|(at, byte)| if plain(at, byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") })
        .collect()
}

/// Opens the volumes of an earlier process. A volume whose publish never succeeded is removed if no workload
/// uses it, because the orchestrator is not obliged to unpublish it. The other volumes wait for their
/// unpublish, even across a reboot.
pub(super) fn open(root: PathBuf) -> Result<Store<InlineRecord>> {
    let store: Store<InlineRecord> = Store::open(root)?;
    for (id, record) in store.all() {
        if !record.published
            && let Err(error) = undo_publish(&store, &id, record.volume.kind)
        {
            tracing::warn!("inline volume {id}, whose publish did not finish, can't be removed: {error}");
        }
    }
    Ok(store)
}

fn undo_publish(store: &Store<InlineRecord>, id: &str, kind: Kind) -> Result<()> {
    let (place, staging) = (store.place(id), staging_in(&store.place(id)));
    if is_used(kind, &place)? {
        return Ok(());
    }
    tracing::warn!("removes inline volume {id}, whose publish did not finish");
    if staging.try_exists()? {
        unmount(&Target::new(&staging)?)?;
    }
    LoopDevice::detach_all(kind.content(&place))?;
    store.remove(id)
}

/// Whether a workload uses the volume. The staging mount does not count.
fn is_used(kind: Kind, place: &Path) -> Result<bool> {
    let (content, staging) = (kind.content(place), staging_in(place));
    match kind {
        Kind::Directory => Ok(!mounted_from(&content)?.is_empty()),
        Kind::Image => {
            let Some(device) = LoopDevice::find(&content)?.into_iter().next() else { return Ok(false) };
            let elsewhere = |entry: &MountEntry| entry.is_on(device.number()) && entry.mount_point != staging;
            Ok(mounts()?.iter().any(elsewhere))
        }
    }
}

/// The staging path of an inline image. The orchestrator gives none.
fn staging_in(place: &Path) -> PathBuf {
    place.join("staged")
}

impl HostNode {
    pub(super) async fn publish_inline(&self, request: NodePublishVolumeRequest) -> Result<()> {
        if !self.driver.features.has(Feature::Inline) {
            let reason = "requests an inline volume, which this driver does not support";
            return Err(Error::invalid("volume_context[csi.storage.k8s.io/ephemeral]", reason));
        }
        let volume_id = request.volume_id.clone();
        let id = volume_id.as_file_name().map_err(|_| Error::invalid("volume_id", "can't be a file name"))?;
        let record = match self.inline_store.find(id)? {
            Some(record) => InlineRecord::clone(&record),
            None => self.make_inline(&request)?,
        };
        let published = self.publish_made(request, &record.volume).await;
        if record.published {
            return published;
        }
        if published.is_ok() {
            self.inline_store.update(id, |record| {
                record.published = true;
                Ok(())
            })?;
        } else if let Err(left) = self.end_inline(&volume_id).await {
            // After a final error the orchestrator does not unpublish the volume.
            tracing::warn!(
                "inline volume {id}, whose publish failed, can't be removed before the next start: {left}"
            );
        }
        published
    }

    async fn publish_made(&self, request: NodePublishVolumeRequest, record: &VolumeRecord) -> Result<()> {
        check_use(record, &request.volume_capability)?;
        match record.kind {
            Kind::Directory => self.inline.directories.publish_volume(request).await,
            Kind::Image => {
                let request = self.with_staging(&request)?;
                self.inline.devices.stage_volume(staging(&request)?).await?;
                self.inline.devices.publish_volume(request).await
            }
        }
    }

    fn make_inline(&self, request: &NodePublishVolumeRequest) -> Result<InlineRecord> {
        let asked: Inline = request.volume_context.parse_known()?;
        let uses = std::slice::from_ref(&request.volume_capability);
        let kind = self.driver.choose_kind(asked.kind, uses)?;
        let bytes =
            asked.size.map_or(DEFAULT_SIZE, Quantity::bytes).max(kind.least(uses)).next_multiple_of(MIB);
        self.driver.sizes.check(bytes)?;
        let id = request.volume_id.to_string();
        let as_made = v1::CreateVolumeRequest {
            name: id.clone(),
            volume_capabilities: request.raw().volume_capability.iter().cloned().collect(),
            ..Default::default()
        };
        let volume = Volume::new(request.volume_id.clone(), bytes);
        let volume = VolumeRecord {
            name: id.clone(),
            kind,
            pool: String::new(),
            mutable: Mutable::default(),
            created: CreateRecord::new(&CreateVolumeRequest::try_from(as_made)?, &volume),
            attached: BTreeMap::new(),
            filesystem: request.volume_capability.is_mount(),
        };
        let record = InlineRecord { volume, published: false };
        let made = self
            .inline_store
            .make(id, record.clone(), |place| content::make(kind, place, bytes, Fill::Thin))?;
        self.inline_store.commit(made)?;
        Ok(record)
    }

    /// Deletes an inline volume that is no longer published anywhere.
    pub(super) async fn end_inline(&self, id: &VolumeId) -> Result<()> {
        let Some(record) = self.inline_store.get(id.as_str()) else { return Ok(()) };
        let (kind, place) = (record.volume.kind, self.inline_store.place(id.as_str()));
        if blocking(move || is_used(kind, &place)).await? {
            return Ok(());
        }
        if kind == Kind::Image {
            let staging_target_path = self.staging_of(id).display().to_string();
            let unstage = v1::NodeUnstageVolumeRequest { volume_id: id.to_string(), staging_target_path };
            self.inline.devices.unstage_volume(NodeUnstageVolumeRequest::try_from(unstage)?).await?;
        }
        self.inline_store.remove(id.as_str())
    }

    fn staging_of(&self, id: &VolumeId) -> PathBuf {
        staging_in(&self.inline_store.place(id.as_str()))
    }

    /// Adds the volume's staging path to a publish request, which for an inline volume has none.
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
