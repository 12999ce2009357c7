//! The Node service: volumes as one node sees them.
//!
//! Every node plugin implements [`Node`]. Each optional capability is a trait of its own, with the spec's
//! name, registered with [`NodeService`]. `node_plugins/` has ready-made node plugins for some kinds of
//! volumes.
//!
//! It imports the call path and what lies below it, and no other service.

#[cfg(all(feature = "mount", target_os = "linux"))]
mod adoption;
mod expand;
#[cfg(all(feature = "mount", target_os = "linux"))]
mod fitness;
mod health;
mod info;
mod matrix;
mod publish;
mod service;
mod stage;
mod stats;
#[cfg(all(feature = "mount", target_os = "linux"))]
pub(crate) mod trim;

#[cfg(all(feature = "mount", target_os = "linux"))]
pub use adoption::LeftMount;
pub use expand::{NodeExpandVolume, NodeExpandVolumeRequest};
pub use health::{
    NodeGetStorageHealth, NodeGetStorageHealthRequest, NodeGetVolumeHealth, NodeGetVolumeHealthRequest,
};
pub use info::NodeInfo;
pub(crate) use info::{NodeGetCapabilitiesRequest, NodeGetInfoRequest};
pub(crate) use matrix::OneAtATime;
pub(crate) use matrix::SingleNodeWriter;
pub use matrix::{AtTarget, PublishedTargets};
pub use publish::{Node, NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
pub use service::NodeService;
pub(crate) use service::NodeTable;
pub use stage::{NodeStageVolumeRequest, NodeUnstageVolumeRequest, StageUnstageVolume};
pub use stats::{NodeGetVolumeStats, NodeGetVolumeStatsRequest};
