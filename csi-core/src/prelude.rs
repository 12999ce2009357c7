//! The names that most drivers use, for `use csi_core::prelude::*`: a plugin and its services, the traits of
//! the ready-made node plugins, and what creates, grows and deletes a volume.
//!
//! Every other name is imported from its module ([`controller`](crate::controller), [`node`](crate::node),
//! [`types`](crate::types)), and [`Result`](crate::Result) from the root, because other crates have a name
//! like it.
//!
//! ```
//! use csi_core::identity::Readiness;
//! use csi_core::{Result, prelude::*};
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

pub use async_trait::async_trait;
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use csi_mount::Host;

pub use crate::blocking::blocking;
pub use crate::call::request::TypedRequest;
pub use crate::controller::{
    Controller, ControllerExpandVolume, ControllerExpandVolumeRequest, ControllerService,
    CreateDeleteSnapshot, CreateDeleteVolume, CreateVolumeRequest, DeleteVolumeRequest, Expanded,
};
pub use crate::error::{Error, IoContext};
#[cfg(feature = "clap")]
pub use crate::flags::DriverArgs;
pub use crate::identity::Identity;
pub use crate::node::{Node, NodeInfo, NodeService};
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use crate::node_plugins::{
    Attachment, BlockDevices, BlockNode, Directories, DirectoryNode, EphemeralContent, EphemeralNode,
    FuseFilesystems, FuseNode, SharedFilesystems, SharedNode, create_directory, remove_tree, stage_plan,
};
pub use crate::offer::Expansion;
pub use crate::plugin::Plugin;
pub use crate::types::{CapacityRange, Volume, VolumeCapability, VolumeId};
