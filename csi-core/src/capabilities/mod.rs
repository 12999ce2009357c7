//! Makes the [`Offer`] from the tables of registered traits, and refuses capabilities that contradict each
//! other.
//!
//! It imports the services, for their tables ([`ControllerTable`], [`NodeTable`]). Only the plugin imports
//! it.

mod implications;

use std::sync::{Arc, OnceLock};

use crate::controller::ControllerTable;
use crate::node::NodeTable;
use crate::offer::{Expansion, Offer, PluginService};
use crate::spec::Spec;

/// What the driver declares for the plugin as a whole.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Declared {
    pub(crate) volume_topology: bool,
    pub(crate) snapshot_topology: bool,
    pub(crate) expansion: Option<Expansion>,
    pub(crate) volume_condition: bool,
    pub(crate) spec: Spec,
}

/// What a plugin is made of.
pub(crate) struct Parts<'a> {
    pub(crate) controller: Option<&'a ControllerTable>,
    pub(crate) node: Option<&'a NodeTable>,
    pub(crate) group_controller: bool,
    pub(crate) snapshot_metadata: bool,
    pub(crate) declared: Declared,
}

impl Parts<'_> {
    /// Checks the parts for contradictions and returns the offer.
    ///
    /// # Errors
    /// What contradicts what, and how to fix it.
    pub(crate) fn offer(&self) -> Result<Offer, String> {
        let services = [
            (self.controller.is_some(), PluginService::ControllerService),
            (self.declared.volume_topology, PluginService::VolumeAccessibilityConstraints),
            (self.group_controller, PluginService::GroupControllerService),
            (self.snapshot_metadata, PluginService::SnapshotMetadataService),
            (self.declared.snapshot_topology, PluginService::SnapshotAccessibilityConstraints),
        ];
        let offer = Offer {
            #[cfg(feature = "grpc-reflection")]
            spec: self.declared.spec,
            services: services.into_iter().filter_map(|(has, service)| has.then_some(service)).collect(),
            expansion: self.controller.and_then(|table| table.expansion).or(self.declared.expansion),
            controller: self.controller.map(|table| table.offered.clone()).unwrap_or_default(),
            node: self.node.map(|table| table.offered.clone()).unwrap_or_default(),
            modify_while_expanding: self.controller.is_some_and(|table| table.modify_while_expanding),
            volume_id_of_name: match self.controller.map(|table| Arc::clone(&table.controller)) {
                Some(driver) => Box::new(move |name| driver.volume_id_of_name(name)),
                None => Box::new(|_| None),
            },
            withholds_snapshot_topology: false,
            topology_prefix: OnceLock::new(),
        };
        implications::check(&offer, self)?;
        Ok(offer)
    }
}
