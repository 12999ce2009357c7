//! The wire format of the Container Storage Interface: its messages, clients and servers as Rust types.
//!
//! The types are generated from `proto/csi.proto` and checked in, so building this crate needs neither
//! `protoc` nor a build script. They are the union of versions 1.13.0 and 1.12.0 of the interface, whose
//! field numbers do not conflict: one set of types serves callers of both. What exists only in 1.12.0 is
//! `#[deprecated]`.
//!
//! Secrets are never printed. `Debug` of every message shows a secret's key and hides its value.
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
//! | [`v1`] | the messages of the five services, and a client module and a server module for each service |
//! | [`pluginregistration`] | the same for the kubelet's plugin registration |
//! | `client` | [`Client`](client::Client): waits for a plugin and calls it with deadlines; [`VolumeUse`](client::VolumeUse): the requests of a volume's life, in order (feature `client`) |
//! | [`escape`] | makes text from outside safe to show: on a terminal, in JSON, in a command |
//!
//! [`Rpc`] and [`Service`] have the names of the spec's RPCs and services; [`RpcRequest`] connects each request
//! with its RPC and its answer; [`Endpoint`] is the address of a plugin's socket; [`Pairs`] are keys and values
//! for requests, as users write them in a file.
//!
//! A map is a `BTreeMap`, so equal messages encode to equal bytes.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `server` | yes | the traits of the services and tonic servers around them, such as `v1::node_server` |
//! | `client` | yes | tonic clients, such as `v1::node_client`, and the module `client`, which connects them to a plugin's socket |
//!
//! Without both features, the crate has only the messages and does not depend on tonic.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod capability;
#[cfg(feature = "client")]
pub mod client;
mod endpoint;
pub mod escape;
mod pairs;
#[cfg(any(feature = "client", feature = "server"))]
mod raw;
mod redactor;
#[macro_use]
mod redact;
mod request;
mod rpc;
mod undo;

#[rustfmt::skip]
#[allow(
    missing_docs, deprecated, unreachable_pub, clippy::all, clippy::allow_attributes_without_reason,
    reason = "generated: tonic documents none of its modules, and derived code touches deprecated fields"
)]
mod generated {
    /// The five services of the interface: identity, controller, group controller, snapshot metadata and
    /// node.
    ///
    /// A service has a module `<service>_client` (feature `client`) and a module `<service>_server` (feature
    /// `server`). The documentation of a field says its meaning, its unit, and when it is required.
    #[path = "csi.v1.rs"]
    pub mod v1;
    /// The kubelet's plugin registration: the kubelet discovers a driver, and reports the result to it.
    ///
    /// The driver serves `registration_server` on its own socket in the kubelet's plugin registry directory.
    pub mod pluginregistration;
    mod messages;
    mod redaction;
}

/// For the other crates of the toolkit. It is not part of the API, and changes without notice.
#[doc(hidden)]
pub mod internal {
    #[cfg(feature = "client")]
    pub use crate::client::calls::{MakeCalls, is_final};
    #[cfg(any(feature = "client", feature = "server"))]
    pub use crate::raw::RawCodec;
    pub use crate::redact::{ClearSecrets, ContextMap, HIDDEN, MountFlags, SecretMap, TOKENS_KEY};
    pub use crate::redactor::Redactor;
    pub use crate::request::RequestParts;
    pub use crate::undo::Undo;
}

pub use endpoint::{Endpoint, EndpointError};
pub use generated::{pluginregistration, v1};
pub use pairs::{Pairs, PairsError};
pub use request::RpcRequest;
pub use rpc::{Rpc, Service};
/// A capability of the Controller service, by its name and number in the spec.
pub use v1::controller_service_capability::rpc::Type as ControllerCapability;
/// A capability of the Node service, by its name and number in the spec.
pub use v1::node_service_capability::rpc::Type as NodeCapability;

/// The encoded `FileDescriptorSet` of `csi.proto` and `pluginregistration.proto`, with everything they
/// import.
///
/// gRPC reflection serves it, and tools that handle all messages generically walk it. It includes the spec's
/// options: `csi_secret` on fields, and the alpha marks.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/csi.fds");

/// The examples in README.md, compiled.
#[cfg(doctest)]
#[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"))]
struct Readme;
