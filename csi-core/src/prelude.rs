//! The names that nearly every driver uses, for `use csi_core::prelude::*`: the traits that a driver
//! implements, their requests and answers, and the types that put a plugin together.
//!
//! Names that are usual in other crates too are not among them: import [`Result`](crate::Result),
//! [`Mode`](crate::Mode), [`Page`](crate::Page), [`Place`](crate::Place),
//! [`Token`](crate::Token) and [`Usage`](crate::Usage) by name.
//!
//! ```
//! use csi_core::Result;
//! use csi_core::prelude::*;
//!
//! struct Pool;
//!
//! #[async_trait]
//! impl Identity for Pool {
//!     async fn probe(&self) -> Result<Readiness> {
//!         Ok(Readiness::Ready)
//!     }
//! }
//! ```

#[cfg(feature = "clap")]
pub use crate::DriverArgs;
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use crate::node_plugins::{
    Attachment, BlockDevices, BlockNode, Directories, DirectoryNode, EphemeralContent, EphemeralNode,
    FuseFilesystems, FuseNode, MountGroup, RootPermissions, SharedFilesystems, SharedNode, mounted_from,
    remove_tree, stage_plan,
};
pub use crate::{
    AbsolutePath, AccessMode, AccessType, AttachLimit, BlockMetadata, BlockMetadataType, BlockRange,
    Capacity, CapacityRange, ClaimNames, ContentSource, Controller, ControllerCapability,
    ControllerExpandVolume, ControllerExpandVolumeRequest, ControllerGetVolume, ControllerGetVolumeHealth,
    ControllerGetVolumeHealthRequest, ControllerGetVolumeRequest, ControllerListVolumeHealth,
    ControllerListVolumeHealthRequest, ControllerModifyVolume, ControllerModifyVolumeRequest,
    ControllerPublishVolumeRequest, ControllerService, ControllerUnpublishVolumeRequest,
    CreateDeleteSnapshot, CreateDeleteVolume, CreateRecord, CreateSnapshotRequest,
    CreateVolumeGroupSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest,
    DeleteVolumeGroupSnapshotRequest, DeleteVolumeRequest, Error, Expanded, Expansion, GetCapacity,
    GetCapacityRequest, GetMetadataAllocatedRequest, GetMetadataDeltaRequest, GetSnapshot,
    GetSnapshotRequest, GetVolumeGroupSnapshotRequest, GroupController, GroupSnapshotId, GroupSnapshotName,
    IdCodec, IdFields, Identity, IoContext, ListSnapshots, ListSnapshotsRequest, ListVolumes,
    ListVolumesRequest, MountFlags, MutableParameters, Node, NodeCapability, NodeExpandVolume,
    NodeExpandVolumeRequest, NodeGetStorageHealth, NodeGetStorageHealthRequest, NodeGetVolumeHealth,
    NodeGetVolumeHealthRequest, NodeGetVolumeStats, NodeGetVolumeStatsRequest, NodeId, NodeInfo,
    NodePublishVolumeRequest, NodeService, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, Pager, Parameters, Plugin, PodInfo, PublishContext, PublishUnpublishVolume,
    Published, PublishedTargets, Quantity, Readiness, Reason, Records, RequiredCapacity, Reservation,
    Secrets, ServiceAccountToken, ServiceAccountTokens, Snapshot, SnapshotId, SnapshotMetadata, SnapshotName,
    SnapshotRecord, StageUnstageVolume, StorageHealthEntry, StorageHealthStatus, Topology,
    TopologyRequirement, ValidateVolumeCapabilitiesRequest, Volume, VolumeCapabilities, VolumeCapability,
    VolumeContext, VolumeGroupSnapshot, VolumeHealth, VolumeHealthEntry, VolumeHealthStatus, VolumeId,
    VolumeListing, VolumeName, VolumePath, VolumeStats, async_trait, blocking,
};
/// The steps of [`machine()`](crate::machine()).
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use csi_mount::Machine as _;
