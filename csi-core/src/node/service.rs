//! Registering a node plugin: what is registered is what is advertised.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use csi_proto::v1;

use super::{GetVolumeStats, Node, NodeExpandVolume, StageUnstageVolume};
use v1::node_service_capability::rpc::Type as Capability;

/// What serves each RPC of the Node service, if anything does.
pub(crate) struct NodeTable {
    pub(crate) node: Arc<dyn Node>,
    pub(crate) stage_unstage_volume: Option<Arc<dyn StageUnstageVolume>>,
    pub(crate) volume_stats: Option<Arc<dyn GetVolumeStats>>,
    pub(crate) expand_volume: Option<Arc<dyn NodeExpandVolume>>,
    pub(crate) offered: BTreeSet<Capability>,
}

/// A driver as a Node service, with the capabilities that are registered.
///
/// Each method takes a driver that has the trait of the same name; without it, it does not compile. A capability
/// that depends on the backend is registered when the backend has it.
pub struct NodeService<D> {
    driver: Arc<D>,
    table: NodeTable,
}

impl<D: Node> NodeService<D> {
    /// The driver as a node plugin that publishes and unpublishes.
    pub fn new(driver: Arc<D>) -> Self {
        let table = NodeTable {
            node: Arc::clone(&driver) as _,
            stage_unstage_volume: None,
            volume_stats: None,
            expand_volume: None,
            offered: BTreeSet::new(),
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
        D: GetVolumeStats,
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

    /// Declares SINGLE_NODE_MULTI_WRITER: the driver tells that access mode, and SINGLE_NODE_SINGLE_WRITER, from
    /// SINGLE_NODE_WRITER. Declare it for the controller too.
    #[must_use]
    pub fn single_node_multi_writer(self) -> Self {
        self.offer(Capability::SingleNodeMultiWriter)
    }

    /// Declares VOLUME_MOUNT_GROUP: the driver hands a volume's files to the group in
    /// [`Access::Mount`](crate::Access::Mount).
    #[must_use]
    pub fn volume_mount_group(self) -> Self {
        self.offer(Capability::VolumeMountGroup)
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
