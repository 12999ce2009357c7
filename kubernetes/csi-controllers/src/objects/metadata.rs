use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Kind;

/// A text that other objects can have too. A cache keeps it once.
pub(crate) type Text = Arc<str>;

/// What is kept of an object's metadata. Kube's form of it takes 360 bytes, and 544 more for each map.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata {
    /// Empty for a kind without namespaces.
    pub(crate) namespace: Text,
    pub(crate) name: Text,
    pub(crate) uid: Box<str>,
    pub(crate) resource_version: Box<str>,
    pub(crate) finalizers: Arc<[Text]>,
    pub(crate) annotations: Pairs,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) deletion_timestamp: Option<IgnoredAny>,
}

impl Metadata {
    /// Drops labels, and the annotations that are not to be kept.
    pub(super) fn keep_annotations(&mut self, is_kept: impl Fn(&str, &str) -> bool) {
        self.labels = BTreeMap::new();
        self.annotations.retain(is_kept);
    }

    pub(super) fn compact(&mut self, pool: &mut Pool) {
        self.annotations.retain(|key, _| key != "kubectl.kubernetes.io/last-applied-configuration");
        self.annotations.share(pool);
        pool.share(&mut self.namespace);
        pool.share_list(&mut self.finalizers);
    }
}

/// Namespace and name of an object; no namespace for a kind without.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub(crate) struct Key {
    pub(crate) namespace: Text,
    pub(crate) name: Text,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    pub(crate) fn of(object: &impl Kind) -> Self {
        let metadata = object.metadata();
        Self { namespace: Arc::clone(&metadata.namespace), name: Arc::clone(&metadata.name) }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An object that another one names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Reference {
    pub(crate) namespace: Text,
    pub(crate) name: Text,
    pub(crate) uid: Box<str>,
}

impl Reference {
    pub(crate) fn key(&self) -> Key {
        Key { namespace: Arc::clone(&self.namespace), name: Arc::clone(&self.name) }
    }

    /// Whether it names this object, and no other one with its name.
    pub(crate) fn is_to(&self, object: &impl Kind) -> bool {
        *self.uid == *object.uid() && self.key() == Key::of(object)
    }
}

/// The time as objects have it.
pub(crate) fn now() -> Value {
    json!(Time(Timestamp::now()))
}

/// A map of few entries, in the order of their keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "BTreeMap<Text, Text>")]
pub(crate) struct Pairs(Box<[(Text, Text)]>);

impl From<BTreeMap<Text, Text>> for Pairs {
    fn from(map: BTreeMap<Text, Text>) -> Self {
        Self(map.into_iter().collect())
    }
}

impl Pairs {
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(one, _)| *one == key).map(|(_, value)| value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// The same as the calls of the driver have it.
    pub(crate) fn to_map(&self) -> BTreeMap<String, String> {
        self.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn retain(&mut self, is_kept: impl Fn(&str, &str) -> bool) {
        let pairs = std::mem::take(&mut self.0);
        self.0 = pairs.into_iter().filter(|(key, value)| is_kept(key, value)).collect();
    }

    pub(super) fn share(&mut self, pool: &mut Pool) {
        for (key, value) in &mut self.0 {
            pool.share(key);
            pool.share(value);
        }
    }
}

/// What objects of a kind have in common, each value once.
#[derive(Default)]
pub(crate) struct Pool {
    texts: HashSet<Text>,
    lists: HashSet<Arc<[Text]>>,
}

impl Pool {
    pub(super) fn share(&mut self, text: &mut Text) {
        share(&mut self.texts, text);
    }

    pub(super) fn share_some(&mut self, text: &mut Option<Text>) {
        text.iter_mut().for_each(|text| self.share(text));
    }

    pub(super) fn share_list(&mut self, list: &mut Arc<[Text]>) {
        share(&mut self.lists, list);
    }
}

/// Replaces a value by the equal one of the pool. What no object has any more leaves the pool before it grows.
fn share<T: ?Sized + Eq + Hash>(pool: &mut HashSet<Arc<T>>, value: &mut Arc<T>) {
    if let Some(shared) = pool.get(value) {
        *value = Arc::clone(shared);
        return;
    }
    if pool.len() == pool.capacity() {
        pool.retain(|shared| Arc::strong_count(shared) > 1);
    }
    pool.insert(Arc::clone(value));
}
