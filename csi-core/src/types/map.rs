//! The string maps of the spec: parameters, contexts and secrets.

use std::fmt;

use csi_proto::redact;
use serde::de::DeserializeOwned;
use zeroize::Zeroize;

use super::values::{self, UnknownKeys};
use super::wire::{Field, Map};
use crate::{Error, Result};

/// Keys with this prefix belong to the orchestrator, not to the driver.
const KUBERNETES: &str = "csi.storage.k8s.io/";

macro_rules! lookups {
    ($type:ident, $unknown:expr) => {
        impl $type {
            /// Returns the value of a key, if it exists.
            pub fn get(&self, key: &str) -> Option<&str> {
                self.values.get(key).map(String::as_str)
            }

            /// Returns the keys and values, sorted by key.
            pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
                self.values.iter().map(|(key, value)| (key.as_str(), value.as_str()))
            }

            /// Returns the value of a required key.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] that names the map and the key, when the key is missing.
            pub fn require(&self, key: &str) -> Result<&str> {
                self.get(key).ok_or_else(|| {
                    Error::invalid(format!("{}[{key}]", self.field), "is required and missing")
                })
            }

            /// Parses the map into the driver's own struct, each value into its field's type.
            ///
            /// Supported are numbers, booleans, strings, enums of unit variants and `Option`s of them.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] that names the key: missing, of the wrong type, or, for a struct,
            /// unknown.
            pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
                let unknown: fn(&Self) -> UnknownKeys = $unknown;
                values::from_map(&self.field, &self.values, unknown(self))
            }

            /// Like [`parse`](Self::parse), but ignores keys that the struct does not have: for maps that
            /// contain keys for others, such as those of GetCapacity.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] that names the key: missing, or of the wrong type.
            pub fn parse_known<T: DeserializeOwned>(&self) -> Result<T> {
                values::from_map(&self.field, &self.values, UnknownKeys::Ignored)
            }
        }
    };
}

/// A driver's parameters, for example from a StorageClass, without the orchestrator's own keys.
///
/// [`parse`](Self::parse) refuses an unknown key, except in the parameters of a VolumeSnapshotClass or
/// VolumeGroupSnapshotClass, where it logs one warning for the key.
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
    unknown: UnknownKeys,
}

lookups!(Parameters, |map| map.unknown);

impl Parameters {
    pub(crate) fn read(field: &str, wire: &Map) -> Result<Self> {
        let (kubernetes, values) = split(wire);
        Ok(Self { field: field.to_owned(), values, kubernetes, unknown: UnknownKeys::Refused })
    }

    /// Reads the parameters of a VolumeSnapshotClass or VolumeGroupSnapshotClass. Sidecars leave keys of
    /// their own in them (`deletionPolicy`), so unknown keys are not an error.
    pub(crate) fn read_of_snapshots(field: &str, wire: &Map) -> Result<Self> {
        let parameters = <Self as Field<Map>>::read(field, wire)?;
        Ok(Self { unknown: UnknownKeys::Warned, ..parameters })
    }

    /// Returns what the orchestrator says about the claim, by key without its prefix: `pvc/name`,
    /// `pvc/namespace`, `pv/name`, if the orchestrator is configured to send it.
    pub fn kubernetes(&self, key: &str) -> Option<&str> {
        self.kubernetes.get(&format!("{KUBERNETES}{key}")).map(String::as_str)
    }
}

/// Parameters to change on an existing volume.
#[derive(Clone, PartialEq, Eq)]
pub struct MutableParameters {
    field: String,
    values: Map,
}

lookups!(MutableParameters, |_| UnknownKeys::Refused);

impl MutableParameters {
    pub(crate) fn read(field: &str, wire: &Map) -> Result<Self> {
        Ok(Self { field: field.to_owned(), values: split(wire).1 })
    }
}

/// The context that the driver's CreateVolume returned for a volume, sent with every call about it, and the
/// orchestrator's additions: see [`pod`](Self::pod) and [`is_ephemeral`](Self::is_ephemeral).
#[derive(Clone, PartialEq, Eq, Default)]
pub struct VolumeContext {
    field: String,
    values: Map,
    kubernetes: Map,
}

lookups!(VolumeContext, |_| UnknownKeys::Refused);

impl VolumeContext {
    pub(crate) fn read(field: &str, wire: &Map) -> Result<Self> {
        let (kubernetes, mut values) = split(wire);
        values.remove("storage.kubernetes.io/csiProvisionerIdentity");
        Ok(Self { field: field.to_owned(), values, kubernetes })
    }

    /// Whether both contexts contain the same entries from CreateVolume. The orchestrator's additions do
    /// not count: the pod, its tokens, and the provisioner's identity differ from publish to publish.
    pub fn is_of_same_volume(&self, other: &Self) -> bool {
        self.values == other.values
    }

    /// Returns what the orchestrator says about the pod, by key without its prefix: `pod.name`,
    /// `pod.namespace`, `pod.uid`, `serviceAccount.name`, `serviceAccount.tokens`. Present if the CSIDriver
    /// object requests it.
    pub fn pod(&self, key: &str) -> Option<&str> {
        self.kubernetes.get(&format!("{KUBERNETES}{key}")).map(String::as_str)
    }

    /// Whether this is an inline volume: its publish creates it and its unpublish deletes it.
    pub fn is_ephemeral(&self) -> bool {
        self.pod("ephemeral") == Some("true")
    }
}

/// The context that the driver's ControllerPublishVolume returned for a volume on this node, for example
/// where to find its device.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PublishContext {
    field: String,
    values: Map,
}

lookups!(PublishContext, |_| UnknownKeys::Refused);

impl PublishContext {
    pub(crate) fn read(field: &str, wire: &Map) -> Result<Self> {
        Ok(Self { field: field.to_owned(), values: wire.clone() })
    }
}

/// Credentials for one call. Never printed: `Debug` shows the keys only. When this value is dropped, the
/// memory of its values is set to zero. The memory of [`raw`](crate::NodeStageVolumeRequest::raw) is set to
/// zero with the last clone of the request. Copies that the driver makes are not cleared, and neither are
/// the buffers in which the call arrived.
///
/// - spec: `secrets.keys`, `secrets.documented`, `secrets.unique-keys`
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secrets {
    field: String,
    values: Map,
}

lookups!(Secrets, |_| UnknownKeys::Refused);

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

/// Separates the orchestrator's keys from the driver's.
fn split(wire: &Map) -> (Map, Map) {
    wire.iter()
        .map(|(key, value)| (key.clone(), value.clone()))
        .partition(|(key, _)| key.starts_with(KUBERNETES))
}
