//! Inline ephemeral volumes: created at publish, deleted at unpublish.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use csi_core::controller::CreateRecord;
use csi_core::kubernetes::Quantity;
use csi_core::mount::{Host, Target, unmount};
use csi_core::node::{
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnstageVolumeRequest, StageUnstageVolume as _,
};
use csi_core::node_plugins::{mounted_besides, mounted_from};
use csi_core::proto::v1;
use csi_core::types::NodeId;
use csi_core::{
    CreateVolumeRequest, Error, IoContext as _, Node as _, Result, TypedRequest as _, Volume, VolumeId,
    blocking,
};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

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

/// The directory of a node's inline volumes. Each node that has the data directory has its own, which it keeps
/// locked while it runs.
pub(super) fn directory(driver: &Driver) -> PathBuf {
    driver.data.join("inline").join(file_name(&driver.node.node_id))
}

/// Locks a node's directory: shared by the processes that have this node id, such as the old and the new one of
/// an update; exclusively by a process that takes a volume out of it. `None` if other processes hold it.
pub(super) fn lock(directory: &Path, how: FlockOperation) -> Result<Option<NodeLock>> {
    let file = File::open(directory).at("open", directory)?;
    match flock(&file, how) {
        Ok(()) => Ok(Some(NodeLock(file))),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error).at("lock", directory),
    }
}

/// The lock of a node's directory, until it is dropped.
#[derive(Debug)]
pub(super) struct NodeLock(File);

impl Drop for NodeLock {
    /// Closing the file is not enough: a child that another thread is forking has a copy of it for a moment.
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
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

/// An inline volume whose pod's directory is gone.
#[derive(Debug, Clone)]
pub(crate) struct LeftVolume {
    id: String,
    target: PathBuf,
}

/// What to do about it, for people.
impl fmt::Display for LeftVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = self.target.display();
        write!(
            f,
            "inline volume {} is kept, and its pod's directory is gone; if no pod has the UID in the path, end it by: \
             csi node unpublish-volume --volume-id {0} --target-path {target}",
            self.id
        )
    }
}

/// Opens the volumes of an earlier process. A volume whose publish never succeeded is removed if no workload
/// uses it, because the orchestrator is not obliged to unpublish it. The other volumes wait for their
/// unpublish, even across a reboot. If that took the pod's directory, only a pod that still exists gets the volume again,
/// and nothing here says whether it does: those volumes are returned too, for people.
pub(super) fn open(root: PathBuf) -> Result<(Store<InlineRecord>, Vec<LeftVolume>)> {
    let store: Store<InlineRecord> = Store::open(root)?;
    let mut left = Vec::new();
    for (id, record) in store.all() {
        if !record.published {
            if let Err(error) = undo_publish(&store, &id, record.volume.kind) {
                tracing::warn!("inline volume {id}, whose publish did not finish, can't be removed: {error}");
            }
        } else if is_left(&store, &id, &record).unwrap_or_default() {
            tracing::warn!(
                "inline volume {id} is kept, and its pod's directory is gone: {}",
                record.target.display()
            );
            left.push(LeftVolume { id, target: record.target.clone() });
        }
    }
    Ok((store, left))
}

/// Whether the orchestrator has lost the directory of a volume that nothing uses.
fn is_left(store: &Store<InlineRecord>, id: &str, record: &InlineRecord) -> Result<bool> {
    let is_known = match record.target.parent() {
        Some(parent) => parent.try_exists()?,
        None => true,
    };
    Ok(!is_known && !is_used(&Host::kernel(), record.volume.kind, &store.place(id))?)
}

fn undo_publish(store: &Store<InlineRecord>, id: &str, kind: Kind) -> Result<()> {
    let place = store.place(id);
    let staging = staging_in(&store.place(id));
    if is_used(&Host::kernel(), kind, &place)? {
        return Ok(());
    }
    tracing::warn!("removes inline volume {id}, whose publish did not finish");
    if staging.try_exists()? {
        unmount(&Target::new(&staging)?)?;
    }
    Host::kernel().devices().loop_detach(&kind.content(&place))?;
    store.remove(id)
}

/// Whether a workload uses the volume. The staging mount does not count.
fn is_used(host: &Host, kind: Kind, place: &Path) -> Result<bool> {
    let content = kind.content(place);
    let staging = staging_in(place);
    match kind {
        Kind::Directory => Ok(!mounted_from(host, &content)?.is_empty()),
        Kind::Image => {
            let Some(device) = host.devices().loop_devices(&content)?.into_iter().next() else {
                return Ok(false);
            };
            Ok(!mounted_besides(host, device.number, &staging)?.is_empty())
        }
    }
}

/// The staging path of an inline image. The orchestrator gives none.
fn staging_in(place: &Path) -> PathBuf {
    place.join("staged")
}

