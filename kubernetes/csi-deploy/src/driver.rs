//! The facts about a driver.

use std::collections::BTreeSet;

use csi_proto::v1;
use csi_proto::{ControllerCapability, NodeCapability};
use v1::plugin_capability::Type as PluginCapability;
use v1::plugin_capability::service::Type as PluginService;
use v1::plugin_capability::volume_expansion::Type as Expansion;

/// What a driver reports about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    pub(crate) name: String,
    pub(crate) services: BTreeSet<PluginService>,
    pub(crate) expansion: Option<Expansion>,
    pub(crate) controller: BTreeSet<ControllerCapability>,
    pub(crate) node: Option<BTreeSet<NodeCapability>>,
}

impl Driver {
    /// Creates a driver with the name from GetPluginInfo, and no capabilities yet.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            services: BTreeSet::new(),
            expansion: None,
            controller: BTreeSet::new(),
            node: None,
        }
    }

    /// Adds the capabilities of GetPluginCapabilities. One that this crate does not know is left out.
    #[must_use]
    pub fn with_plugin<'a>(
        mut self,
        capabilities: impl IntoIterator<Item = &'a v1::PluginCapability>,
    ) -> Self {
        for capability in capabilities {
            match &capability.r#type {
                Some(PluginCapability::Service(service)) => self.services.insert(service.r#type()),
                Some(PluginCapability::VolumeExpansion(expansion)) => {
                    self.expansion = Some(expansion.r#type());
                    true
                }
                None => false,
            };
        }
        self
    }

    /// Adds capabilities of the Controller service.
    #[must_use]
    pub fn with_controller(mut self, capabilities: impl IntoIterator<Item = ControllerCapability>) -> Self {
        self.services.insert(PluginService::ControllerService);
        self.controller.extend(capabilities);
        self
    }

    /// Adds the Node service and its capabilities, which can be none.
    #[must_use]
    pub fn with_node(mut self, capabilities: impl IntoIterator<Item = NodeCapability>) -> Self {
        self.node.get_or_insert_default().extend(capabilities);
        self
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn serves(&self, service: PluginService) -> bool {
        self.services.contains(&service)
    }

    pub(crate) fn has_controller(&self, capability: ControllerCapability) -> bool {
        self.controller.contains(&capability)
    }

    pub(crate) fn has_node(&self, capability: NodeCapability) -> bool {
        self.node.as_ref().is_some_and(|node| node.contains(&capability))
    }
}
