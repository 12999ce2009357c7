//! Ready-made node plugins on `csi-mount`: the whole Node service for volumes of one kind.
//!
//! [`BlockNode`], [`DirectoryNode`], [`SharedNode`], [`FuseNode`] and [`EphemeralNode`] each turn a
//! driver's small trait into a whole Node service. The methods of the node's requests that mount, unmount
//! and examine mounts are here too: a driver with its own node plugin uses them.
//!
//! It imports the Node service ([`crate::node`]) and what lies below it.

mod attachments;
mod block;
mod block_devices;
mod condition;
mod directory;
mod encryption;
mod ephemeral;
mod fencing;
mod filesystem_options;
mod fuse;
#[cfg(feature = "http")]
mod fuse_metrics;
mod kernel;
mod limited_directory;
#[cfg(feature = "lvm")]
mod logical_volumes;
mod mount_group;
mod ownership;
#[cfg(feature = "remote")]
mod remote;
mod remove_tree;
mod root_permissions;
mod selinux;
mod shared;
mod targets;

pub use block::BlockNode;
pub use block_devices::{Attachment, BlockDevices, stage_plan};
pub use directory::{Directories, DirectoryNode};
pub use ephemeral::{EphemeralContent, EphemeralNode};
#[cfg(feature = "remote")]
pub use fencing::{PublishRecord, machine_node_id};
pub use filesystem_options::FilesystemOptions;
pub use fuse::{FuseFilesystems, FuseNode};
pub use limited_directory::{create_directory, grow_directory};
#[cfg(feature = "lvm")]
pub use logical_volumes::LogicalVolumes;
pub use mount_group::MountGroup;
#[cfg(feature = "remote")]
pub use remote::RemoteDisks;
pub use remove_tree::{is_mounted_from, mounted_besides, mounted_from, remove_tree};
pub use root_permissions::RootPermissions;
pub use shared::{SharedFilesystems, SharedNode};
