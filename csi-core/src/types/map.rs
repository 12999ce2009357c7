//! The string maps of the spec: parameters, contexts and secrets.

use std::fmt;
use std::ops::Deref;

use csi_proto::internal::{ContextMap, SecretMap};
use serde::de::DeserializeOwned;
use zeroize::Zeroize;

use super::values::{self, UnknownKeys};
use super::wire::{Field, KUBERNETES, Map, PROVISIONER};
use crate::error::{Error, Result};

/// The keys and values of one field of a request: what [`Parameters`], [`VolumeContext`], [`PublishContext`] and
/// [`Secrets`] have in common.
///
/// `Debug` shows the keys only, and the memory of the values is set to zero when the map is dropped, because a map
/// does not know whether its values are secrets.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct StringMap {
    field: String,
    values: Map,
    unknown: UnknownKeys,
    /// The keys that were taken from the map.
    taken: Vec<&'static str>,
}

impl StringMap {
    fn new(field: &str, values: Map) -> Self {
        Self { field: field.to_owned(), values, unknown: UnknownKeys::Refused, taken: Vec::new() }
    }

    /// Returns the value of a key, if it exists.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// The key that is a misspelling of this one, which is missing.
    pub(crate) fn misspelling_of(&self, key: &str) -> Option<&str> {
        values::nearest(key, self.values.keys().map(String::as_str))
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
            let reason = match self.misspelling_of(key) {
                Some(near) => format!("is required and missing; {near} is a misspelling of it"),
                None => "is required and missing".to_owned(),
            };
            Error::invalid(format!("{}[{key}]", self.field), reason)
        })
    }

    /// Refuses keys other than these, for a map whose values are read one by one.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the unknown key, the known ones, and the one that it is a
    /// misspelling of.
    pub fn check_keys(&self, known: &[&str]) -> Result<()> {
        values::check_keys(&self.field, &self.values, known)
    }

    /// Parses the map into the driver's own struct, each value into its field's type.
    ///
    /// Supported are numbers, booleans, strings, enums of unit variants, types that are read from a string, such as
    /// [`Quantity`](crate::kubernetes::Quantity), and `Option`s of them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the key: missing, of the wrong type, or, for a struct,
    /// unknown.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        values::from_rest(&self.field, &self.values, &self.taken, self.unknown)
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

impl Drop for StringMap {
    fn drop(&mut self) {
        self.values.values_mut().for_each(Zeroize::zeroize);
    }
}

// spec: secrets.not-leaked
impl fmt::Debug for StringMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SecretMap(&self.values).fmt(f)
    }
}

/// A driver's parameters, for example from a StorageClass, without the orchestrator's own keys.
///
/// [`parse`](StringMap::parse) refuses an unknown key, except in the parameters of a VolumeSnapshotClass or
/// VolumeGroupSnapshotClass, where it logs one warning for the key if it is no misspelling of a known one.
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
    map: StringMap,
    kubernetes: Map,
}

impl Parameters {
    pub(crate) fn read(field: &str, wire: &Map) -> Result<Self> {
        let (kubernetes, values) = split(wire);
        Ok(Self { map: StringMap::new(field, values), kubernetes })
    }

    /// Reads the parameters of a VolumeSnapshotClass or VolumeGroupSnapshotClass. Sidecars leave keys of
    /// their own in them (`deletionPolicy`), so unknown keys are not an error.
    pub(crate) fn read_of_snapshots(field: &str, wire: &Map) -> Result<Self> {
        let mut parameters = <Self as Field<Map>>::read(field, wire)?;
        parameters.map.unknown = UnknownKeys::Warned;
        Ok(parameters)
    }

    /// Parses the keys of this struct, and takes them out of the parameters: for keys that belong to another part of
    /// the driver, such as [`FilesystemOptions`]. The driver's own struct is parsed afterwards, and still refuses
    /// what neither of them knows.
    ///
    /// [`FilesystemOptions`]: crate::node_plugins::FilesystemOptions
    ///
    /// # Errors
    /// Those of [`parse_known`](StringMap::parse_known).
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<T> {
        let taken = self.map.parse_known()?;
        let keys = values::keys_of::<T>();
        self.map.values.retain(|key, _| !keys.contains(&key.as_str()));
        self.map.taken.extend(keys);
        Ok(taken)
    }

    /// Returns what the orchestrator says about the claim, by key without its prefix: `pvc/name`,
    /// `pvc/namespace`, `pv/name`, if the orchestrator is configured to send it.
    pub(crate) fn kubernetes(&self, key: &str) -> Option<&str> {
        self.kubernetes.get(&format!("{KUBERNETES}{key}")).map(String::as_str)
    }
}

