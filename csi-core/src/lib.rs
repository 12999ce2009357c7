//! A framework for CSI drivers: one trait per capability, and the gRPC server around them.
//!
//! A driver implements only what is particular to its storage. The crate provides the rest: the services,
//! the capabilities (a capability is advertised when its trait is registered), checks of each request
//! before the driver sees it, at most one operation on a volume at a time, status codes, the socket, and a
//! clean shutdown.
//!
//! ```no_run
//! use csi_core::{Result, prelude::*};
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
//! | to | use |
//! |---|---|
//! | create volumes | [`Controller`], [`CreateDeleteVolume`], and one trait for each other controller capability |
//! | make volumes available to workloads | [`Node`], [`StageUnstageVolume`](node::StageUnstageVolume), and one trait for each other node capability |
//! | serve block devices with a ready-made Node service | [`BlockNode`], for a driver's [`BlockDevices`] |
//! | serve directories with a ready-made Node service | [`DirectoryNode`], for a driver's [`Directories`] |
//! | serve network filesystems with a ready-made Node service | [`SharedNode`], for a driver's [`SharedFilesystems`] |
//! | serve FUSE filesystems with a ready-made Node service | [`FuseNode`], for a driver's [`FuseFilesystems`] |
//! | serve files that the driver generates (secrets, certificates) with a ready-made Node service | [`EphemeralNode`], for a driver's [`EphemeralContent`] |
//! | take snapshots of several volumes at one moment | [`GroupController`](group_controller::GroupController) |
//! | report which blocks of a snapshot hold data, or changed | [`SnapshotMetadata`](snapshot_metadata::SnapshotMetadata) |
//! | report the plugin's health | [`Identity`] |
//! | register what the driver implements | [`ControllerService`], [`NodeService`] |
//! | serve it | [`Plugin`], on an [`Endpoint`], in a [`Mode`], for a [`Spec`], with a [`Registration`](server::Registration) at the kubelet |
//! | return an error | [`Error`]: the driver names a condition, the crate chooses the status code |
//! | reuse what every driver needs | [`controller`] ([`Pager`](controller::Pager), [`CreateRecord`](controller::CreateRecord), [`AttachLimit`](controller::AttachLimit)), [`types`] ([`IdCodec`](types::IdCodec), [`Place`](types::Place)), [`kubernetes`] |
//! | keep records of volumes and snapshots durably | [`Records`](records::Records), with a [`CreateRecord`](controller::CreateRecord) or [`SnapshotRecord`](controller::SnapshotRecord) in each |
//! | call a storage system's API: retries, rate limits, long operations, credentials that rotate | `backend` |
//! | run a storage system's own command-line tools | [`mount::Program`] |
//! | run blocking work | [`blocking()`], and [`mount`] for mounts, devices and filesystems |
//!
//! The root has the names of the [`prelude`], and those that belong to the plugin as a whole. Every other
//! name is in the module of its service or subject: [`controller`], [`node`], [`node_plugins`], [`types`],
//! [`records`], [`kubernetes`], [`server`].
//!
//! Requests and answers have the spec's names and fields ([`CreateVolumeRequest`], [`Volume`]). The type of
//! a field carries what the spec requires of it. [`raw()`](CreateVolumeRequest::raw) returns the message as
//! it came over the wire. A driver's own tests make a request with
//! `CreateVolumeRequest::try_from(proto::v1::CreateVolumeRequest { .. })`.
//!
//! # What holds for every call
//!
//! - A request that breaks the spec never reaches the driver: its caller gets INVALID_ARGUMENT with the
//!   field's name.
//! - An operation that has started runs to its end, even if its caller gives up. A repeat of the same
//!   request joins the running operation. A different request for the same object gets ABORTED.
//! - A panic in the driver is INTERNAL for the caller and affects no other call.
//! - No log line, error or `Debug` output shows a secret.
//! - An answer that breaks the spec becomes INTERNAL, with a message that names the broken rule.
//!
//! # Testing your driver
//!
//! With the feature `testing`, `cargo test` of a driver needs no root. The plugin is served on a socket, and a
//! simulated node (`mount::testing::SimulatedNode`) keeps its devices, mounts and files in memory. The node also
//! takes faults: an error, a crash after any step, a full disk, a filesystem that hangs, a missing tool.
//!
//! ```
//! # #[cfg(target_os = "linux")]
//! # mod driver {
//! use std::path::PathBuf;
//! use std::sync::Arc;
//!
//! use csi_core::client::{Target, VolumeUse};
//! use csi_core::mount::testing::SimulatedNode;
//! use csi_core::proto::v1::{VolumeCapability, volume_capability::access_mode::Mode};
//! use csi_core::{Result, prelude::*, testing};
//!
//! # struct Dirs(PathBuf);
//! # #[async_trait]
//! # impl Directories for Dirs {
//! #     async fn directory(&self, id: &VolumeId) -> Result<PathBuf> {
//! #         Ok(self.0.join(id.as_file_name()?))
//! #     }
//! # }
//! /// The driver's own function.
//! fn plugin(volumes: PathBuf) -> Plugin {
//!     Plugin::new("dirs.csi.example.org", "1").node(DirectoryNode::service(Arc::new(Dirs(volumes))))
//! }
//!
//! // In a test: #[tokio::test]
//! pub async fn a_publish_that_is_killed_is_repeated() {
//!     let directory = tempfile::tempdir().unwrap();
//!     std::fs::create_dir(directory.path().join("vol-1")).unwrap();
//!     let node = SimulatedNode::new();
//!     node.create_dir("/var/lib/kubelet/pods/1");
//!     let client = testing::serve(plugin(directory.path().into()).host(node.clone()), &directory).await;
//!
//!     // The requests of the attacher and the kubelet, in their order.
//!     let mut volume = VolumeUse::new("vol-1", VolumeCapability::mount(Mode::SingleNodeWriter));
//!     let targets = [Target::new("/var/lib/kubelet/pods/1/mount")];
//!     node.crash_after(0);
//!     volume.attach_stage_publish(&client, &targets).await.unwrap_err();
//!     node.restart();
//!     volume.attach_stage_publish(&client, &targets).await.unwrap();
//!     node.write(targets[0].path.join("file"), "data").unwrap();
//!     volume.unpublish_unstage_detach(&client, &targets).await.unwrap();
//!     assert!(!node.exists(&targets[0].path));
//! }
//! # }
//! # #[cfg(target_os = "linux")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() { driver::a_publish_that_is_killed_is_repeated().await }
//! # #[cfg(not(target_os = "linux"))]
//! # fn main() {}
//! ```
//!
//! - A disk that a cloud attaches: the test attaches it to the simulated node (`SimulatedNode::attach_disk`), and the driver
//!   finds it there by its LUN or serial number ([`ExpectedDevice`](mount::ExpectedDevice)).
//! - The rules of the spec are tested by the kit [csi-conformance](https://docs.rs/csi-conformance): as a library
//!   in `cargo test`, or as a program against any socket. It mounts real volumes, so it needs root.
//! - Tests with real mounts run in a mount namespace of their own: `mount::testing::private_mount_namespace`.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `mount` | yes | on Linux: [`mount`], the ready-made node plugins, and the requests' methods that mount and unmount |
//! | `luks` | | encrypted block volumes: `BlockDevices::encryption` |
//! | `lvm` | | volumes of LVM on the node's own disks: `csi_core::mount::lvm`, `csi_core::mount::erase` |
//! | `remote` | | `RemoteDisks`: block volumes that are attached over the network (NVMe over TCP and RDMA, iSCSI, Fibre Channel, RBD); `BlockDevices::fencing`: one writer, proven by the storage |
//! | `clap` | | `DriverArgs`: command-line flags and environment variables for the plugin's settings, for `Plugin::run_with` |
//! | `manifests` | | with `clap`: the command `manifests` of a driver, which makes its Kubernetes manifests |
//! | `http` | | `Plugin::http`: `/healthz`, `/readyz` and `/metrics` |
//! | `log` | | `init_log`: the log on standard error, as text or JSON |
//! | `grpc-health` | | gRPC's health service on the same socket, answered by the plugin's probe |
//! | `grpc-reflection` | | gRPC's reflection service on the same socket, for tools such as grpcurl |
//! | `backend` | | `backend`: a storage system behind an API |
//! | `client` | | `client::Client`, which waits for a plugin and calls it with deadlines, and `client::VolumeUse`, the requests of a volume's life |
//! | `testing` | | `testing::serve` and `mount::testing`, for a driver's own tests; only among the `dev-dependencies` |
//!
//! Registration with the kubelet needs no feature: [`Plugin::register`].
//!
//! Log lines and spans go through [`tracing`](https://docs.rs/tracing); the driver chooses the subscriber.
#![cfg_attr(docsrs, feature(doc_cfg), doc(auto_cfg(hide(unix))))]
#![forbid(unsafe_code)]
#![cfg(unix)]

