//! Registers a node plugin: what is registered is what is advertised.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::{
    Node, NodeExpandVolume, NodeGetStorageHealth, NodeGetVolumeHealth, NodeGetVolumeStats, OneAtATime,
    SingleNodeWriter, StageUnstageVolume,
};
use crate::offer::NodeCapability as Capability;

/// The object that serves each RPC of the Node service, if any.
pub(crate) struct NodeTable {
    pub(crate) node: Arc<dyn Node>,
    pub(crate) stage_unstage_volume: Option<Arc<dyn StageUnstageVolume>>,
    pub(crate) volume_stats: Option<Arc<dyn NodeGetVolumeStats>>,
    pub(crate) expand_volume: Option<Arc<dyn NodeExpandVolume>>,
    pub(crate) volume_health: Option<Arc<dyn NodeGetVolumeHealth>>,
    pub(crate) storage_health: Option<Arc<dyn NodeGetStorageHealth>>,
    /// Reports a volume's health to callers of spec v1.12.0, if they are served.
    pub(crate) condition: Option<Arc<dyn NodeGetVolumeHealth>>,
    /// Whether the driver withdrew VOLUME_CONDITION.
    without_condition: bool,
    pub(crate) one_at_a_time: Arc<OneAtATime>,
    pub(crate) offered: BTreeSet<Capability>,
    /// The check of the node at start-up.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    pub(crate) fitness: Option<super::fitness::Fitness>,
}

impl NodeTable {
    /// Whether callers of spec v1.12.0 can read volumes' health where they expect it.
    pub(crate) fn reports_condition(&self) -> bool {
        self.volume_health.is_some() && self.volume_stats.is_some()
    }

    /// Serves callers of spec v1.12.0, if the driver reports health.
    #[allow(deprecated, reason = "the capability is that of v1.12.0")]
    pub(crate) fn serve_volume_condition(&mut self) {
        if self.reports_condition() && !self.without_condition {
            self.condition = self.volume_health.clone();
            self.offered.insert(Capability::VolumeCondition);
        }
    }

    /// How many targets SINGLE_NODE_WRITER allows in this plugin.
    pub(crate) fn rule(&self) -> SingleNodeWriter {
        match self.offered.contains(&Capability::SingleNodeMultiWriter) {
            true => SingleNodeWriter::OneTarget,
            false => SingleNodeWriter::ManyTargets,
        }
    }

    /// Stops serving what is newer than spec v1.12.0.
    pub(crate) fn withdraw_v1_13(&mut self) {
        self.withdraw(Capability::GetVolumeHealth);
        self.withdraw(Capability::GetStorageHealth);
    }

    /// Stops serving this capability.
    #[allow(deprecated, reason = "VOLUME_CONDITION is that of v1.12.0")]
    fn withdraw(&mut self, capability: Capability) {
        self.offered.remove(&capability);
        match capability {
            Capability::StageUnstageVolume => self.stage_unstage_volume = None,
            Capability::GetVolumeStats => self.volume_stats = None,
            Capability::ExpandVolume => self.expand_volume = None,
            Capability::GetVolumeHealth => self.volume_health = None,
            Capability::GetStorageHealth => self.storage_health = None,
            Capability::VolumeCondition => self.without_condition = true,
            _ => {}
        }
    }
}

/// A driver as a Node service, with the registered capabilities.
///
/// Each method requires the driver to implement the trait of the same name, else the code does not compile.
///
/// A capability that depends on the backend is registered only if the backend has it.
pub struct NodeService<D> {
    driver: Arc<D>,
    pub(super) table: NodeTable,
}

impl<D: Node> NodeService<D> {
    /// Creates a service that publishes and unpublishes volumes.
    pub fn new(driver: Arc<D>) -> Self {
        let table = NodeTable {
            node: Arc::clone(&driver) as _,
            stage_unstage_volume: None,
            volume_stats: None,
            expand_volume: None,
            volume_health: None,
            storage_health: None,
            condition: None,
            without_condition: false,
            one_at_a_time: Arc::default(),
            offered: BTreeSet::new(),
            #[cfg(all(feature = "mount", target_os = "linux"))]
            fitness: None,
        };
        Self { driver, table }
    }

    fn offer(mut self, capability: Capability) -> Self {
        self.table.offered.insert(capability);
        self
    }

    /// Offers STAGE_UNSTAGE_VOLUME.
    #[must_use]
    pub fn stage_unstage_volume(mut self) -> Self
    where
        D: StageUnstageVolume,
    {
        self.table.stage_unstage_volume = Some(Arc::clone(&self.driver) as _);
        self.offer(Capability::StageUnstageVolume)
    }

    /// Offers GET_VOLUME_STATS.
    #[must_use]
    pub fn get_volume_stats(mut self) -> Self
    where
        D: NodeGetVolumeStats,
    {
        self.table.volume_stats = Some(Arc::clone(&self.driver) as _);
        self.offer(Capability::GetVolumeStats)
    }

    /// Offers EXPAND_VOLUME on the node.
    #[must_use]
    pub fn expand_volume(mut self) -> Self
    where
        D: NodeExpandVolume,
    {
        self.table.expand_volume = Some(Arc::clone(&self.driver) as _);
        self.offer(Capability::ExpandVolume)
    }

    /// Offers GET_VOLUME_HEALTH on the node, or VOLUME_CONDITION with
    /// [`Spec::V1_12`](crate::Spec::V1_12). Alpha.
    #[must_use]
    pub fn get_volume_health(mut self) -> Self
    where
        D: NodeGetVolumeHealth,
    {
        self.table.volume_health = Some(Arc::clone(&self.driver) as _);
        self.offer(Capability::GetVolumeHealth)
    }

    /// Offers GET_STORAGE_HEALTH. Alpha, new in spec v1.13.0; not served with
    /// [`Spec::V1_12`](crate::Spec::V1_12).
    #[must_use]
    pub fn get_storage_health(mut self) -> Self
    where
        D: NodeGetStorageHealth,
    {
        self.table.storage_health = Some(Arc::clone(&self.driver) as _);
        self.offer(Capability::GetStorageHealth)
    }

    /// Declares SINGLE_NODE_MULTI_WRITER: the driver distinguishes this access mode and
    /// SINGLE_NODE_SINGLE_WRITER from SINGLE_NODE_WRITER. Declare it for the controller too.
    ///
    /// With it, a volume of mode SINGLE_NODE_WRITER is published at only one target per node, as the spec
    /// says; see [`Node::published`].
    #[must_use]
    pub fn single_node_multi_writer(self) -> Self {
        self.offer(Capability::SingleNodeMultiWriter)
    }

    /// Declares VOLUME_MOUNT_GROUP: the driver gives a volume's files to the group in
    /// [`AccessType::Mount`](crate::AccessType::Mount).
    #[must_use]
    pub fn volume_mount_group(self) -> Self {
        self.offer(Capability::VolumeMountGroup)
    }

    /// Withdraws a capability: it is not advertised and its RPCs are not served. For a backend that turns
    /// out not to support it. For callers of an older spec see [`Plugin::spec`](crate::Plugin::spec).
    #[must_use]
    pub fn without(mut self, capability: Capability) -> Self {
        self.table.withdraw(capability);
        self
    }

    pub(crate) fn into_table(self) -> NodeTable {
        self.table
    }
}

impl<D> fmt::Debug for NodeService<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NodeService").field(&self.table.offered).finish()
    }
}
