//! The Node service: volumes as one node has them.
//!
//! [`Node`] is what every node plugin has; each optional capability is a trait of its own, named as the spec names
//! it, and registered with [`NodeService`]. `node_plugins/` has whole node plugins for some kinds of volumes.
//!
//! It imports the path of a call and what lies below that, and no other service.

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

pub use expand::{NodeExpandVolume, NodeExpandVolumeRequest};
pub use health::{
    GetStorageHealth, NodeGetStorageHealthRequest, NodeGetVolumeHealth, NodeGetVolumeHealthRequest,
};
pub use info::NodeInfo;
pub(crate) use info::{NodeGetCapabilitiesRequest, NodeGetInfoRequest};
pub(crate) use matrix::OneAtATime;
pub use matrix::{AtTarget, PublishedTargets, SingleNodeWriter};
pub use publish::{Node, NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
pub use service::NodeService;
pub(crate) use service::NodeTable;
pub use stage::{NodeStageVolumeRequest, NodeUnstageVolumeRequest, StageUnstageVolume};
pub use stats::{GetVolumeStats, NodeGetVolumeStatsRequest};
