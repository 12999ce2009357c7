//! The ready-made node plugins: all of a node's part for volumes of one kind, on `csi-mount`.
//!
//! [`BlockNode`], [`DirectoryNode`], [`SharedNode`], [`FuseNode`] and [`EphemeralNode`] each serve a driver's small trait
//! as a whole Node service. The methods of the node's requests that mount, unmount and look at mounts are here too: a
//! driver with a node plugin of its own uses them.
//!
//! It imports the Node service ([`crate::node`]) and what lies below it.

mod block;
mod block_devices;
mod condition;
mod directory;
mod encryption;
mod ephemeral;
mod fuse;
mod kernel;
mod mount_group;
mod places;
mod remove_tree;
mod shared;
mod targets;

pub use block::BlockNode;
pub use block_devices::{Attachment, BlockDevices, stage_plan};
pub use directory::{Directories, DirectoryNode};
pub use ephemeral::{EphemeralContent, EphemeralNode};
pub use fuse::{FuseFilesystems, FuseNode};
pub use mount_group::MountGroup;
pub use remove_tree::{mounted_from, remove_tree};
pub use shared::{SharedFilesystems, SharedNode};
