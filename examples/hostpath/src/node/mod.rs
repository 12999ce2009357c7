//! The node: the ready-made plugins for devices and directories, and the choice between them.

mod calls;
mod inline;
mod volumes;

use csi_core::{Error, Result, VolumeCapability, VolumeId, blocking};
use rustix::fs::FlockOperation;

use crate::host::Driver;
use crate::kind::Kind;
use crate::records::{InlineRecord, VolumeRecord};
use crate::store::Store;
pub(crate) use inline::LeftVolume;
use volumes::Volumes;

/// A key of the publish context: the volume is attached read-only.
pub(crate) const READONLY: &str = "readonly";

/// The node plugin.
#[derive(Debug)]
pub(crate) struct HostNode {
    driver: Driver,
    /// The volumes that the controller created.
    volumes: Volumes,
    /// The inline volumes, which live as long as their pod. The node creates them in a store of its own.
    inline: Volumes,
    inline_store: Store<InlineRecord>,
    left: Vec<LeftVolume>,
    /// Shows that a process with this node id runs.
    _lock: Option<inline::NodeLock>,
}

impl HostNode {
    pub(crate) fn new(driver: Driver) -> Result<Self> {
        let root = inline::directory(&driver);
        // Opened even if the feature is off: existing inline volumes can still be unpublished.
        let (inline_store, left) = if driver.serves_node {
            inline::open(root.clone())?
        } else {
            (Store::of_another_process(root.clone()), Vec::new())
        };
        let lock = if driver.serves_node { inline::lock(&root, FlockOperation::LockShared)? } else { None };
        let volumes = Volumes::new(&driver, driver.data.join("volumes"));
        Ok(Self { volumes, inline: Volumes::new(&driver, root), inline_store, left, driver, _lock: lock })
    }

    /// The inline volumes that the start found without their pod's directory.
    pub(crate) fn left_volumes(&self) -> &[LeftVolume] {
        &self.left
    }

    /// Finds the volume, and the set of volumes that contains it.
    async fn find(&self, id: &VolumeId) -> Result<(&Volumes, VolumeRecord)> {
        if let Some(record) = self.volumes.record(id).await? {
            return Ok((&self.volumes, record));
        }
        self.adopt_inline(id)?;
        match self.inline.record(id).await? {
            Some(record) => Ok((&self.inline, record)),
            None => Err(Error::VolumeNotFound(id.clone())),
        }
    }

    /// Finds the set of volumes that contains the volume, and its kind. Without a record that can be read, its content
    /// and the node's mounts show what it is: calls that end a volume need no more. `None` if it does not exist.
    async fn find_kind(&self, id: &VolumeId) -> Result<Option<(&Volumes, Kind)>> {
        let unreadable = match self.find(id).await {
            Ok((volumes, record)) => return Ok(Some((volumes, record.kind))),
            Err(Error::VolumeNotFound(_)) => return Ok(None),
            // Another node has it.
            Err(error @ Error::Unavailable(_)) => return Err(error),
            Err(error) => error,
        };
        for volumes in [&self.volumes, &self.inline] {
            let place = volumes.place(id)?;
            if let Some(kind) = blocking(move || Ok(Kind::of_content(&place))).await? {
                tracing::warn!("works without the record of a volume: {unreadable}");
                return Ok(Some((volumes, kind)));
            }
        }
        Ok(None)
    }
}

/// Refuses a capability that the volume's kind does not support.
fn check_use(record: &VolumeRecord, capability: &VolumeCapability) -> Result<()> {
    if record.kind.supports(capability) {
        Ok(())
    } else {
        let kind = record.kind.name();
        Err(Error::Unsupported(
            format!("volume_capability: is {capability}, but the volume is of kind {kind}").into(),
        ))
    }
}