// The layers, lowest first: a module imports only from groups above it in this list.
mod ids;

mod choice;
mod error;
mod mode;
mod spec;

mod blocking;
mod count;
mod offer;

pub mod types;

mod admission;
#[cfg(feature = "backend")]
pub mod backend;
pub mod kubernetes;
pub mod records;

mod call;

mod registered;

pub mod controller;
pub mod group_controller;
pub mod identity;
pub mod node;
pub mod snapshot_metadata;

mod capabilities;
#[cfg(all(feature = "mount", target_os = "linux"))]
pub mod node_plugins;

mod adapters;

pub mod server;

mod plugin;

#[cfg(feature = "log")]
mod log;

#[cfg(feature = "clap")]
mod flags;

#[doc(hidden)]
pub mod internal;
pub mod prelude;

#[cfg(all(feature = "testing", target_os = "linux"))]
pub mod testing;

pub use admission::{Claimed, Claims};
pub use async_trait::async_trait;
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use csi_mount as mount;
pub use csi_proto as proto;
#[cfg(feature = "client")]
pub use csi_proto::client;
pub use csi_proto::{ControllerCapability, Endpoint, EndpointError, NodeCapability, Rpc, Service};

pub use blocking::blocking;
pub use call::request::TypedRequest;
pub use controller::{
    Controller, ControllerExpandVolume, ControllerExpandVolumeRequest, ControllerService,
    CreateDeleteSnapshot, CreateDeleteVolume, CreateVolumeRequest, DeleteVolumeRequest, Expanded,
};
/// The crate behind the command `manifests`, for [`Plugin::declare`] and [`Plugin::facts`].
#[cfg(feature = "manifests")]
pub use csi_deploy as deploy;
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use csi_mount::Host;
pub use error::{Error, IoContext, Reason, Result};
#[cfg(feature = "clap")]
pub use flags::DriverArgs;
pub use identity::Identity;
#[cfg(feature = "log")]
pub use log::{LogFormat, init_log};
pub use mode::Mode;
pub use node::{Node, NodeInfo, NodeService};
#[cfg(all(feature = "mount", target_os = "linux"))]
pub use node_plugins::{
    Attachment, BlockDevices, BlockNode, Directories, DirectoryNode, EphemeralContent, EphemeralNode,
    FuseFilesystems, FuseNode, SharedFilesystems, SharedNode, create_directory, remove_tree, stage_plan,
};
pub use offer::Expansion;
pub use plugin::Plugin;
pub use spec::Spec;
pub use types::{CapacityRange, Volume, VolumeCapability, VolumeId};

/// The examples in README.md, compiled.
#[cfg(doctest)]
#[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"))]
struct Readme;
