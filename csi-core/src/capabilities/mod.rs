//! What the plugin offers, derived from what is registered.

mod implications;

use std::collections::BTreeSet;
use std::sync::OnceLock;

use csi_proto::v1;

use crate::controller::{ControllerTable, Expansion};
use crate::node::NodeTable;
use crate::{Error, Result, Topology, VolumeCapability};

/// A capability of the Controller service, by its name and number in the spec.
pub use v1::controller_service_capability::rpc::Type as ControllerCapability;
/// A capability of the Node service, by its name and number in the spec.
pub use v1::node_service_capability::rpc::Type as NodeCapability;
pub(crate) use v1::plugin_capability::service::Type as PluginService;
use v1::plugin_capability::volume_expansion::Type as PluginExpansion;

/// What is said of the plugin as a whole, besides its services.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Declared {
    pub(crate) volume_topology: bool,
    pub(crate) snapshot_topology: bool,
    pub(crate) expansion: Option<Expansion>,
    pub(crate) volume_condition: bool,
}

/// What a plugin is made of.
pub(crate) struct Parts<'a> {
    pub(crate) controller: Option<&'a ControllerTable>,
    pub(crate) node: Option<&'a NodeTable>,
    pub(crate) group_controller: bool,
    pub(crate) snapshot_metadata: bool,
    pub(crate) declared: Declared,
}

/// The capabilities of the whole plugin: the same in every instance, whatever part of it that one serves.
pub(crate) struct Offer {
    services: BTreeSet<PluginService>,
    expansion: Option<Expansion>,
    controller: BTreeSet<ControllerCapability>,
    node: BTreeSet<NodeCapability>,
    /// The prefix of the first topology key that has one: all others of the plugin have the same.
    prefix: OnceLock<String>,
}

impl Offer {
    /// # Errors
    /// What contradicts what, and the mend.
    pub(crate) fn new(parts: &Parts<'_>) -> Result<Self, String> {
        let services = [
            (parts.controller.is_some(), PluginService::ControllerService),
            (parts.declared.volume_topology, PluginService::VolumeAccessibilityConstraints),
            (parts.group_controller, PluginService::GroupControllerService),
            (parts.snapshot_metadata, PluginService::SnapshotMetadataService),
            (parts.declared.snapshot_topology, PluginService::SnapshotAccessibilityConstraints),
        ];
        let offer = Self {
            services: services.into_iter().filter_map(|(has, service)| has.then_some(service)).collect(),
            expansion: parts.controller.and_then(|table| table.expansion).or(parts.declared.expansion),
            controller: parts.controller.map(|table| table.offered.clone()).unwrap_or_default(),
            node: parts.node.map(|table| table.offered.clone()).unwrap_or_default(),
            prefix: OnceLock::new(),
        };
        implications::check(&offer, parts)?;
        Ok(offer)
    }

    pub(crate) fn has_service(&self, service: PluginService) -> bool {
        self.services.contains(&service)
    }

    pub(crate) fn has_controller(&self, capability: ControllerCapability) -> bool {
        self.controller.contains(&capability)
    }

    pub(crate) fn has_node(&self, capability: NodeCapability) -> bool {
        self.node.contains(&capability)
    }

    /// Refuses a use of a volume that the controller has no capability for. `field` is the name to blame.
    pub(crate) fn check_controller_use(&self, field: &str, capability: &VolumeCapability) -> Result<()> {
        check_mode(field, capability, self.has_controller(ControllerCapability::SingleNodeMultiWriter))
    }

    /// Refuses a use of a volume that the node has no capability for. `field` is the name to blame.
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

    /// Checks the places that the driver answers with: their keys and values, that all prefixes are one, and that
    /// the plugin declares this service where there are any.
    // spec: topology.one-prefix
    pub(crate) fn check_places(&self, field: &str, places: &[Topology], needs: PluginService) -> Result<()> {
        if !places.is_empty() && !self.has_service(needs) {
            let needs = needs.as_str_name();
            return Err(Error::broken(format!("{field} is set, but {needs} is not offered")));
        }
        for place in places {
            place.check().map_err(|reason| Error::broken(format!("{field}: {reason}")))?;
            for prefix in place.prefixes() {
                let first = self.prefix.get_or_init(|| prefix.to_owned());
                if first != prefix {
                    return Err(Error::broken(format!(
                        "{field}: a key has the prefix {prefix}, another of this plugin's has {first}; all must have one"
                    )));
                }
            }
        }
        Ok(())
    }

    // spec: services.capabilities-are-served
    pub(crate) fn plugin_wire(&self) -> Vec<v1::PluginCapability> {
        use v1::plugin_capability::{Service, Type, VolumeExpansion};
        let services = self.services.iter().map(|service| Type::Service(Service { r#type: *service as i32 }));
        let expansion = self.expansion.iter().map(|expansion| {
            let r#type = match expansion {
                Expansion::Online => PluginExpansion::Online,
                Expansion::Offline => PluginExpansion::Offline,
            };
            Type::VolumeExpansion(VolumeExpansion { r#type: r#type as i32 })
        });
        services.chain(expansion).map(|r#type| v1::PluginCapability { r#type: Some(r#type) }).collect()
    }

    pub(crate) fn controller_wire(&self) -> Vec<v1::ControllerServiceCapability> {
        use v1::controller_service_capability::{Rpc, Type};
        let wire = |capability: &ControllerCapability| v1::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: *capability as i32 })),
        };
        self.controller.iter().map(wire).collect()
    }

    pub(crate) fn node_wire(&self) -> Vec<v1::NodeServiceCapability> {
        use v1::node_service_capability::{Rpc, Type};
        let wire = |capability: &NodeCapability| v1::NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: *capability as i32 })),
        };
        self.node.iter().map(wire).collect()
    }
}

/// SINGLE_NODE_MULTI_WRITER brings the two modes that tell one workload from many.
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
