//! The Kubernetes side of a CSI driver: what a driver needs from the API server, and neither the kubelet nor
//! the sidecars give it. A driver that needs none of it does not use this crate.
//!
//! | for | type | rules |
//! |---|---|---|
//! | topology and volume limit from the node's labels | [`NodeLabels`] | [`rules::NODE_LABELS`] |
//! | the start-up taint, removed once the driver is registered | [`StartupTaint`] | [`rules::STARTUP_TAINT`] |
//! | one leader among several controllers | [`Election`], [`Leadership`] | [`rules::LEADER_ELECTION`] |
//! | the claim, volume, pod, class or namespace of a call | [`Objects`] | one for each kind |
//! | events of claims, volumes and pods | [`Events`] | [`rules::EVENTS`] |
//! | events of the node: the driver fails, or a volume stays in use | [`NodeEvents`] | [`rules::NODE_EVENTS`] |
//! | waiting for detached volumes before the node's pod stops | [`Drain`] | [`rules::DRAIN`] |
//! | a pod for the FUSE program of each volume | [`FusePods`] | [`rules::FUSE_PODS`], [`rules::FUSE_PODS_NAMESPACE`] |
//! | volumes and classes of former in-tree plugins | [`migration`] | none |
//!
//! The node part of a driver, with its topology from the node's labels and the start-up taint. The three
//! lines with `csi_kube` are what it adds to a driver:
//!
//! ```no_run
//! use csi_core::{Result, prelude::*};
//! use std::{path::PathBuf, sync::Arc};
//!
//! const NAME: &str = "dirs.csi.example.org";
//!
//! struct Dirs {
//!     client: csi_kube::Client,
//!     node: String,
//! }
//!
//! #[async_trait]
//! impl Directories for Dirs {
//!     async fn info(&self) -> Result<NodeInfo> {
//!         csi_kube::NodeLabels::new(NAME).region().zone().read(&self.client, &self.node).await?.node_info()
//!     }
//!     async fn directory(&self, id: &VolumeId) -> Result<PathBuf> {
//!         Ok(PathBuf::from("/srv/volumes").join(id.as_file_name()?))
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> std::process::ExitCode {
//!     let client = csi_kube::Client::try_default().await.expect("a service account or a kubeconfig");
//!     let node = std::env::var("NODE_ID").expect("NODE_ID: the node's name");
//!     let taint = csi_kube::StartupTaint::new(NAME);
//!     let dirs = Arc::new(Dirs { client: client.clone(), node: node.clone() });
//!     let plugin = Plugin::new(NAME, "1")
//!         .register(csi_core::server::Registration::new("/registration"))
//!         .volume_accessibility_constraints()
//!         .node(DirectoryNode::service(dirs));
//!     tokio::spawn(taint.run_after(plugin.registered(), client, node));
//!     plugin.run().await
//! }
//! ```
//!
//! [`Client`] is kube's. [`Client::try_default`] uses the pod's service account, or a kubeconfig. It needs no
//! C libraries: TLS is rustls with ring, linked statically.
//!
//! `docs/kubernetes.md` of the repository has the operator's side: rules, hooks, timing.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod drain;
mod error;
mod events;
mod fuse_pods;
mod leader;
pub mod migration;
mod node_events;
mod node_labels;
mod objects;
mod request;
pub mod rules;
mod startup_taint;

pub use drain::{Drain, Drained};
pub use error::{Error, Result};
pub use events::{Events, Severity};
pub use fuse_pods::FusePods;
#[doc(no_inline)]
pub use kube::Client;
pub use leader::{Election, Leadership, Timing};
pub use node_events::NodeEvents;
pub use node_labels::{NodeFacts, NodeLabels};
pub use objects::Objects;
pub use startup_taint::StartupTaint;

/// For the tests of this crate, and for csi-controllers.
#[doc(hidden)]
pub mod internal {
    pub use crate::leader::{Clock, while_leading};
    pub use crate::request::{send, with_answer_limit};
}

/// The code in README.md compiles.
#[cfg(doctest)]
#[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"))]
struct Readme;
