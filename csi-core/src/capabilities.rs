//! What the plugin offers, derived from what is registered, and the contradictions that are refused at start-up.

use std::collections::BTreeSet;

use csi_proto::v1;

use crate::controller::{ControllerTable, Expansion};
use crate::node::NodeTable;
use v1::controller_service_capability::rpc::Type as ControllerCapability;
use v1::node_service_capability::rpc::Type as NodeCapability;
use v1::plugin_capability::service::Type as PluginService;
use v1::plugin_capability::volume_expansion::Type as PluginExpansion;

/// The capabilities of the whole plugin: the same in every instance, whatever part of it that one serves.
pub(crate) struct Offer {
    services: BTreeSet<PluginService>,
    expansion: Option<PluginExpansion>,
    controller: BTreeSet<ControllerCapability>,
    node: BTreeSet<NodeCapability>,
}

impl Offer {
    /// # Errors
    /// What contradicts what, and the mend.
    pub(crate) fn new(
        controller: Option<&ControllerTable>,
        node: Option<&NodeTable>,
        topology: bool,
    ) -> Result<Self, String> {
        let mut services = BTreeSet::new();
        if controller.is_some() {
            services.insert(PluginService::ControllerService);
        }
        if topology {
            services.insert(PluginService::VolumeAccessibilityConstraints);
        }
        let expansion = controller.and_then(|table| table.expansion).map(|expansion| match expansion {
            Expansion::Online => PluginExpansion::Online,
            Expansion::Offline => PluginExpansion::Offline,
        });
        let offer = Self {
            services,
            expansion,
            controller: controller.map(|table| table.offered.clone()).unwrap_or_default(),
            node: node.map(|table| table.offered.clone()).unwrap_or_default(),
        };
        offer.check(controller.is_some() && node.is_some())?;
        Ok(offer)
    }

    fn check(&self, both: bool) -> Result<(), String> {
        let needs = [
            (ControllerCapability::CloneVolume, ControllerCapability::CreateDeleteVolume),
            (ControllerCapability::PublishReadonly, ControllerCapability::PublishUnpublishVolume),
        ];
        for (one, other) in needs {
            if self.has_controller(one) && !self.has_controller(other) {
                let (one, other) = (one.as_str_name(), other.as_str_name());
                return Err(format!(
                    "{one} is declared without {other}: register {other}, or leave out {one}"
                ));
            }
        }
        let controller = self.has_controller(ControllerCapability::SingleNodeMultiWriter);
        let node = self.has_node(NodeCapability::SingleNodeMultiWriter);
        if both && controller != node {
            let (has, lacks) = if controller { ("controller", "node") } else { ("node", "controller") };
            return Err(format!(
                "SINGLE_NODE_MULTI_WRITER is declared by the {has} and not by the {lacks}: call \
                 single_node_multi_writer() on both services, or on neither"
            ));
        }
        Ok(())
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

    pub(crate) fn plugin_wire(&self) -> Vec<v1::PluginCapability> {
        use v1::plugin_capability::{Service, Type, VolumeExpansion};
        let services = self.services.iter().map(|service| Type::Service(Service { r#type: *service as i32 }));
        let expansion = self
            .expansion
            .iter()
            .map(|expansion| Type::VolumeExpansion(VolumeExpansion { r#type: *expansion as i32 }));
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
