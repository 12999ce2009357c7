//! How a typed request is declared: a table of fields, named as on the wire.

use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use csi_proto::internal::ClearSecrets;
use csi_proto::{Rpc, RpcRequest};

use crate::error::Result;

/// A typed request that can be read from its wire form.
pub(crate) trait Request: Sized {
    type Wire: RpcRequest + ClearSecrets + fmt::Debug;
    const RPC: Rpc = Self::Wire::RPC;

    fn read(wire: &Arc<Received<Self::Wire>>) -> Result<Self>;

    /// The id, name or path that the call is about, for the log.
    fn subject(&self) -> &str {
        ""
    }
}

/// What all requests have that a driver receives. Only requests of this crate implement it.
pub trait TypedRequest: Sized + sealed::Sealed {
    /// The request's message, as the wire has it.
    type Message;

    /// Returns the request as it came over the wire.
    fn raw(&self) -> &Self::Message;

    /// Returns the host that the plugin's calls work on: the kernel, or what
    /// [`Plugin::host`](crate::Plugin::host) says. A request that is made with `try_from` has the kernel.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    fn host(&self) -> &csi_mount::Host;

    /// Sets the host. For a request that a driver makes of another one: it gets that one's host.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    #[must_use]
    fn with_host(self, host: &csi_mount::Host) -> Self;
}

/// Nobody else implements [`TypedRequest`].
pub(crate) mod sealed {
    pub trait Sealed {}
}

/// A request as it came over the wire, and the plugin that received it. Its secrets are cleared from memory
/// when it is dropped.
pub(crate) struct Received<W: ClearSecrets> {
    wire: W,
    /// `None` if a driver made the request itself.
    pub(crate) plugin: Option<Arc<PluginContext>>,
}

impl<W: ClearSecrets> Received<W> {
    pub(crate) fn new(wire: W, plugin: Option<Arc<PluginContext>>) -> Self {
        Self { wire, plugin }
    }
}

/// What a request's own methods know about the plugin that received it.
#[derive(Debug)]
#[cfg_attr(not(all(feature = "mount", target_os = "linux")), expect(dead_code, reason = "for who mounts"))]
pub(crate) struct PluginContext {
    /// The plugin's name.
    pub(crate) driver: String,
    /// The directories in which the orchestrator keeps targets and staging directories.
    pub(crate) volume_roots: Vec<PathBuf>,
    /// The host that the plugin's calls work on.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    pub(crate) host: csi_mount::Host,
}

impl<W: ClearSecrets> Deref for Received<W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.wire
    }
}

impl<W: ClearSecrets> Drop for Received<W> {
    fn drop(&mut self) {
        self.wire.clear_secrets();
    }
}

/// Declares a typed request, and the field with its subject. Each field's type states what the spec requires, and
/// parses the field; a function after `=` parses it instead.
macro_rules! request {
    ($(#[$doc:meta])* $name:ident $(about $subject:ident)? { $($(#[$field_doc:meta])* $field:ident: $type:ty $(= $reader:path)?),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            #[cfg(all(feature = "mount", target_os = "linux"))]
            host: csi_mount::Host,
            raw: std::sync::Arc<$crate::call::request::Received<csi_proto::v1::$name>>,
        }

        impl $name {
            /// Reads a request that this plugin makes of another one.
            pub(crate) fn of_plugin(
                wire: csi_proto::v1::$name,
                plugin: Option<std::sync::Arc<$crate::call::request::PluginContext>>,
            ) -> $crate::Result<Self> {
                $crate::call::request::Request::read(&std::sync::Arc::new($crate::call::request::Received::new(wire, plugin)))
            }

            #[allow(dead_code, reason = "for the requests that name a place on the node")]
            pub(crate) fn plugin(&self) -> Option<&std::sync::Arc<$crate::call::request::PluginContext>> {
                self.raw.plugin.as_ref()
            }
        }

        impl $crate::call::request::sealed::Sealed for $name {}

        impl $crate::call::request::TypedRequest for $name {
            type Message = csi_proto::v1::$name;

            fn raw(&self) -> &csi_proto::v1::$name {
                &self.raw
            }

            #[cfg(all(feature = "mount", target_os = "linux"))]
            fn host(&self) -> &csi_mount::Host {
                &self.host
            }

            #[cfg(all(feature = "mount", target_os = "linux"))]
            fn with_host(mut self, host: &csi_mount::Host) -> Self {
                self.host = host.clone();
                self
            }
        }

        impl $crate::call::request::Request for $name {
            type Wire = csi_proto::v1::$name;

            fn read(wire: &std::sync::Arc<$crate::call::request::Received<Self::Wire>>) -> $crate::Result<Self> {
                Ok(Self {
                    $($field: $crate::call::request::read_field!($($reader)?; stringify!($field), &wire.$field)?,)*
                    #[cfg(all(feature = "mount", target_os = "linux"))]
                    host: wire.plugin.as_ref().map_or(csi_mount::Host::kernel(), |plugin| plugin.host.clone()),
                    raw: std::sync::Arc::clone(wire),
                })
            }

            $(fn subject(&self) -> &str {
                self.$subject.as_str()
            })?
        }

        /// Applies the same checks as to a caller's request; for a driver's own tests.
        impl TryFrom<csi_proto::v1::$name> for $name {
            type Error = $crate::Error;

            fn try_from(wire: csi_proto::v1::$name) -> $crate::Result<Self> {
                Self::of_plugin(wire, None)
            }
        }

        /// Prints the wire's form, with secrets hidden.
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                csi_proto::v1::$name::fmt(&self.raw, f)
            }
        }
    };
}

