//! Kubernetes objects with the fields that this crate reads, and no others: thousands of them stay in memory. Kinds that
//! are not kept are those of k8s-openapi.

mod claim;
mod metadata;
mod snapshot;
mod storage;
mod volume;

use std::borrow::Cow;
use std::fmt;

use csi_core::kubernetes::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::DynamicResourceScope;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(crate) use claim::{Claim, condition};
pub(crate) use metadata::{Key, Metadata, Pairs, Pool, Reference, Text, now};
pub(crate) use snapshot::{
    ContentSpec, GroupContent, GroupSnapshotClass, Snapshot, SnapshotClass, SnapshotContent,
};
pub(crate) use storage::{Attachment, AttributesClass, Capacity, Class, CsiNode, Node, ReferenceGrant, uses};
pub(crate) use volume::{SecretReference, Volume};

/// The names of a kind in requests.
pub(crate) trait Named: Clone + DeserializeOwned {
    const GROUP: &'static str;
    const VERSION: &'static str;
    const KIND: &'static str;
    /// The plural, as paths have it.
    const PLURAL: &'static str;

    /// The path of all objects, or of those in a namespace.
    fn path(namespace: &str) -> String {
        let group = if Self::GROUP.is_empty() { "api".to_owned() } else { format!("apis/{}", Self::GROUP) };
        let place = if namespace.is_empty() { String::new() } else { format!("namespaces/{namespace}/") };
        format!("/{group}/{}/{place}{}", Self::VERSION, Self::PLURAL)
    }
}

impl<K: k8s_openapi::Resource + Clone + DeserializeOwned> Named for K {
    const GROUP: &'static str = K::GROUP;
    const VERSION: &'static str = K::VERSION;
    const KIND: &'static str = K::KIND;
    const PLURAL: &'static str = K::URL_PATH_SEGMENT;
}

/// A kind of object of this crate.
pub(crate) trait Kind: Named + fmt::Debug + Send + Sync + 'static {
    fn metadata(&self) -> &Metadata;
    /// Drops what nobody reads, and shares what other objects have too.
    fn strip(&mut self, pool: &mut Pool);

    fn name(&self) -> &str {
        &self.metadata().name
    }

    fn namespace(&self) -> &str {
        &self.metadata().namespace
    }

    /// Empty if the object has none, which no stored object has.
    fn uid(&self) -> &str {
        &self.metadata().uid
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata().annotations.get(key)
    }

    fn has_finalizer(&self, name: &str) -> bool {
        self.metadata().finalizers.iter().any(|one| **one == *name)
    }

    fn is_deleting(&self) -> bool {
        self.metadata().deletion_timestamp.is_some()
    }

    /// A patch that adds this finalizer; `None` if the object has it. It replaces the whole list, so it is for this
    /// version only: another's finalizer must not be lost.
    fn adding_finalizer(&self, name: &str) -> Option<Value> {
        if self.has_finalizer(name) {
            return None;
        }
        let mut finalizers = self.metadata().finalizers.to_vec();
        finalizers.push(name.into());
        Some(json!({ "metadata": { "finalizers": finalizers } }))
    }

    /// A patch that removes this finalizer, for this version only; `None` if the object does not have it.
    fn removing_finalizer(&self, name: &str) -> Option<Value> {
        if !self.has_finalizer(name) {
            return None;
        }
        let rest: Vec<&Text> = self.metadata().finalizers.iter().filter(|one| ***one != *name).collect();
        let rest = if rest.is_empty() { Value::Null } else { json!(rest) };
        Some(json!({ "metadata": { "finalizers": rest } }))
    }
}

/// An object in the form that kube's watcher and csi-kube's events take.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "K", bound(deserialize = "K: Kind"))]
pub(crate) struct ForKube<K> {
    pub(crate) object: K,
    metadata: ObjectMeta,
}

impl<K: Kind> From<K> for ForKube<K> {
    fn from(object: K) -> Self {
        let own = object.metadata();
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let metadata = ObjectMeta {
            name: text(&own.name),
            namespace: text(&own.namespace),
            uid: text(&own.uid),
            resource_version: text(&own.resource_version),
            ..ObjectMeta::default()
        };
        Self { object, metadata }
    }
}

impl<K: Kind> Resource for ForKube<K> {
    type DynamicType = ();
    type Scope = DynamicResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        K::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        K::GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        K::VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// An object of a test.
#[cfg(test)]
pub(crate) fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub(crate) const STORAGE: &str = "storage";

/// What a map by resource has for `storage`; the others are of no interest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct OfStorage {
    pub(crate) storage: Option<Text>,
}

/// A quantity in bytes.
pub(crate) fn bytes(quantity: &str) -> Option<u64> {
    quantity.parse().ok().map(|quantity: Quantity| quantity.bytes())
}

impl OfStorage {
    pub(crate) fn bytes(&self) -> Option<u64> {
        bytes(self.storage.as_deref()?)
    }
}

/// Gives a type with the field `metadata` the names of its kind, and the method that compacts it.
macro_rules! kind {
    ($type:ident, $kind:literal, $group:expr, $plural:literal $(, $compact:ident)?) => {
        impl $crate::objects::Named for $type {
            const GROUP: &'static str = $group;
            const VERSION: &'static str = "v1";
            const KIND: &'static str = $kind;
            const PLURAL: &'static str = $plural;
        }

        impl $crate::objects::Kind for $type {
            fn metadata(&self) -> &$crate::objects::Metadata {
                &self.metadata
            }

            fn strip(&mut self, pool: &mut $crate::objects::Pool) {
                $(self.$compact(pool);)?
                self.metadata.compact(pool);
            }
        }
    };
}
pub(crate) use kind;
