//! The wire of the Container Storage Interface: generated types, clients and servers.
#![forbid(unsafe_code)]

#[macro_use]
pub mod redact;

#[rustfmt::skip]
#[allow(
    missing_docs, deprecated, unreachable_pub, clippy::all, clippy::allow_attributes_without_reason,
    reason = "generated; the comments come from the .proto files, which deprecated items are part of"
)]
mod generated {
    #[path = "csi.v1.rs"]
    pub mod v1;
    pub mod pluginregistration;
    pub(crate) mod messages;
    mod redaction;
}

pub use generated::{pluginregistration, v1};

/// The encoded `FileDescriptorSet` of `csi.proto` and `pluginregistration.proto` with all they import, for gRPC
/// reflection and for tools that walk the messages.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/csi.fds");
