//! What the plugin offers, as sets of the spec's capabilities: [`Offer`].
//!
//! It imports only ids and the spec's version, so values, calls and services can use it. `types/offered.rs` checks
//! values against it; `capabilities/` builds it from what is registered.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use csi_proto::v1;
pub(crate) use csi_proto::{ControllerCapability, NodeCapability};

pub(crate) use v1::plugin_capability::service::Type as PluginService;
use v1::plugin_capability::volume_expansion::Type as PluginExpansion;

use crate::ids::{Name, VolumeId};

/// When a volume can be expanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expansion {
    /// Also while it is published to a node.
    Online,
    /// Only while it is not published to any node.
    Offline,
}

pub(crate) type IdOfName = dyn Fn(&Name) -> Option<VolumeId> + Send + Sync;

/// The capabilities of the whole plugin: the same in every instance, whichever services it serves.
pub(crate) struct Offer {
    #[cfg(feature = "grpc-reflection")]
    pub(crate) spec: crate::spec::Spec,
    pub(crate) services: BTreeSet<PluginService>,
    pub(crate) expansion: Option<Expansion>,
    pub(crate) controller: BTreeSet<ControllerCapability>,
    pub(crate) node: BTreeSet<NodeCapability>,
    /// Whether a volume can be modified while it is expanded.
    pub(crate) modify_while_expanding: bool,
    /// The id that the driver gives to a volume of a name, if it knows it.
    pub(crate) volume_id_of_name: Box<IdOfName>,
    /// Whether SNAPSHOT_ACCESSIBILITY_CONSTRAINTS is declared, but withheld from callers of an older spec.
    pub(crate) withholds_snapshot_topology: bool,
    /// The prefix of the first topology key that has one; all other keys of the plugin must have the same
    /// prefix.
    pub(crate) topology_prefix: OnceLock<String>,
}

impl Offer {
    pub(crate) fn has_service(&self, service: PluginService) -> bool {
        self.services.contains(&service)
    }

    pub(crate) fn has_controller(&self, capability: ControllerCapability) -> bool {
        self.controller.contains(&capability)
    }

    pub(crate) fn has_node(&self, capability: NodeCapability) -> bool {
        self.node.contains(&capability)
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
