//! The node: the ready-made plugins for devices and directories, and the choice between them.

mod expand;
mod health;
mod inline;
mod publish;
mod stage;
mod stats;
mod volumes;

use csi_core::{Error, Result, VolumeCapability, VolumeId};

use crate::host::Driver;
use crate::records::{InlineRecord, VolumeRecord};
use crate::store::Store;
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
}

impl HostNode {
    pub(crate) fn new(driver: Driver) -> Result<Self> {
        let root = inline::directory(&driver);
        // Opened even if the feature is off: existing inline volumes can still be unpublished.
        let inline_store = match driver.serves_node {
            true => inline::open(root.clone())?,
            false => Store::of_another_process(root.clone()),
        };
        let volumes = Volumes::new(&driver, driver.data.join("volumes"));
        Ok(Self { volumes, inline: Volumes::new(&driver, root), inline_store, driver })
    }

    /// Finds the volume, and the set of volumes that contains it.
    async fn find(&self, id: &VolumeId) -> Result<(&Volumes, VolumeRecord)> {
        for volumes in [&self.volumes, &self.inline] {
            if let Some(record) = volumes.record(id).await? {
                return Ok((volumes, record));
            }
        }
        Err(Error::VolumeNotFound(id.clone()))
    }
}

/// Refuses a capability that the volume's kind does not support.
fn check_use(record: &VolumeRecord, capability: &VolumeCapability) -> Result<()> {
    match record.kind.supports(capability) {
        true => Ok(()),
        false => {
            let kind = record.kind.name();
            Err(Error::Unsupported(
                format!("volume_capability: is {capability}, but the volume is of kind {kind}").into(),
            ))
        }
    }
}
