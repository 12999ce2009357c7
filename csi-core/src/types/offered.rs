//! Checks of values that need a capability against what the plugin offers.

use super::{Topology, VolumeCapability};
use crate::offer::{ControllerCapability, NodeCapability, Offer, PluginService};
use crate::{Error, Result};

impl Offer {
    /// Refuses a use of a volume for which the controller lacks the capability. `field` is the name for the
    /// error.
    pub(crate) fn check_controller_use(&self, field: &str, capability: &VolumeCapability) -> Result<()> {
        check_mode(field, capability, self.has_controller(ControllerCapability::SingleNodeMultiWriter))
    }

    /// Refuses a use of a volume for which the node lacks the capability. `field` is the name for the
    /// error.
    pub(crate) fn check_node_use(&self, field: &str, capability: &VolumeCapability) -> Result<()> {
        check_mode(field, capability, self.has_node(NodeCapability::SingleNodeMultiWriter))?;
        match capability.volume_mount_group() {
            Some(_) if !self.has_node(NodeCapability::VolumeMountGroup) => Err(Error::invalid(
                format!("{field}.mount.volume_mount_group"),
                "must be left out: the driver has no VOLUME_MOUNT_GROUP",
            )),
            _ => Ok(()),
        }
    }

    /// Checks the topologies in a driver's answer: their keys and values, that all keys have the same
    /// prefix, and that the plugin declares this service if the answer has any topologies.
    // spec: topology.one-prefix
    pub(crate) fn check_places(&self, field: &str, places: &[Topology], needs: PluginService) -> Result<()> {
        if !places.is_empty() && !self.has_service(needs) {
            let needs = needs.as_str_name();
            return Err(Error::broken(format!("{field} is set, but {needs} is not offered")));
        }
        for place in places {
            place.check().map_err(|reason| Error::broken(format!("{field}: {reason}")))?;
            for prefix in place.prefixes() {
                let first = self.topology_prefix.get_or_init(|| prefix.to_owned());
                if first != prefix {
                    return Err(Error::broken(format!(
                        "{field}: a key has the prefix {prefix}, another of this plugin's has {first}; all must have one"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// The two modes that distinguish one workload from several need SINGLE_NODE_MULTI_WRITER.
// spec: access-modes.newer-need-capability, node.mount-group
fn check_mode(field: &str, capability: &VolumeCapability, tells_workloads: bool) -> Result<()> {
    let mode = capability.access_mode;
    if mode.needs_single_node_multi_writer() && !tells_workloads {
        return Err(Error::invalid(
            format!("{field}.access_mode.mode"),
            format!("is {mode}: the driver has no SINGLE_NODE_MULTI_WRITER"),
        ));
    }
    Ok(())
}
