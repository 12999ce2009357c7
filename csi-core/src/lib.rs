//! Write a CSI driver: one trait a capability, and the server around them.
//!
//! A driver says what is particular to its storage. Everything else is here: the services, capabilities that are
//! advertised because they are registered, requests that are checked before the driver sees them, one operation on a
//! volume at a time, status codes, the socket, and a clean end.
//!
//! ```no_run
//! use csi_core::*;
//! use std::{path::PathBuf, sync::Arc};
//!
//! /// A volume is a directory below this one.
//! struct Dirs(PathBuf);
//!
//! #[async_trait]
//! impl Directories for Dirs {
//!     async fn directory(&self, id: &VolumeId) -> Result<PathBuf> {
//!         Ok(self.0.join(id.as_file_name()?))
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> std::process::ExitCode {
//!     let node = DirectoryNode::service(Arc::new(Dirs("/srv/volumes".into())));
//!     Plugin::new("dirs.csi.example.org", env!("CARGO_PKG_VERSION")).node(node).run().await
//! }
//! ```
//!
//! | to | there is |
//! |---|---|
//! | make volumes | [`Controller`], [`CreateDeleteVolume`], and a trait for each other capability of the controller |
//! | bring them to workloads | [`Node`], [`StageUnstageVolume`], and a trait for each other capability of the node |
//! | have all of the node's part for block devices | [`BlockNode`], for a driver's [`BlockDevices`] |
//! | have all of it for directories | [`DirectoryNode`], for a driver's [`Directories`] |
//! | have all of it for filesystems of a server | [`SharedNode`], for a driver's [`SharedFilesystems`] |
//! | have all of it for filesystems that a program serves by FUSE | [`FuseNode`], for a driver's [`FuseFilesystems`] |
//! | have all of it for files that the driver makes up: secrets, certificates | [`EphemeralNode`], for a driver's [`EphemeralContent`] |
//! | cut snapshots of many volumes at one moment | [`GroupController`] |
//! | tell which blocks of a snapshot hold data, or changed | [`SnapshotMetadata`] |
//! | tell how the plugin is | [`Identity`] |
//! | register what there is | [`ControllerService`], [`NodeService`] |
//! | serve it | [`Plugin`], on an [`Endpoint`], in a [`Mode`], with a [`Registration`] at the kubelet |
//! | fail | [`Error`]: conditions in, status codes out |
//! | not write again what every driver needs | [`Pager`], [`IdCodec`], [`CreateRecord`], [`Quantity`], [`Place`], [`AttachLimit`], [`ClaimNames`], [`PodInfo`], [`ServiceAccountTokens`] |
//! | do what blocks | [`blocking()`], and [`mount`] for mounts, devices and filesystems |
//!
//! Requests and answers have the spec's names and fields ([`CreateVolumeRequest`], [`Volume`]). A field's type says
//! what the spec asks of it, and [`raw()`](CreateVolumeRequest::raw) gives the wire's form back; a driver's own tests
//! make one with `CreateVolumeRequest::try_from(proto::v1::CreateVolumeRequest { .. })`.
//!
//! # What holds for every call
//!
//! - A request that breaks the spec never reaches the driver: its caller gets INVALID_ARGUMENT and the field's name.
//! - An operation runs to its end once it has begun, whether its caller waits or not. The same request again joins
//!   it; another one that touches the same thing gets ABORTED.
//! - A panic is INTERNAL for its caller and harmless for everybody else.
//! - No log line, error or `Debug` shows a secret.
//! - An answer that breaks the spec is INTERNAL, and says which rule it breaks.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `mount` | yes | on Linux: [`mount`], the ready-made node plugins, and the requests' own ways to the kernel |
//! | `luks` | | encrypted block volumes: `BlockDevices::encryption` |
//! | `clap` | | `DriverArgs`: flags and environment for all that follows, for `Plugin::run_with` |
//! | `http` | | `Plugin::http`: `/healthz`, `/readyz` and `/metrics` |
//! | `log` | | `init_log`: the log on standard error, as text or JSON |
//! | `grpc-health` | | gRPC's health service on the same socket, answered by the plugin's probe |
//! | `grpc-reflection` | | gRPC's reflection there, for tools such as grpcurl |
//! | `client` | | `client::Client`, which waits for a plugin and calls it with deadlines |
//!
//! Registration with the kubelet needs no feature: [`Plugin::register`].
//!
//! Log lines and spans are [`tracing`](https://docs.rs/tracing)'s: a driver chooses its subscriber.
#![forbid(unsafe_code)]
#![cfg(unix)]

// The layers, from the ground up: a module imports from groups above it in this list, and from no other.
mod rpc;

mod ids;
mod mode;

mod error;

mod blocking;
mod offer;

mod types;

mod admission;
mod kubernetes;

mod call;

mod controller;
mod group_controller;
mod identity;
mod node;
mod snapshot_metadata;

mod capabilities;
#[cfg(all(feature = "mount", target_os = "linux"))]
mod node_plugins;

mod adapters;

mod server;

mod plugin;

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "log")]
mod log;

