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
use crate::registered::registered;

/// See [`Plugin::metrics`](crate::Plugin::metrics).
#[cfg(all(feature = "http", feature = "mount", target_os = "linux"))]
pub(crate) type WriteMetrics = Arc<dyn Fn(&mut String) -> fmt::Result + Send + Sync>;

registered! {
    /// The object that serves each RPC of the Node service, if any.
    NodeTable of NodeService, with node: Node
    fields {
        /// Reports a volume's health to callers of spec v1.12.0, if they are served.
        pub(crate) condition: Option<Arc<dyn NodeGetVolumeHealth>>,
        pub(crate) one_at_a_time: Arc<OneAtATime>,
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
        /// Writes the metrics of a ready-made node plugin.
        #[cfg(all(feature = "http", feature = "mount", target_os = "linux"))]
        pub(crate) metrics: Option<WriteMetrics>,
    }
    by hand {}
    methods {
        /// Offers STAGE_UNSTAGE_VOLUME.
        stage_unstage_volume / stage_unstage_volume_by: StageUnstageVolume = StageUnstageVolume,
        /// Offers GET_VOLUME_STATS.
        get_volume_stats / get_volume_stats_by: NodeGetVolumeStats = GetVolumeStats,
        /// Offers EXPAND_VOLUME on the node.
        expand_volume / expand_volume_by: NodeExpandVolume = ExpandVolume,
        /// Offers GET_VOLUME_HEALTH on the node, or VOLUME_CONDITION with
        /// [`Spec::V1_12`](crate::Spec::V1_12). Alpha.
        get_volume_health / get_volume_health_by: NodeGetVolumeHealth = GetVolumeHealth,
        /// Offers GET_STORAGE_HEALTH. Alpha, new in spec v1.13.0; not served with
        /// [`Spec::V1_12`](crate::Spec::V1_12).
        get_storage_health / get_storage_health_by: NodeGetStorageHealth = GetStorageHealth,
    }
}

impl NodeTable {
    /// Whether callers of spec v1.12.0 can read volumes' health where they expect it.
    pub(crate) fn reports_condition(&self) -> bool {
        self.get_volume_health.is_some() && self.get_volume_stats.is_some()
    }

    /// Serves callers of spec v1.12.0, if the driver reports health.
    #[allow(deprecated, reason = "the capability is that of v1.12.0")]
    pub(crate) fn serve_volume_condition(&mut self) {
        if self.reports_condition() && !self.without_condition {
            self.condition = self.get_volume_health.clone();
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
        let table = NodeTable::new(Arc::clone(&driver) as _);
        Self { driver, table }
    }

    /// Has `other` answer NodeGetInfo and publish and unpublish the volumes. A node id alone is changed by
    /// the `info` of the ready-made plugin's own trait.
    #[must_use]
    pub fn publish_unpublish_by(mut self, other: Arc<impl Node>) -> Self {
        self.table.node = other;
        self
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

    /// Adds metrics of the node plugin to those of the whole plugin.
    #[cfg(all(feature = "http", feature = "mount", target_os = "linux"))]
    pub(crate) fn metrics(
        mut self,
        write: impl Fn(&mut String) -> fmt::Result + Send + Sync + 'static,
    ) -> Self {
        self.table.metrics = Some(Arc::new(write));
        self
    }
}

#[cfg(all(feature = "mount", target_os = "linux"))]
impl<D: Node> NodeService<D> {
    /// Checks the node when the plugin starts, as the ready-made node plugins do, and logs what is missing
    /// of the driver's needs ([`csi_mount::Mounts::preflight`]). For a driver's node plugin that is built on the
    /// ready-made ones, and for a driver that needs other things than the ready-made one assumes.
    ///
    /// What prevents pods of this node from seeing their volumes is looked for at
    /// [`Plugin::volume_roots`](crate::Plugin::volume_roots).
    #[must_use]
    pub fn self_check(mut self, needs: &[csi_mount::NodeNeed]) -> Self {
        self.table.fitness = Some(Fitness::new(needs));
        self
    }

    /// Says whether FUSE programs have pods of their own: for the manifests.
    pub(crate) fn fuse_pods(mut self, has_pods: bool) -> Self {
        if let Some(fitness) = &mut self.table.fitness {
            fitness.has_fuse_pods = Some(has_pods);
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
}