/// The context that the driver's CreateVolume returned for a volume, sent with every call about it, and the
/// orchestrator's additions: see [`pod`](Self::pod) and [`is_ephemeral`](Self::is_ephemeral).
#[derive(Clone, PartialEq, Eq, Default)]
pub struct VolumeContext {
    map: StringMap,
    kubernetes: Map,
}

impl VolumeContext {
    pub(crate) fn read(field: &str, wire: &Map) -> Result<Self> {
        let (kubernetes, mut values) = split(wire);
        values.remove(PROVISIONER);
        Ok(Self { map: StringMap::new(field, values), kubernetes })
    }

    /// Whether both contexts contain the same entries from CreateVolume. The orchestrator's additions do
    /// not count: the pod, its tokens, and the provisioner's identity differ from publish to publish.
    #[cfg(all(feature = "mount", target_os = "linux"))]
    pub(crate) fn is_of_same_volume(&self, other: &Self) -> bool {
        self.map.values == other.map.values
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
    map: StringMap,
}

impl PublishContext {
    pub(crate) fn read(field: &str, wire: &Map) -> Result<Self> {
        Ok(Self { map: StringMap::new(field, wire.clone()) })
    }
}

/// Credentials for one call. Never printed: `Debug` shows the keys only. When this value is dropped, the
/// memory of its values is set to zero. The memory of [`raw`](crate::TypedRequest::raw) is set to
/// zero with the last clone of the request. Copies that the driver makes are not cleared, and neither are
/// the buffers in which the call arrived.
///
/// - spec: `secrets.keys`, `secrets.documented`, `secrets.unique-keys`
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secrets {
    map: StringMap,
}

impl Secrets {
    pub(crate) fn read(field: &str, wire: &Map) -> Result<Self> {
        Ok(Self { map: StringMap::new(field, wire.clone()) })
    }
}

macro_rules! deref {
    ($($type:ident),+) => { $(
        impl Deref for $type {
            type Target = StringMap;

            fn deref(&self) -> &StringMap {
                &self.map
            }
        }
    )+ };
}

deref!(Parameters, VolumeContext, PublishContext, Secrets);

// spec: secrets.not-leaked
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.map.fmt(f)
    }
}

macro_rules! context_debug {
    ($($type:ident),+) => { $(
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                ContextMap(&self.map.values).fmt(f)
            }
        }
    )+ };
}

context_debug!(Parameters, VolumeContext, PublishContext);

/// Separates the orchestrator's keys from the driver's.
fn split(wire: &Map) -> (Map, Map) {
    wire.iter()
        .map(|(key, value)| (key.clone(), value.clone()))
        .partition(|(key, _)| key.starts_with(KUBERNETES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_another_struct_are_taken_and_a_misspelt_one_is_still_refused() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Layout {
            block_size: Option<u32>,
        }
        #[derive(Debug, serde::Deserialize)]
        struct Own {
            pool: String,
        }
        let read = |pairs: &[(&str, &str)]| {
            let wire = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            Parameters::read("parameters", &wire).expect("parameters")
        };
        let mut parameters = read(&[("pool", "a"), ("blockSize", "1024")]);
        assert_eq!(parameters.take::<Layout>().unwrap().block_size, Some(1024));
        assert_eq!(parameters.parse::<Own>().unwrap().pool, "a");

        let mut misspelt = read(&[("pool", "a"), ("blocksize", "1024")]);
        assert_eq!(misspelt.take::<Layout>().unwrap().block_size, None);
        let error = misspelt.parse::<Own>().unwrap_err().to_string();
        assert!(error.ends_with("it knows: pool, blockSize; did you mean blockSize?"), "{error}");
        let wrong = read(&[("blockSize", "canary")]).take::<Layout>().unwrap_err().to_string();
        assert_eq!(wrong, "parameters[blockSize]: must be a whole number, not negative");
    }

    // spec: secrets.not-leaked
    #[test]
    fn the_map_below_the_secrets_prints_no_value() {
        let wire = Map::from([("password".to_owned(), "canary".to_owned())]);
        let secrets = Secrets::read("secrets", &wire).expect("secrets");
        let copy: StringMap = (*secrets).clone();
        for text in [format!("{secrets:?}"), format!("{:?}", *secrets), format!("{copy:?}")] {
            assert!(text.contains("password") && !text.contains("canary"), "{text}");
        }
    }
}
