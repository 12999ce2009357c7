//! Finds the users of a volume on this machine by asking the kernel, so that a restart loses nothing.

use csi_core::node_plugins::mounted_from;
use csi_core::{Error, Result, mount};

use crate::host::Host;
use crate::kind::Kind;
use crate::records::VolumeRecord;

impl Host {
    /// Refuses a volume that is in use.
    ///
    /// # Errors
    /// [`Error::InUse`] while the volume is attached to a node, is a device of this machine, or is mounted
    /// here.
    pub(crate) fn refuse_in_use(&self, node: &mount::Host, id: &str, record: &VolumeRecord) -> Result<()> {
        if let Some(attached_to) = record.attached.keys().next() {
            return Err(Error::InUse(format!("volume {id} is attached to node {attached_to}").into()));
        }
        let content = record.kind.content(&self.volumes.place(id));
        match record.kind {
            Kind::Image => match node.devices().loop_devices(&content)?.first() {
                Some(device) => Err(Error::InUse(
                    format!("volume {id} is on this node, as {}", device.path.display()).into(),
                )),
                None => Ok(()),
            },
            Kind::Directory => match mounted_from(node, &content)?.first() {
                Some(target) => {
                    Err(Error::InUse(format!("volume {id} is published at {}", target.display()).into()))
                }
                None => Ok(()),
            },
        }
    }
}
