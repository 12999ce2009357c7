//! Health of volumes and backends, in the form of spec v1.13.0.

use super::{VolumeCapability, VolumeId};

/// How badly a volume is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VolumeHealthStatus {
    /// Usable, but not at its best.
    Degraded,
    /// Not usable: from anywhere, when the controller says so; from this node, when the node does.
    Inaccessible,
    /// Data is known or strongly suspected to be lost.
    DataLoss,
}

/// One thing that is wrong with a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeHealthEntry {
    /// How bad it is.
    pub status: VolumeHealthStatus,
    /// One CamelCase word for programs, `PoolFull` say; unique together with the status.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// A volume and what is wrong with it; nothing, when the list is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeHealth {
    /// The volume.
    pub volume_id: VolumeId,
    /// What is wrong. An entry stays until its condition is gone.
    pub entries: Vec<VolumeHealthEntry>,
}

/// How badly a storage backend is off, as one node sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StorageHealthStatus {
    /// Usable, but not at its best.
    Degraded,
    /// Not reachable from this node.
    Unreachable,
}

/// One thing that is wrong with a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageHealthEntry {
    /// How bad it is.
    pub status: StorageHealthStatus,
    /// One CamelCase word for programs, unique together with the status and the capability.
    pub reason: String,
    /// For people.
    pub message: String,
    /// The kind of volumes that it concerns; `None` for all.
    pub capability: Option<VolumeCapability>,
}
