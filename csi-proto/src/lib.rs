//! The wire of the Container Storage Interface: its messages, clients and servers as Rust types.
//!
//! The types are generated from `proto/csi.proto` and checked in, so that building this crate needs neither
//! `protoc` nor a build script. They are the union of versions 1.13.0 and 1.12.0 of the interface, whose numbers do
//! not clash: one set of types serves callers of both. What only 1.12.0 has is `#[deprecated]`.
//!
//! Secrets never print. `Debug` of every message shows a secret's key and hides its value; see [`redact`].
//!
//! ```
//! use csi_proto::v1::{CapacityRange, CreateVolumeRequest};
//!
//! let request = CreateVolumeRequest {
//!     name: "pvc-1".into(),
//!     capacity_range: Some(CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 }),
//!     secrets: [("password".into(), "hunter2".into())].into(),
//!     ..Default::default()
//! };
//! let text = format!("{request:?}");
//! assert!(text.contains(r#"secrets: {"password": ***}"#));
//! assert!(!text.contains("hunter2"));
//! ```
//!
//! # Modules
//!
//! | module | holds |
//! |---|---|
//! | [`v1`] | the messages of the five services, and a module of client and one of server for each service |
//! | [`pluginregistration`] | the same for the kubelet's plugin registration |
//! | `raw` | a codec that leaves messages as bytes (feature `client` or `server`) |
//! | [`redact`] | what hides secrets, for types that copy fields out of a message |
//! | [`escape`] | what makes text from outside safe to show: on a terminal, in JSON, in a command |
//!
//! A map is a `BTreeMap`, so that equal messages encode to equal bytes.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `server` | yes | the traits of the services and tonic servers around them, such as `v1::node_server` |
//! | `client` | yes | tonic clients, such as `v1::node_client`, with a channel to connect by |
//!
//! Without either, the crate is the messages alone and does not depend on tonic.

#![forbid(unsafe_code)]

pub mod escape;
#[cfg(any(feature = "client", feature = "server"))]
pub mod raw;
#[macro_use]
pub mod redact;

#[rustfmt::skip]
#[allow(
    missing_docs, deprecated, unreachable_pub, clippy::all, clippy::allow_attributes_without_reason,
    reason = "generated: tonic documents none of its modules, and derived code touches deprecated fields"
)]
mod generated {
    /// The five services of the interface: identity, controller, group controller, snapshot metadata and node.
    ///
    /// A service has a module `<service>_client` (feature `client`) and a module `<service>_server` (feature `server`).
    /// What a field means, in what unit and when it is required stands at the field.
    #[path = "csi.v1.rs"]
    pub mod v1;
    /// How the kubelet learns of a driver, and tells it whether it took it.
    ///
    /// The driver serves `registration_server` on a socket of its own in the kubelet's registry folder.
    pub mod pluginregistration;
    mod messages;
    mod redaction;
}

pub use generated::{pluginregistration, v1};

/// The encoded `FileDescriptorSet` of `csi.proto` and `pluginregistration.proto` with all they import.
///
/// It is what gRPC reflection serves, and what a tool walks that treats all messages alike. The spec's options are in
/// it: `csi_secret` on fields and the alpha marks.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/csi.fds");