macro_rules! read_field {
    (; $field:expr, $wire:expr) => {
        $crate::types::wire::Field::read($field, $wire)
    };
    ($reader:path; $field:expr, $wire:expr) => {
        $reader($field, $wire)
    };
}

/// Declares a request without fields: a query.
macro_rules! question {
    ($($name:ident),+ $(,)?) => { $(
        pub(crate) struct $name;

        impl $crate::call::request::Request for $name {
            type Wire = csi_proto::v1::$name;

            fn read(_: &std::sync::Arc<$crate::call::request::Received<Self::Wire>>) -> $crate::Result<Self> {
                Ok(Self)
            }
        }
    )+ };
}

pub(crate) use {question, read_field, request};

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;
    use std::path::Path;
    use std::sync::Arc;

    use csi_proto::v1;

    use super::{PluginContext, TypedRequest as _};
    use crate::controller::DeleteVolumeRequest;

    const LENGTH: usize = 64;

    /// The address of the secret's second half, because freeing memory can overwrite its start.
    fn place(secret: &str) -> u64 {
        assert_eq!(secret.len(), LENGTH);
        secret.as_ptr().addr() as u64 + LENGTH as u64 / 2
    }

    /// The bytes at this address, if it still belongs to the process.
    fn at(place: u64) -> Option<[u8; LENGTH / 2]> {
        let mut bytes = [0; LENGTH / 2];
        File::open("/proc/self/mem").and_then(|memory| memory.read_exact_at(&mut bytes, place)).ok()?;
        Some(bytes)
    }

    // spec: secrets.not-leaked
    #[test]
    fn secrets_go_from_memory_with_their_request() {
        let wire = v1::DeleteVolumeRequest {
            volume_id: "v".into(),
            secrets: [("key".into(), "s".repeat(LENGTH))].into(),
        };
        let request = DeleteVolumeRequest::try_from(wire).expect("a request");
        let other = request.clone();
        let raw = place(&request.raw().secrets["key"]);
        let own = [&request, &other].map(|request| place(request.secrets.get("key").expect("a secret")));
        let full = Some([b's'; LENGTH / 2]);
        drop(request);
        assert_ne!(at(own[0]), full);
        assert_eq!([at(own[1]), at(raw)], [full; 2], "they are a clone's still");
        drop(other);
        assert!(at(own[1]) != full && at(raw) != full);
    }

    #[test]
    fn a_request_has_its_plugins_host_and_one_of_the_driver_the_kernel() {
        let node = csi_mount::testing::SimulatedNode::new();
        let directory = Path::new("/only/on/the/simulated/node");
        node.create_dir(directory);
        let is_simulated = |request: &DeleteVolumeRequest| {
            request.host().directories().is_directory(directory).unwrap_or(false)
        };
        let wire = v1::DeleteVolumeRequest { volume_id: "v".into(), ..Default::default() };
        let plugin = PluginContext { driver: "d".into(), volume_roots: Vec::new(), host: node.host() };
        let received =
            DeleteVolumeRequest::of_plugin(wire.clone(), Some(Arc::new(plugin))).expect("a request");
        let made = DeleteVolumeRequest::try_from(wire).expect("a request");
        assert!(is_simulated(&received) && !is_simulated(&made));
        assert!(is_simulated(&made.with_host(received.host())));
    }
}
