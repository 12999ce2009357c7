//! The features that can be switched off, so that tests can run every combination of capabilities.

use std::collections::BTreeSet;

use clap::ValueEnum;

/// A capability, or a part of the driver, that `--without` takes away. The spec's name is in its help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[non_exhaustive]
pub enum Feature {
    /// CREATE_DELETE_VOLUME
    CreateDelete,
    /// CLONE_VOLUME
    Clone,
    /// PUBLISH_UNPUBLISH_VOLUME
    Attach,
    /// PUBLISH_READONLY
    AttachReadonly,
    /// LIST_VOLUMES
    List,
    /// LIST_VOLUMES_PUBLISHED_NODES
    PublishedNodes,
    /// GET_VOLUME
    Get,
    /// GET_CAPACITY
    Capacity,
    /// MODIFY_VOLUME
    Modify,
    /// EXPAND_VOLUME of the controller, and ONLINE or OFFLINE
    Expand,
    /// CREATE_DELETE_SNAPSHOT
    Snapshots,
    /// LIST_SNAPSHOTS
    ListSnapshots,
    /// GET_SNAPSHOT
    GetSnapshot,
    /// GROUP_CONTROLLER_SERVICE
    GroupSnapshots,
    /// SNAPSHOT_METADATA_SERVICE
    SnapshotMetadata,
    /// SNAPSHOT_ACCESSIBILITY_CONSTRAINTS
    SnapshotTopology,
    /// VOLUME_ACCESSIBILITY_CONSTRAINTS
    Topology,
    /// SINGLE_NODE_MULTI_WRITER of controller and node
    MultiWriter,
    /// GET_VOLUME_HEALTH of the controller
    Health,
    /// LIST_VOLUME_HEALTH
    ListHealth,
    /// VOLUME_CONDITION, the health of v1.12.0
    Condition,
    /// STAGE_UNSTAGE_VOLUME; then volumes are directories
    Stage,
    /// GET_VOLUME_STATS
    Stats,
    /// EXPAND_VOLUME of the node; then a filesystem is expanded at the next stage
    NodeExpand,
    /// GET_VOLUME_HEALTH of the node
    NodeHealth,
    /// GET_STORAGE_HEALTH
    StorageHealth,
    /// VOLUME_MOUNT_GROUP
    MountGroup,
    /// Inline ephemeral volumes, for which no capability exists
    Inline,
}

impl Feature {
    /// The features without which this one makes no sense, by the spec or in this driver.
    fn needs(self) -> &'static [Self] {
        match self {
            Self::Clone | Self::Snapshots | Self::GroupSnapshots => &[Self::CreateDelete],
            Self::AttachReadonly => &[Self::Attach],
            Self::PublishedNodes => &[Self::Attach, Self::List],
            Self::ListHealth => &[Self::Health],
            Self::SnapshotTopology => &[Self::Snapshots, Self::Topology],
            _ => &[],
        }
    }
}

/// The features that are switched on.
#[derive(Debug, Clone)]
pub(crate) struct Features(BTreeSet<Feature>);

impl Features {
    /// All features except those in `off` and those that need one of these.
    pub(crate) fn without(off: &[Feature]) -> Self {
        let mut on: BTreeSet<Feature> = Feature::value_variants().iter().copied().collect();
        on.retain(|feature| !off.contains(feature));
        loop {
            let stranded = on.iter().copied().find(|one| one.needs().iter().any(|need| !on.contains(need)));
            match stranded {
                Some(feature) => drop(on.remove(&feature)),
                None => return Self(on),
            }
        }
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.0.contains(&feature)
    }

    /// Whether any RPC reports health in the fields that v1.12.0 callers read.
    pub(crate) fn tell_condition(&self) -> bool {
        let controller = self.has(Feature::Health) && (self.has(Feature::List) || self.has(Feature::Get));
        let node = self.has(Feature::NodeHealth) && self.has(Feature::Stats);
        self.has(Feature::Condition) && (controller || node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_a_thing_goes_with_it() {
        let without = Features::without(&[Feature::CreateDelete]);
        for gone in [Feature::Clone, Feature::Snapshots, Feature::GroupSnapshots, Feature::SnapshotTopology] {
            assert!(!without.has(gone), "{gone:?}");
        }
        assert!(without.has(Feature::ListSnapshots), "by itself it lists what was cut before");
    }

    #[test]
    fn each_alone_and_each_left_out_makes_a_plugin_that_contradicts_nothing() {
        let all = Feature::value_variants();
        for one in all {
            let rest: Vec<Feature> = all.iter().copied().filter(|other| other != one).collect();
            for off in [vec![*one], rest] {
                crate::tests::starts(&off);
            }
        }
    }
}
