//! The plugin's services other than Controller and Node, and what the driver declares for the plugin as a
//! whole.

use std::sync::Arc;

use super::Plugin;
use crate::capabilities::Parts;
use crate::group_controller::GroupController;
use crate::mode::Mode;
use crate::offer::{Expansion, Offer, PluginService};
use crate::snapshot_metadata::SnapshotMetadata;
use crate::spec::Spec;
use crate::types::Topology;

impl Plugin {
    /// Adds the plugin's GroupController service: snapshots of several volumes at one moment. A volume is
    /// restored from a member of a group as from any snapshot, so the plugin also needs a controller that
    /// offers CREATE_DELETE_VOLUME.
    #[must_use]
    pub fn group_controller<D: GroupController>(mut self, driver: Arc<D>) -> Self {
        self.group_controller = Some(driver);
        self
    }

    /// Adds the plugin's SnapshotMetadata service: which blocks of a snapshot hold data, or changed. Alpha.
    #[must_use]
    pub fn snapshot_metadata<D: SnapshotMetadata>(mut self, driver: Arc<D>) -> Self {
        self.snapshot_metadata = Some(driver);
        self
    }

    /// Declares VOLUME_ACCESSIBILITY_CONSTRAINTS: some volumes cannot be used from every node. Then
    /// [`NodeInfo`](crate::NodeInfo) says where a node is, and [`Volume`](crate::Volume) from where it is
    /// usable.
    ///
    /// If topology keys have a prefix, all keys must have the same one; other answers become INTERNAL.
    #[must_use]
    pub fn volume_accessibility_constraints(mut self) -> Self {
        self.declared.volume_topology = true;
        self
    }

    /// Declares topologies from which volumes and snapshots can be usable, for example those of the driver's
    /// pools. A plugin with a key or value that Kubernetes can't carry in a label does not start, and the error
    /// names the rule. This node's own topology is checked in any case, where the node is served.
    ///
    /// ```
    /// use csi_core::types::Topology;
    /// use csi_core::Plugin;
    ///
    /// let zones = ["a", "b"].map(|zone| Topology::new("example.org/zone", zone));
    /// let plugin = Plugin::new("driver.csi.example.org", "1").volume_accessibility_constraints();
    /// let plugin = plugin.accessible_topologies(zones);
    /// ```
    #[must_use]
    pub fn accessible_topologies(mut self, topologies: impl IntoIterator<Item = Topology>) -> Self {
        self.topologies.extend(topologies);
        self
    }

    /// Declares SNAPSHOT_ACCESSIBILITY_CONSTRAINTS: some snapshots cannot be restored from everywhere. Then
    /// [`Snapshot`](crate::types::Snapshot) says from where. Alpha, new in spec v1.13.0; withheld with
    /// [`Spec::V1_12`].
    #[must_use]
    pub fn snapshot_accessibility_constraints(mut self) -> Self {
        self.declared.snapshot_topology = true;
        self
    }

    /// Declares when volumes can be expanded, for a plugin that expands on the node only. A plugin with a
    /// controller declares it with
    /// [`ControllerService::expand_volume`](crate::ControllerService::expand_volume).
    #[must_use]
    pub fn volume_expansion(mut self, expansion: Expansion) -> Self {
        self.declared.expansion = Some(expansion);
        self
    }

    /// Chooses the version of the spec that callers see. The default is [`Spec::V1_12`].
    ///
    /// With it the plugin has no capability, RPC or field that is newer than v1.12.0, also where the driver
    /// registered it: GET_VOLUME_HEALTH is served as VOLUME_CONDITION, in ListVolumes, ControllerGetVolume
    /// and NodeGetVolumeStats. LIST_VOLUME_HEALTH, GET_STORAGE_HEALTH and SNAPSHOT_ACCESSIBILITY_CONSTRAINTS
    /// are withheld, and so is a snapshot's topology.
    ///
    /// ```
    /// use csi_core::{Plugin, Spec};
    ///
    /// let plugin = Plugin::new("driver.csi.example.org", "1").spec(Spec::V1_13);
    /// ```
    #[must_use]
    pub fn spec(mut self, spec: Spec) -> Self {
        self.declared.spec = spec;
        self
    }

    /// With [`Spec::V1_13`], also serves callers of spec v1.12.0: the health that the driver reports through
    /// GET_VOLUME_HEALTH is also returned as VOLUME_CONDITION, as with [`Spec::V1_12`].
    ///
    /// ListVolumes then also queries the health of the listed volumes: with one listing if the driver has
    /// LIST_VOLUME_HEALTH, else volume by volume. If the health cannot be determined, the condition is
    /// abnormal, with the reason.
    #[must_use]
    pub fn serve_volume_condition(mut self) -> Self {
        self.declared.volume_condition = true;
        self
    }

    /// Checks the parts for contradictions and returns what the whole plugin offers.
    ///
    /// # Errors
    /// What contradicts what, and how to fix it.
    pub(super) fn offer(&mut self) -> Result<Offer, String> {
        let controller =
            self.controller.is_some() || self.group_controller.is_some() || self.snapshot_metadata.is_some();
        for (mode, has) in [(Mode::Controller, controller), (Mode::Node, self.node.is_some())] {
            if self.mode == mode && !has {
                return Err(format!(
                    "mode {mode} is requested, but the plugin has no {mode} service: choose another mode"
                ));
            }
        }
        let oldest = self.declared.spec == Spec::V1_12;
        if self.declared.volume_condition || oldest {
            self.controller.iter_mut().for_each(crate::controller::ControllerTable::serve_volume_condition);
            self.node.iter_mut().for_each(crate::node::NodeTable::serve_volume_condition);
        }
        let parts = Parts {
            controller: self.controller.as_ref(),
            node: self.node.as_ref(),
            group_controller: self.group_controller.is_some(),
            snapshot_metadata: self.snapshot_metadata.is_some(),
            declared: self.declared,
        };
        let mut offer = parts.offer()?;
        if oldest {
            self.withdraw_v1_13(&mut offer);
        }
        Ok(offer)
    }

    /// Narrows the plugin to what spec v1.12.0 has, after the check of all that is registered.
    fn withdraw_v1_13(&mut self, offer: &mut Offer) {
        if let Some(table) = &mut self.controller {
            table.withdraw_v1_13();
            offer.controller.clone_from(&table.offered);
        }
        if let Some(table) = &mut self.node {
            table.withdraw_v1_13();
            offer.node.clone_from(&table.offered);
        }
        offer.withholds_snapshot_topology =
            offer.services.remove(&PluginService::SnapshotAccessibilityConstraints);
    }
}
