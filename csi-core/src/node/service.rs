//! Registers a node plugin: what is registered is what is advertised.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

#[cfg(all(feature = "mount", target_os = "linux"))]
use super::adoption::{Adoption, LeftMount};
#[cfg(all(feature = "mount", target_os = "linux"))]
use super::fitness::Fitness;
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
    /// Whether the node plugin serves no volume without STAGE_UNSTAGE_VOLUME.
    pub(crate) needs_staging: bool,
    /// The check of the node at start-up.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    pub(crate) fitness: Option<Fitness>,
    /// How often the volumes' filesystems are trimmed.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    pub(crate) trim_period: Option<std::time::Duration>,
    /// Whether the volumes of an earlier driver are taken over.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    pub(crate) adoption: Option<Adoption>,
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
        if self.offered.contains(&Capability::SingleNodeMultiWriter) {
            SingleNodeWriter::OneTarget
        } else {
            SingleNodeWriter::ManyTargets
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
///
/// # One method of another implementor
///
/// Each method has a second form, `…_by`, that registers another implementor of the same trait and leaves
/// the rest as it is. So a driver on a ready-made node plugin changes one answer, or adds a capability that
/// the ready-made plugin does not have, and keeps everything else, including the check of the node at
/// start-up. The implementor can ask the ready-made plugin first:
///
#[cfg_attr(all(feature = "mount", target_os = "linux"), doc = "```")]
#[cfg_attr(not(all(feature = "mount", target_os = "linux")), doc = "```ignore")]
/// use csi_core::node::{NodeGetVolumeStats, NodeGetVolumeStatsRequest};
/// use csi_core::types::{Usage, VolumeStats};
/// use csi_core::{Result, prelude::*};
/// use std::{path::PathBuf, sync::Arc};
///
/// struct Subvolumes(PathBuf);
///
/// #[async_trait]
/// impl Directories for Subvolumes {
///     async fn directory(&self, id: &VolumeId) -> Result<PathBuf> {
///         Ok(self.0.join(id.as_file_name()?))
///     }
/// }
///
/// /// Usage as the quota says, where `statfs` would say the size of the whole pool.
/// struct Quotas(DirectoryNode<Subvolumes>);
///
/// #[async_trait]
/// impl NodeGetVolumeStats for Quotas {
///     async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
///         let quota = quota_of(&request.volume_id)?;
///         let pool = self.0.volume_stats(request).await?; // NOT_FOUND if the volume is not at that path
///         Ok(VolumeStats::from_usage(quota, pool.inodes))
///     }
/// }
///
/// let volumes = Arc::new(Subvolumes("/pool".into()));
/// let quotas = Quotas(DirectoryNode::new(volumes.clone()));
/// let node = DirectoryNode::service(volumes).get_volume_stats_by(Arc::new(quotas));
/// # fn quota_of(_: &VolumeId) -> Result<Usage> { unimplemented!() }
/// # drop(node);
/// ```
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
            needs_staging: false,
            #[cfg(all(feature = "mount", target_os = "linux"))]
            fitness: None,
            #[cfg(all(feature = "mount", target_os = "linux"))]
            trim_period: None,
            #[cfg(all(feature = "mount", target_os = "linux"))]
            adoption: None,
        };
        Self { driver, table }
    }

    /// Has `other` answer NodeGetInfo and publish and unpublish the volumes. A node id alone is changed by
    /// the `info` of the ready-made plugin's own trait.
    #[must_use]
    pub fn publish_unpublish_by(mut self, other: Arc<impl Node>) -> Self {
        self.table.node = other;
        self
    }

    fn offer(mut self, capability: Capability) -> Self {
        self.table.offered.insert(capability);
        self
    }

    /// Offers STAGE_UNSTAGE_VOLUME.
    #[must_use]
    pub fn stage_unstage_volume(self) -> Self
    where
        D: StageUnstageVolume,
    {
        let driver = Arc::clone(&self.driver);
        self.stage_unstage_volume_by(driver)
    }

    /// Like [`stage_unstage_volume`](Self::stage_unstage_volume), answered by `other`.
    #[must_use]
    pub fn stage_unstage_volume_by(mut self, other: Arc<impl StageUnstageVolume>) -> Self {
        self.table.stage_unstage_volume = Some(other);
        self.offer(Capability::StageUnstageVolume)
    }

    /// Offers GET_VOLUME_STATS.
    #[must_use]
    pub fn get_volume_stats(self) -> Self
    where
        D: NodeGetVolumeStats,
    {
        let driver = Arc::clone(&self.driver);
        self.get_volume_stats_by(driver)
    }

    /// Like [`get_volume_stats`](Self::get_volume_stats), answered by `other`.
    #[must_use]
    pub fn get_volume_stats_by(mut self, other: Arc<impl NodeGetVolumeStats>) -> Self {
        self.table.volume_stats = Some(other);
        self.offer(Capability::GetVolumeStats)
    }

    /// Offers EXPAND_VOLUME on the node.
    #[must_use]
    pub fn expand_volume(self) -> Self
    where
        D: NodeExpandVolume,
    {
        let driver = Arc::clone(&self.driver);
        self.expand_volume_by(driver)
    }

    /// Like [`expand_volume`](Self::expand_volume), answered by `other`.
    #[must_use]
    pub fn expand_volume_by(mut self, other: Arc<impl NodeExpandVolume>) -> Self {
        self.table.expand_volume = Some(other);
        self.offer(Capability::ExpandVolume)
    }

    /// Offers GET_VOLUME_HEALTH on the node, or VOLUME_CONDITION with
    /// [`Spec::V1_12`](crate::Spec::V1_12). Alpha.
    #[must_use]
    pub fn get_volume_health(self) -> Self
    where
        D: NodeGetVolumeHealth,
    {
        let driver = Arc::clone(&self.driver);
        self.get_volume_health_by(driver)
    }

    /// Like [`get_volume_health`](Self::get_volume_health), answered by `other`.
    #[must_use]
    pub fn get_volume_health_by(mut self, other: Arc<impl NodeGetVolumeHealth>) -> Self {
        self.table.volume_health = Some(other);
        self.offer(Capability::GetVolumeHealth)
    }

    /// Offers GET_STORAGE_HEALTH. Alpha, new in spec v1.13.0; not served with
    /// [`Spec::V1_12`](crate::Spec::V1_12).
    #[must_use]
    pub fn get_storage_health(self) -> Self
    where
        D: NodeGetStorageHealth,
    {
        let driver = Arc::clone(&self.driver);
        self.get_storage_health_by(driver)
    }

    /// Like [`get_storage_health`](Self::get_storage_health), answered by `other`.
    #[must_use]
    pub fn get_storage_health_by(mut self, other: Arc<impl NodeGetStorageHealth>) -> Self {
        self.table.storage_health = Some(other);
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
    /// [`AccessType::Mount`](crate::types::AccessType::Mount).
    #[must_use]
    pub fn volume_mount_group(self) -> Self {
        self.offer(Capability::VolumeMountGroup)
    }

    /// Withdraws a capability: it is not advertised and its RPCs are not served. For a backend that turns
    /// out not to support it. For callers of an older spec see [`Plugin::spec`](crate::Plugin::spec). A plugin
    /// does not start if it withdraws STAGE_UNSTAGE_VOLUME from a ready-made node plugin that stages its volumes.
    #[must_use]
    pub fn without(mut self, capability: Capability) -> Self {
        self.table.withdraw(capability);
        self
    }

    /// [`stage_unstage_volume`](Self::stage_unstage_volume), which can't be [withdrawn](Self::without).
    #[cfg(all(feature = "mount", target_os = "linux"))]
    pub(crate) fn always_staged(mut self) -> Self
    where
        D: StageUnstageVolume,
    {
        self.table.needs_staging = true;
        self.stage_unstage_volume()
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

#[cfg(all(feature = "mount", target_os = "linux"))]
impl<D: Node> NodeService<D> {
    /// Checks the node when the plugin starts, as the ready-made node plugins do, and logs what is missing
    /// of the driver's needs ([`csi_mount::preflight`]). For a driver's node plugin that is built on the
    /// ready-made ones, and for a driver that needs other things than the ready-made one assumes.
    ///
    /// What prevents pods of this node from seeing their volumes is looked for at
    /// [`Plugin::volume_roots`](crate::Plugin::volume_roots).
    #[must_use]
    pub fn self_check(mut self, needs: &[csi_mount::NodeNeed]) -> Self {
        self.table.fitness = Some(Fitness::new(needs));
        self
    }

    /// Has the check of the node look at this directory, not at
    /// [`Plugin::volume_roots`](crate::Plugin::volume_roots).
    #[must_use]
    pub fn kubelet_root(mut self, path: impl Into<std::path::PathBuf>) -> Self {
        if let Some(fitness) = &mut self.table.fitness {
            fitness.at(path.into());
        }
        self
    }

    /// Frees on their devices what the filesystems of this node's volumes do not use any more (`fstrim`), once in each
    /// period while the plugin runs: for thin storage whose volumes are not mounted with `discard`.
    ///
    /// The volumes come one after the other, spread over the period from a random moment on, and 16 GiB of a device at
    /// a time, with a second between them. A call for the volume that arrives in one of these steps is ABORTED. Only
    /// filesystems on block devices that the ready-made plugins mounted are trimmed; what can't be is in the log.
    ///
    /// See [`csi_mount::BlockVolumes::trim`].
    #[must_use]
    pub fn trim_volumes(mut self, period: std::time::Duration) -> Self {
        self.table.trim_period = Some(period);
        self
    }

    /// Takes over what an earlier driver of this plugin's name, in any language, has mounted on this node: when the
    /// plugin starts, each such mount gets the mark of its volume, and is unpublished, unstaged, grown and measured
    /// like a mount of this plugin. Without this, each step refuses it (FAILED_PRECONDITION).
    ///
    /// What belongs to a volume is known from the files that the kubelet writes below
    /// [`Plugin::volume_roots`](crate::Plugin::volume_roots). A target of a staged volume must show what is staged. The
    /// function adds what only the driver knows, for example that the source is the volume's; its error is logged, and
    /// that mount stays as it is. A path with the mark of another volume is never taken over.
    ///
    /// ```
    /// # use csi_core::{NodeService, node::Node};
    /// # fn adopt<D: Node>(service: NodeService<D>) -> NodeService<D> {
    /// service.adopt(|left| match left.mount.fs_type.as_str() {
    ///     "nfs" | "nfs4" => Ok(()),
    ///     other => Err(format!("{other} is not NFS")),
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn adopt(mut self, check: impl Fn(&LeftMount) -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.table.adoption = Some(Adoption(Box::new(check)));
        self
    }

    /// Starts without checking the node.
    #[must_use]
    pub fn without_self_check(mut self) -> Self {
        self.table.fitness = None;
        self
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use csi_proto::v1;

    use super::*;
    use crate::error::Result;
    use crate::node::{
        NodeGetVolumeStatsRequest, NodeInfo, NodePublishVolumeRequest, NodeUnpublishVolumeRequest,
    };
    use crate::types::VolumeStats;

    struct Plain;

    #[async_trait]
    impl Node for Plain {
        async fn info(&self) -> Result<NodeInfo> {
            NodeInfo::new("plain")
        }
        async fn publish_volume(&self, _: NodePublishVolumeRequest) -> Result<()> {
            Ok(())
        }
        async fn unpublish_volume(&self, _: NodeUnpublishVolumeRequest) -> Result<()> {
            Ok(())
        }
    }

    /// Answers with this size, and implements nothing else of a node plugin.
    struct Size(u64);

    #[async_trait]
    impl NodeGetVolumeStats for Size {
        async fn volume_stats(&self, _: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
            Ok(VolumeStats::from_device_size(self.0))
        }
    }

    #[async_trait]
    impl NodeGetVolumeStats for Plain {
        async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
            Size(1).volume_stats(request).await
        }
    }

    #[tokio::test]
    async fn another_implementor_answers_and_the_rest_stays() {
        let service = NodeService::new(Arc::new(Plain));
        #[cfg(all(feature = "mount", target_os = "linux"))]
        let service = service.self_check(&[]);
        let table = service.get_volume_stats().get_volume_stats_by(Arc::new(Size(7))).into_table();
        let wire = v1::NodeGetVolumeStatsRequest {
            volume_id: "v".to_owned(),
            volume_path: "/v".to_owned(),
            ..Default::default()
        };
        let stats = table.volume_stats.as_ref().unwrap().volume_stats(wire.try_into().unwrap()).await;
        assert_eq!(stats.unwrap().bytes.unwrap().total, 7);
        assert_eq!(table.node.info().await.unwrap().node_id.as_str(), "plain");
        assert_eq!(Vec::from_iter(table.offered), [Capability::GetVolumeStats]);
        #[cfg(all(feature = "mount", target_os = "linux"))]
        assert!(table.fitness.is_some());
    }
}
