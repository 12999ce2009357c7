//! Checks of values that need a capability against what the plugin offers.

use super::{Topology, VolumeCapability};
use crate::error::{Error, Result};
use crate::offer::{ControllerCapability, NodeCapability, Offer, PluginService};

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

    /// Checks the topologies in a driver's answer by the rules of [`topology_fault`](Self::topology_fault).
    // spec: topology.one-prefix
    pub(crate) fn check_places(&self, field: &str, places: &[Topology], needs: PluginService) -> Result<()> {
        let fault = self.topology_fault(places, needs);
        fault.map_or(Ok(()), |fault| Err(Error::broken(format!("{field}{fault}"))))
    }

    /// What is wrong with these topologies of the plugin, to print after a name for them: a key or value that
    /// the spec and Kubernetes do not allow, a second prefix, or a service that the plugin does not declare.
    pub(crate) fn topology_fault(&self, places: &[Topology], needs: PluginService) -> Option<String> {
        if !places.is_empty() && !self.has_service(needs) {
            let needs = needs.as_str_name();
            return Some(format!(" is set, but {needs} is not offered"));
        }
        for place in places {
            if let Err(reason) = place.well_formed() {
                return Some(format!(": {reason}"));
            }
            for prefix in place.prefixes() {
                let first = self.topology_prefix.get_or_init(|| prefix.to_owned());
                if first != prefix {
                    return Some(format!(
                        ": a key has the prefix {prefix}, another of this plugin's has {first}; all must have one"
                    ));
                }
            }
        }
        None
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
