//! Kubernetes manifests of a CSI driver, made from the capabilities that the driver reports.
//!
//! A [`Driver`] has the facts: the answers of GetPluginInfo and of the three GetCapabilities RPCs.
//! [`Options`] have what no RPC reports: the image, the namespace, what the CSIDriver object declares.
//! [`manifests`] makes the objects, and refuses options that contradict the facts.
//!
//! ```
//! use csi_deploy::{Driver, Options, manifests};
//! use csi_proto::{ControllerCapability, NodeCapability};
//!
//! let driver = Driver::new("files.csi.example.org")
//!     .with_controller([ControllerCapability::CreateDeleteVolume])
//!     .with_node([NodeCapability::GetVolumeStats]);
//! let mut options = Options::new("registry.example.org/files-csi:1.0.0");
//! options.namespace = "files-csi".to_owned();
//! let yaml = manifests(&driver, &options)?.single();
//! assert!(yaml.contains("kind: CSIDriver") && yaml.contains("sig-storage/csi-provisioner:"));
//! # Ok::<_, csi_deploy::Error>(())
//! ```
//!
//! The objects are JSON values; no text template is filled in. Equal input gives equal bytes, in one order. The Helm
//! chart is made from the same objects.
//!
//! | module | has |
//! |---|---|
//! | `driver`, `discover` | the facts, and how they are read from a socket |
//! | `options`, `rule`, `settings`, `part`, `plan` | the options, and both checked together: every decision is a method of the plan |
//! | `sidecars` | the sidecars: versions, flags, when each one runs |
//! | `rbac` | the rules of each sidecar as a table, and the objects made from it |
//! | `releases` | what not every release of Kubernetes has |
//! | `csi_driver`, `pods`, `classes`, `extras`, `monitoring` | the objects |
//! | `manifests`, `objects`, `files` | all objects, as files or as one text |
//! | `testdriver` | the driver described to Kubernetes' end-to-end tests |
//! | `chart` | the same objects as a Helm chart |
//!
//! | feature | gives |
//! |---|---|
//! | `clap` | [`Options`] as command-line flags, and `Output` |
//! | `client` | `Driver::discover`: reads the facts from a socket |
//!
//! The objects are those of Kubernetes 1.37: the tests read each as its type of `k8s-openapi` and back, and no field is
//! lost. The objects have only fields that also older clusters know, and with their options those in
//! `docs/releases.md`.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod chart;
mod checks;
mod classes;
mod csi_driver;
#[cfg(feature = "client")]
mod discover;
mod driver;
mod error;
mod extras;
mod files;
mod manifests;
mod names;
mod objects;
mod options;
#[cfg(feature = "clap")]
mod output;
mod part;
mod plan;
mod pods;
mod rbac;
mod releases;
mod rule;
mod settings;
mod sidecars;
mod testdriver;

#[cfg(feature = "client")]
pub use discover::DiscoverError;
pub use driver::Driver;
pub use error::Error;
pub use manifests::{Manifests, manifests};
pub use options::{
    Class, Controller, FsGroupPolicy, FusePods, Lifecycle, Options, SecretReference, TokenRequest,
};
#[cfg(feature = "clap")]
pub use output::Output;
pub use rule::Rule;
pub use settings::{FilesDirectory, SecretVariable};

/// The examples in README.md, compiled.
#[cfg(doctest)]
#[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"))]
struct Readme;