impl HostNode {
    /// Takes over the inline volume with this id, if the directory of another node id has it. The orchestrator
    /// asks only the node that has the volume, so that id is a former one of this node.
    ///
    /// # Errors
    /// [`Error::Unavailable`] while a process with the other node id runs.
    pub(super) fn adopt_inline(&self, id: &VolumeId) -> Result<()> {
        let Ok(name) = id.as_file_name() else { return Ok(()) };
        let own = directory(&self.driver);
        let all = self.driver.data.join("inline");
        if !self.driver.serves_node || self.inline_store.find(name)?.is_some() {
            return Ok(());
        }
        for entry in std::fs::read_dir(&all).at("list", &all)? {
            let other = entry.at("list", &all)?.path();
            let place = other.join(name);
            if other == own || !place.try_exists().at("look for", &place)? {
                continue;
            }
            let Some(lock) = lock(&other, FlockOperation::NonBlockingLockExclusive)? else {
                return Err(Error::Unavailable(
                    format!("{} belongs to a node whose driver runs: ask that node", place.display()).into(),
                ));
            };
            tracing::warn!("takes over {}: this node had another id before", place.display());
            self.inline_store.take_over(&place, name)?;
            drop(lock);
        }
        Ok(())
    }

    pub(super) async fn publish_inline(&self, request: NodePublishVolumeRequest) -> Result<()> {
        if !self.driver.features.has(Feature::Inline) {
            let reason = "requests an inline volume, which this driver does not support";
            return Err(Error::invalid("volume_context[csi.storage.k8s.io/ephemeral]", reason));
        }
        let host = request.host().clone();
        let volume_id = request.volume_id.clone();
        let id = volume_id.as_file_name().map_err(|_| Error::invalid("volume_id", "can't be a file name"))?;
        self.adopt_inline(&volume_id)?;
        let record = match self.inline_store.find(id)? {
            Some(record) => InlineRecord::clone(&record),
            None => self.make_inline(&request)?,
        };
        let target = request.target_path.clone();
        let published = self.publish_made(request, &record.volume).await;
        if record.published {
            return published;
        }
        if published.is_ok() {
            self.inline_store.update(id, |record| {
                record.published = true;
                record.target = target;
                Ok(())
            })?;
        } else if let Err(left) = self.end_inline(&host, &volume_id).await {
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
        let asked: Inline = request.volume_context.parse()?;
        let uses = std::slice::from_ref(&request.volume_capability);
        let kind =
            self.driver.choose_kind(asked.kind, uses, ["volume_context[kind]", "volume_capability"])?;
        let size = asked.size.map_or(DEFAULT_SIZE, Quantity::bytes).max(kind.least(uses));
        let bytes = size.checked_next_multiple_of(MIB).ok_or_else(|| {
            Error::OutOfRange(format!("volume_context[size]: {size} bytes are too many").into())
        })?;
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
        let record = InlineRecord { volume, published: false, target: PathBuf::new() };
        let made = self.inline_store.make(id, record.clone(), |place| {
            content::make(request.host(), kind, place, bytes, Fill::Thin)
        })?;
        self.inline_store.commit(made)?;
        Ok(record)
    }

    /// Deletes an inline volume that is no longer published anywhere. The content shows its kind, so that one without
    /// a readable record is deleted too.
    pub(super) async fn end_inline(&self, host: &Host, id: &VolumeId) -> Result<()> {
        if id.as_file_name().is_err() {
            return Ok(());
        }
        let place = self.inline_store.place(id.as_str());
        let found = place.clone();
        if !blocking(move || Ok(found.try_exists()?)).await? {
            return Ok(());
        }
        let content = place.clone();
        let Some(kind) = blocking(move || Ok(Kind::of_content(&content))).await? else {
            return self.inline_store.remove(id.as_str());
        };
        let of_call = host.clone();
        if blocking(move || is_used(&of_call, kind, &place)).await? {
            return Ok(());
        }
        if kind == Kind::Image {
            let staging_target_path = self.staging_of(id).display().to_string();
            let unstage = v1::NodeUnstageVolumeRequest { volume_id: id.to_string(), staging_target_path };
            let unstage = NodeUnstageVolumeRequest::try_from(unstage)?.with_host(host);
            self.inline.devices.unstage_volume(unstage).await?;
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
        Ok(NodePublishVolumeRequest::try_from(wire)?.with_host(request.host()))
    }
}

fn staging(request: &NodePublishVolumeRequest) -> Result<NodeStageVolumeRequest> {
    let wire = request.raw().clone();
    let stage = NodeStageVolumeRequest::try_from(v1::NodeStageVolumeRequest {
        volume_id: wire.volume_id,
        staging_target_path: wire.staging_target_path,
        volume_capability: wire.volume_capability,
        ..Default::default()
    })?;
    Ok(stage.with_host(request.host()))
}
