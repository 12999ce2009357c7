//! The Node service: volumes as one node has them.
//!
//! [`Node`] is what every node plugin has; each optional capability is a trait of its own, named as the spec names
//! it, and registered with [`NodeService`]. On Linux, with feature `mount`, [`BlockNode`],
//! [`DirectoryNode`], [`SharedNode`], [`FuseNode`] and [`EphemeralNode`] are all of it for volumes of their kind, and
//! the requests have methods that do the mounting.

#[cfg(all(feature = "mount", target_os = "linux"))]
mod block;
#[cfg(all(feature = "mount", target_os = "linux"))]
mod block_devices;
#[cfg(all(feature = "mount", target_os = "linux"))]
mod condition;
#[cfg(all(feature = "mount", target_os = "linux"))]
mod directory;
#[cfg(all(feature = "mount", target_os = "linux"))]
mod encryption;
#[cfg(all(feature = "mount", target_os = "linux"))]
mod ephemeral;
mod expand;
#[cfg(all(feature = "mount", target_os = "linux"))]
mod fitness;
#[cfg(all(feature = "mount", target_os = "linux"))]
mod fuse;
mod health;
mod info;
#[cfg(all(feature = "mount", target_os = "linux"))]
mod kernel;
mod matrix;
#[cfg(all(feature = "mount", target_os = "linux"))]
mod mount_group;
mod path_gate;
#[cfg(all(feature = "mount", target_os = "linux"))]
mod places;
mod publish;
#[cfg(all(feature = "mount", target_os = "linux"))]
mod remove_tree;
mod service;
#[cfg(all(feature = "mount", target_os = "linux"))]
mod shared;
mod stage;
mod stats;
#[cfg(all(feature = "mount", target_os = "linux"))]
mod targets;

#[cfg(all(feature = "mount", target_os = "linux"))]
pub use block::BlockNode;
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use block_devices::{Attachment, BlockDevices, stage_plan};
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use directory::{Directories, DirectoryNode};
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use ephemeral::{EphemeralContent, EphemeralNode};
pub use expand::{NodeExpandVolume, NodeExpandVolumeRequest};
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use fuse::{FuseFilesystems, FuseNode};
pub use health::{
    GetStorageHealth, NodeGetStorageHealthRequest, NodeGetVolumeHealth, NodeGetVolumeHealthRequest,
};
pub use info::NodeInfo;
pub(crate) use info::{NodeGetCapabilitiesRequest, NodeGetInfoRequest};
pub(crate) use matrix::OneAtATime;
pub use matrix::{AtTarget, PublishedTargets, SingleNodeWriter};
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use mount_group::MountGroup;
pub(crate) use path_gate::PathGate;
pub use publish::{Node, NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use remove_tree::{mounted_from, remove_tree};
pub use service::NodeService;
pub(crate) use service::NodeTable;
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use shared::{SharedFilesystems, SharedNode};
pub use stage::{NodeStageVolumeRequest, NodeUnstageVolumeRequest, StageUnstageVolume};
pub use stats::{GetVolumeStats, NodeGetVolumeStatsRequest};
