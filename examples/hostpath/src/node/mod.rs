//! The node: the ready-made plugins for devices and for directories, and which of them a volume wants.

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

/// In a publish context: the volume was attached to be read only.
pub(crate) const READONLY: &str = "readonly";

/// The node plugin.
#[derive(Debug)]
pub(crate) struct HostNode {
    driver: Driver,
    /// What the controller made.
    volumes: Volumes,
    /// What lives as long as a pod does. The node makes these, so they are in a store of its own.
    inline: Volumes,
    inline_store: Store<InlineRecord>,
}

impl HostNode {
    pub(crate) fn new(driver: Driver) -> Result<Self> {
        let root = inline::directory(&driver);
        // Also without the feature: those that there are are to end.
        let inline_store = match driver.serves_node {
            true => inline::open(root.clone())?,
            false => Store::of_another_process(root.clone()),
        };
        let volumes = Volumes::new(&driver, driver.data.join("volumes"));
        Ok(Self { volumes, inline: Volumes::new(&driver, root), inline_store, driver })
    }

    /// The volume, and among which it is.
    async fn find(&self, id: &VolumeId) -> Result<(&Volumes, VolumeRecord)> {
        for volumes in [&self.volumes, &self.inline] {
            if let Some(record) = volumes.record(id).await? {
                return Ok((volumes, record));
            }
        }
        Err(Error::VolumeNotFound(id.clone()))
    }
}

/// Refuses a use that the volume is not for.
fn check_use(record: &VolumeRecord, capability: &VolumeCapability) -> Result<()> {
    match record.kind.supports(capability) {
        true => Ok(()),
        false => {
            let kind = record.kind.name();
            Err(Error::Unsupported(format!(
                "volume_capability: is {capability}, the volume is of kind {kind}"
            )))
        }
    }
}
