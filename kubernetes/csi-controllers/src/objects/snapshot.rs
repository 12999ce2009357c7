use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::{Metadata, Reference, kind};

const SNAPSHOTS: &str = "snapshot.storage.k8s.io";
const GROUPS: &str = "groupsnapshot.storage.k8s.io";

/// A VolumeSnapshot: what a user asks for.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) status: SnapshotStatus,
}

kind!(Snapshot, "VolumeSnapshot", SNAPSHOTS, "volumesnapshots");

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SnapshotStatus {
    pub(crate) bound_volume_snapshot_content_name: Option<String>,
    pub(crate) ready_to_use: bool,
    /// The smallest size of a volume that is made from it, a quantity.
    pub(crate) restore_size: Option<String>,
}

/// A VolumeSnapshotContent: the snapshot itself.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SnapshotContent {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) spec: ContentSpec,
    pub(crate) status: Option<Value>,
}

kind!(SnapshotContent, "VolumeSnapshotContent", SNAPSHOTS, "volumesnapshotcontents");

/// A VolumeGroupSnapshotContent: the snapshots of several volumes.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct GroupContent {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) spec: ContentSpec,
    pub(crate) status: Option<Value>,
}

kind!(GroupContent, "VolumeGroupSnapshotContent", GROUPS, "volumegroupsnapshotcontents");

/// The spec of both kinds of content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContentSpec {
    pub(crate) driver: String,
    pub(crate) deletion_policy: String,
    pub(crate) source: ContentSource,
    pub(crate) source_volume_mode: Option<String>,
    #[serde(alias = "volumeGroupSnapshotClassName")]
    pub(crate) volume_snapshot_class_name: Option<String>,
    #[serde(alias = "volumeGroupSnapshotRef")]
    pub(crate) volume_snapshot_ref: Reference,
}

/// The volumes of a snapshot that is to be created, or a snapshot that exists already.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContentSource {
    pub(crate) volume_handle: Option<String>,
    pub(crate) volume_handles: Vec<String>,
    pub(crate) snapshot_handle: Option<String>,
    pub(crate) group_snapshot_handles: Option<GroupHandles>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GroupHandles {
    pub(crate) volume_group_snapshot_handle: String,
    pub(crate) volume_snapshot_handles: Vec<String>,
}

impl ContentSource {
    pub(crate) fn has_volumes(&self) -> bool {
        self.volume_handle.is_some() || !self.volume_handles.is_empty()
    }

    /// The handle of a snapshot that exists already.
    pub(crate) fn handle(&self) -> Option<&str> {
        let group = self.group_snapshot_handles.as_ref();
        self.snapshot_handle.as_deref().or(group.map(|group| group.volume_group_snapshot_handle.as_str()))
    }

    /// The volumes, in texts.
    pub(crate) fn text(&self) -> String {
        match &self.volume_handle {
            Some(volume) => format!("volume {volume}"),
            None => format!("volumes [{}]", self.volume_handles.join(" ")),
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SnapshotClass {
    pub(crate) metadata: Metadata,
    pub(crate) driver: String,
    #[serde(default)]
    pub(crate) parameters: BTreeMap<String, String>,
}

kind!(SnapshotClass, "VolumeSnapshotClass", SNAPSHOTS, "volumesnapshotclasses");

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct GroupSnapshotClass {
    pub(crate) metadata: Metadata,
    pub(crate) driver: String,
    #[serde(default)]
    pub(crate) parameters: BTreeMap<String, String>,
}

kind!(GroupSnapshotClass, "VolumeGroupSnapshotClass", GROUPS, "volumegroupsnapshotclasses");
