//! To come.
#![forbid(unsafe_code)]
#![cfg(unix)]

mod adapters;
mod admission;
mod blocking;
mod call;
mod capabilities;
mod controller;
mod error;
mod group_controller;
mod identity;
mod node;
mod plugin;
mod request;
mod rpc;
mod server;
mod snapshot_metadata;
mod types;

pub use async_trait::async_trait;
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use csi_mount as mount;
pub use csi_proto as proto;

pub use blocking::blocking;
pub use controller::{
    Capacity, Controller, ControllerExpandVolumeRequest, ControllerGetVolumeHealthRequest,
    ControllerGetVolumeRequest, ControllerListVolumeHealthRequest, ControllerModifyVolumeRequest,
    ControllerPublishVolumeRequest, ControllerService, ControllerUnpublishVolumeRequest,
    CreateDeleteSnapshot, CreateDeleteVolume, CreateSnapshotRequest, CreateVolumeRequest,
    DeleteSnapshotRequest, DeleteVolumeRequest, ExpandVolume, Expanded, Expansion, GetCapacity,
    GetCapacityRequest, GetSnapshot, GetSnapshotRequest, GetVolume, GetVolumeHealth, ListSnapshots,
    ListSnapshotsRequest, ListVolumeHealth, ListVolumes, ListVolumesRequest, ModifyVolume, Page,
    PublishUnpublishVolume, Published, ValidateVolumeCapabilitiesRequest, VolumeListing,
};
pub use error::{Error, Result};
pub use group_controller::{
    CreateVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotRequest,
    GroupController,
};
pub use identity::{Identity, Readiness};
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use node::{Attachment, BlockDevices, BlockNode, Directories, DirectoryNode, remove_tree};
pub use node::{
    GetStorageHealth, GetVolumeStats, Node, NodeExpandVolume, NodeExpandVolumeRequest,
    NodeGetStorageHealthRequest, NodeGetVolumeHealth, NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest,
    NodeInfo, NodePublishVolumeRequest, NodeService, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, StageUnstageVolume,
};
pub use plugin::{Mode, Plugin};
pub use rpc::{Rpc, Service};
pub use server::{Endpoint, ServeError};
pub use snapshot_metadata::{
    BlockMetadata, BlockMetadataType, BlockRange, GetMetadataAllocatedRequest, GetMetadataDeltaRequest,
    SnapshotMetadata,
};
pub use types::*;
