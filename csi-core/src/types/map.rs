//! The string maps of the spec: parameters, contexts and secrets.

use std::fmt;

use csi_proto::redact;
use serde::de::DeserializeOwned;
use zeroize::Zeroize;

use super::values::{self, UnknownKeys};
use super::wire::Map;
use crate::{Error, Result};

/// Keys with this prefix are the orchestrator's, not the driver's.
const KUBERNETES: &str = "csi.storage.k8s.io/";

macro_rules! lookups {
    ($type:ident) => {
        impl $type {
            /// The value of a key, if it is there.
            pub fn get(&self, key: &str) -> Option<&str> {
                self.values.get(key).map(String::as_str)
            }

            /// The keys and values, in the order of the keys.
            pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
                self.values.iter().map(|(key, value)| (key.as_str(), value.as_str()))
            }

            /// The value of a key that must be there.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] naming the map and the key.
            pub fn require(&self, key: &str) -> Result<&str> {
                self.get(key).ok_or_else(|| {
                    Error::invalid(format!("{}[{key}]", self.field), "is required and missing")
                })
            }

            /// The map as the driver's own struct, values parsed to its fields' types.
            ///
            /// Numbers, booleans, strings, enums of unit variants and `Option`s of them are understood.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] naming the key: missing, of the wrong kind, or, for a struct, unknown.
            pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
                values::from_map(&self.field, &self.values, UnknownKeys::Refused)
            }

            /// As [`parse`](Self::parse), with keys that the struct does not have passed over: for maps that are not
            /// the driver's alone, such as those of GetCapacity.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] naming the key: missing, or of the wrong kind.
            pub fn parse_known<T: DeserializeOwned>(&self) -> Result<T> {
                values::from_map(&self.field, &self.values, UnknownKeys::Ignored)
            }
        }
    };
}

/// A driver's parameters, from a StorageClass say, without the orchestrator's own keys.
///
/// ```
/// # fn create(request: &csi_core::CreateVolumeRequest) -> csi_core::Result<()> {
/// #[derive(serde::Deserialize)]
/// #[serde(rename_all = "camelCase")]
/// struct Params {
///     pool: String,
///     #[serde(default)]
///     replicas: Option<u8>,
/// }
/// let params: Params = request.parameters.parse()?; // a misspelt key is an INVALID_ARGUMENT that names it
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Parameters {
    field: String,
    values: Map,
    kubernetes: Map,
}

lookups!(Parameters);

impl Parameters {
    pub(crate) fn read(field: &str, wire: &Map) -> Result<Self> {
        let (kubernetes, values) = split(wire);
        Ok(Self { field: field.to_owned(), values, kubernetes })
    }

    /// What the orchestrator says of the claim, by key without its prefix: `pvc/name`, `pvc/namespace`,
    /// `pv/name`, where it was told to.
    pub fn kubernetes(&self, key: &str) -> Option<&str> {
        self.kubernetes.get(&format!("{KUBERNETES}{key}")).map(String::as_str)
    }
}

/// Parameters to change on a volume that exists; at least one.
#[derive(Clone, PartialEq, Eq)]
pub struct MutableParameters {
    field: String,
    values: Map,
}

lookups!(MutableParameters);

impl MutableParameters {
    pub(crate) fn read(field: &str, wire: &Map) -> Result<Self> {
        if wire.is_empty() {
            return Err(Error::invalid(field, "is required and must not be empty"));
        }
        Ok(Self { field: field.to_owned(), values: split(wire).1 })
    }
}

/// What the driver's CreateVolume said of a volume, brought back with every call about it; and what the
/// orchestrator added: see [`pod`](Self::pod) and [`is_ephemeral`](Self::is_ephemeral).
#[derive(Clone, PartialEq, Eq, Default)]
pub struct VolumeContext {
    field: String,
    values: Map,
    kubernetes: Map,
}

lookups!(VolumeContext);

impl VolumeContext {
    pub(crate) fn read(field: &str, wire: &Map) -> Result<Self> {
        let (kubernetes, mut values) = split(wire);
        values.remove("storage.kubernetes.io/csiProvisionerIdentity");
        Ok(Self { field: field.to_owned(), values, kubernetes })
    }

    /// Whether both are what CreateVolume said of one volume. What the orchestrator added does not count: the pod, its
    /// tokens, and who provisioned the volume differ from publish to publish.
    pub fn is_of_same_volume(&self, other: &Self) -> bool {
        self.values == other.values
    }

    /// What the orchestrator says of the pod, by key without its prefix: `pod.name`, `pod.namespace`, `pod.uid`,
    /// `serviceAccount.name`, `serviceAccount.tokens`. There when the CSIDriver object asks for it.
    pub fn pod(&self, key: &str) -> Option<&str> {
        self.kubernetes.get(&format!("{KUBERNETES}{key}")).map(String::as_str)
    }

    /// Whether this is an inline volume, made by its publish and gone with its unpublish.
    pub fn is_ephemeral(&self) -> bool {
        self.pod("ephemeral") == Some("true")
    }
}

/// What the driver's ControllerPublishVolume said of a volume on this node: where to find its device, say.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PublishContext {
    field: String,
    values: Map,
}

lookups!(PublishContext);

impl PublishContext {
    pub(crate) fn read(field: &str, wire: &Map) -> Result<Self> {
        Ok(Self { field: field.to_owned(), values: wire.clone() })
    }
}

/// Credentials for one call. Never printed: `Debug` shows the keys only. The memory of the values is set to zero when this is
/// dropped, and so is the one of [`raw`](crate::NodeStageVolumeRequest::raw) with the last clone of the request; not what the
/// driver copies out of them, and not what the call came in.
///
/// - spec: `secrets.keys`, `secrets.documented`, `secrets.unique-keys`
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secrets {
    field: String,
    values: Map,
}

lookups!(Secrets);

impl Secrets {
    pub(crate) fn read(field: &str, wire: &Map) -> Result<Self> {
        Ok(Self { field: field.to_owned(), values: wire.clone() })
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        self.values.values_mut().for_each(Zeroize::zeroize);
    }
}

// spec: secrets.not-leaked
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        redact::SecretMap(&self.values).fmt(f)
    }
}

macro_rules! context_debug {
    ($($type:ident),+) => { $(
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                redact::ContextMap(&self.values).fmt(f)
            }
        }
    )+ };
}

context_debug!(Parameters, MutableParameters, VolumeContext, PublishContext);

/// The orchestrator's keys and the driver's.
fn split(wire: &Map) -> (Map, Map) {
    wire.iter()
        .map(|(key, value)| (key.clone(), value.clone()))
        .partition(|(key, _)| key.starts_with(KUBERNETES))
}