#[cfg(feature = "clap")]
mod flags;

pub mod prelude;

mod needs_trait;

pub use async_trait::async_trait;
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use csi_mount as mount;
pub use csi_proto as proto;

pub use blocking::blocking;
pub use controller::{
    AttachLimit, Capacity, Controller, ControllerExpandVolumeRequest, ControllerGetVolumeHealthRequest,
    ControllerGetVolumeRequest, ControllerListVolumeHealthRequest, ControllerModifyVolumeRequest,
    ControllerPublishVolumeRequest, ControllerService, ControllerUnpublishVolumeRequest,
    CreateDeleteSnapshot, CreateDeleteVolume, CreateRecord, CreateSnapshotRequest, CreateVolumeRequest,
    DeleteSnapshotRequest, DeleteVolumeRequest, ExpandVolume, Expanded, GetCapacity, GetCapacityRequest,
    GetSnapshot, GetSnapshotRequest, GetVolume, GetVolumeHealth, ListSnapshots, ListSnapshotsRequest,
    ListVolumeHealth, ListVolumes, ListVolumesRequest, ModifyVolume, Page, Pager, PublishUnpublishVolume,
    Published, Reservation, ValidateVolumeCapabilitiesRequest, VolumeListing,
};
pub use error::{Error, IoContext, Result};
#[cfg(feature = "clap")]
pub use flags::DriverArgs;
pub use group_controller::{
    CreateVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotRequest,
    GroupController,
};
pub use identity::{Identity, Readiness};
pub use kubernetes::{ClaimNames, PodInfo, Quantity, ServiceAccountToken, ServiceAccountTokens, round_up};
#[cfg(feature = "log")]
pub use log::{LogFormat, init_log};
pub use mode::Mode;
pub use node::{
    AtTarget, GetStorageHealth, GetVolumeStats, Node, NodeExpandVolume, NodeExpandVolumeRequest,
    NodeGetStorageHealthRequest, NodeGetVolumeHealth, NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest,
    NodeInfo, NodePublishVolumeRequest, NodeService, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, PublishedTargets, SingleNodeWriter, StageUnstageVolume,
};
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use node_plugins::{
    Attachment, BlockDevices, BlockNode, Directories, DirectoryNode, EphemeralContent, EphemeralNode,
    FuseFilesystems, FuseNode, MountGroup, SharedFilesystems, SharedNode, mounted_from, remove_tree,
    stage_plan,
};
pub use offer::{ControllerCapability, Expansion, NodeCapability};
pub use plugin::Plugin;
pub use rpc::{Rpc, Service};
pub use server::{Endpoint, Registration, ServeError, SocketRemoval};
pub use snapshot_metadata::{
    BlockMetadata, BlockMetadataType, BlockRange, GetMetadataAllocatedRequest, GetMetadataDeltaRequest,
    SnapshotMetadata,
};
pub use types::*;

/// The README's driver, compiled.
#[cfg(all(doctest, feature = "mount", target_os = "linux"))]
#[doc = include_str!("../../README.md")]
struct Readme;
