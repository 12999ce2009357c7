//! The plugin's services besides Controller and Node, and what is declared for the plugin as a whole.

use std::sync::Arc;

use super::Plugin;
use crate::capabilities::Parts;
use crate::mode::Mode;
use crate::offer::Offer;
use crate::{Expansion, GroupController, SnapshotMetadata};

impl Plugin {
    /// The plugin's GroupController service: snapshots of several volumes at one moment. A volume is restored from one
    /// of them as from any snapshot, so it needs a controller that offers CREATE_DELETE_VOLUME.
    #[must_use]
    pub fn group_controller<D: GroupController>(mut self, driver: Arc<D>) -> Self {
        self.group_controller = Some(driver);
        self
    }

    /// The plugin's SnapshotMetadata service: which blocks of a snapshot hold data, or changed. Alpha.
    #[must_use]
    pub fn snapshot_metadata<D: SnapshotMetadata>(mut self, driver: Arc<D>) -> Self {
        self.snapshot_metadata = Some(driver);
        self
    }

    /// Declares VOLUME_ACCESSIBILITY_CONSTRAINTS: not every volume can be used from every node. Then
    /// [`NodeInfo`](crate::NodeInfo) says where a node is, and [`Volume`](crate::Volume) from where it is usable.
    ///
    /// Where keys have a prefix, it is the same in all of them; other answers are refused as INTERNAL.
    #[must_use]
    pub fn volume_accessibility_constraints(mut self) -> Self {
        self.declared.volume_topology = true;
        self
    }

    /// Declares SNAPSHOT_ACCESSIBILITY_CONSTRAINTS: not every snapshot can be restored from everywhere. Then
    /// [`Snapshot`](crate::Snapshot) says from where. Alpha, new in spec v1.13.0.
    #[must_use]
    pub fn snapshot_accessibility_constraints(mut self) -> Self {
        self.declared.snapshot_topology = true;
        self
    }

    /// Declares when volumes can be made larger, for a plugin that does it on the node alone: a controller says so with
    /// [`ControllerService::expand_volume`](crate::ControllerService::expand_volume).
    #[must_use]
    pub fn volume_expansion(mut self, expansion: Expansion) -> Self {
        self.declared.expansion = Some(expansion);
        self
    }

    /// Serves callers of spec v1.12.0 as well: what the driver tells by GET_VOLUME_HEALTH is also answered as
    /// VOLUME_CONDITION, in ListVolumes, ControllerGetVolume and NodeGetVolumeStats. The kubelet up to now and the
    /// health monitor read nothing else.
    ///
    /// ListVolumes then asks for the health of what it lists: in one listing where the driver has LIST_VOLUME_HEALTH,
    /// volume by volume where not. A health that can't be told is answered as abnormal, with the reason.
    #[must_use]
    pub fn serve_volume_condition(mut self) -> Self {
        self.declared.volume_condition = true;
        self
    }

    /// What the whole plugin offers, once it makes sense.
    ///
    /// # Errors
    /// What contradicts what, and the mend.
    pub(super) fn offer(&mut self) -> Result<Offer, String> {
        let controller =
            self.controller.is_some() || self.group_controller.is_some() || self.snapshot_metadata.is_some();
        for (mode, has) in [(Mode::Controller, controller), (Mode::Node, self.node.is_some())] {
            if self.mode == mode && !has {
                return Err(format!(
                    "mode {mode} is asked for, but the plugin has no {mode} service: choose another mode"
                ));
            }
        }
        if self.declared.volume_condition {
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
        parts.offer()
    }
}
