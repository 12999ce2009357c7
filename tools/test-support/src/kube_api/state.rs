//! The objects, their versions, and the changes that watches read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::kinds;
use super::request::{Failure, Target};

/// Changes that are kept. A watch that begins before them gets 410.
const KEPT_CHANGES: usize = 10_000;

#[derive(Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) at: Instant,
    pub(super) path: String,
    pub(super) old: Option<Arc<Value>>,
    /// The object now, or its last state.
    pub(super) object: Arc<Value>,
    pub(super) is_deletion: bool,
}

#[derive(Debug)]
pub(super) struct Objects {
    started: Instant,
    /// The version of the last change.
    pub(super) version: u64,
    all: BTreeMap<String, Arc<Value>>,
    changes: VecDeque<Change>,
    /// Watches before this version get 410.
    pub(super) oldest_watch: u64,
    created: u64,
    /// By resource: how long watches stay behind; without a time until they are released.
    pub(super) watch_delays: BTreeMap<String, Option<Duration>>,
    /// Whether claims and volumes get the finalizers of the admission plugin.
    pub(super) protects_storage: bool,
}

impl Objects {
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
            version: 0,
            all: BTreeMap::new(),
            changes: VecDeque::new(),
            oldest_watch: 0,
            created: 0,
            watch_delays: BTreeMap::new(),
            protects_storage: false,
        }
    }

    pub(super) fn get(&self, path: &str) -> Option<&Arc<Value>> {
        self.all.get(path)
    }

    /// The objects whose paths begin like this, after this path.
    pub(super) fn below(&self, prefix: &str, after: &str) -> impl Iterator<Item = (&String, &Arc<Value>)> {
        let start = Bound::Excluded(after.max(prefix));
        let range = self.all.range::<str, _>((start, Bound::Unbounded));
        range.take_while(move |(path, _)| path.starts_with(prefix))
    }

    pub(super) fn changes_after(&self, version: u64) -> impl Iterator<Item = &Change> {
        self.changes.range(self.changes.partition_point(|change| change.version <= version)..)
    }

    pub(super) fn expire_watches(&mut self) {
        self.version += 1;
        self.oldest_watch = self.version;
    }

    fn now(&self) -> Value {
        // 2026-01-01, and the time of tokio since the start.
        let now = UNIX_EPOCH + Duration::from_secs(1_767_225_600) + self.started.elapsed();
        json!(humantime::format_rfc3339_seconds(now).to_string())
    }

    /// Writes without any rule.
    pub(super) fn write(&mut self, path: &str, object: Value) -> Arc<Value> {
        let (object, old) = self.versioned(path, object);
        self.all.insert(path.to_owned(), object.clone());
        self.record(path, old, object.clone(), false);
        object
    }

    /// Removes without any rule. This is the last state of the object.
    pub(super) fn remove(&mut self, path: &str, last: Value) -> Arc<Value> {
        let (object, old) = self.versioned(path, last);
        self.all.remove(path);
        self.record(path, old, object.clone(), true);
        object
    }

    /// The object with the next version, and the object before it.
    fn versioned(&mut self, path: &str, mut object: Value) -> (Arc<Value>, Option<Arc<Value>>) {
        self.version += 1;
        if !object["metadata"]["uid"].is_string() {
            self.created += 1;
            object["metadata"]["uid"] = json!(format!("00000000-0000-4000-8000-{:012x}", self.created));
        }
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        (Arc::new(object), self.all.get(path).cloned())
    }

    fn record(&mut self, path: &str, old: Option<Arc<Value>>, object: Arc<Value>, is_deletion: bool) {
        let path = path.to_owned();
        let at = Instant::now();
        self.changes.push_back(Change { version: self.version, at, path, old, object, is_deletion });
        if self.changes.len() > KEPT_CHANGES {
            let dropped = self.changes.pop_front().map_or(0, |change| change.version);
            self.oldest_watch = self.oldest_watch.max(dropped);
        }
    }

    pub(super) fn create(&mut self, collection: &str, mut object: Value) -> Result<Arc<Value>, Failure> {
        let resource = resource(collection).to_owned();
        let number = self.created + 1;
        let metadata = object["metadata"].as_object_mut().expect("metadata");
        if metadata.get("resourceVersion").is_some_and(|version| version != "") {
            return Err(Failure::new(500, "", "resourceVersion should not be set on objects to be created"));
        }
        if !metadata.get("name").is_some_and(|name| name != "") {
            let prefix = metadata.get("generateName").and_then(Value::as_str).unwrap_or_default();
            if prefix.is_empty() {
                return Err(Failure::invalid(
                    "metadata.name",
                    "Required value: name or generateName is required",
                ));
            }
            let name = format!("{prefix}{number:05x}");
            metadata.insert("name".to_owned(), json!(name));
        }
        let name = metadata["name"].as_str().expect("a name").to_owned();
        kinds::check_name(&name)?;
        let path = format!("{collection}/{name}");
        if self.all.contains_key(&path) {
            return Err(Failure::new(409, "AlreadyExists", format!("{resource} \"{name}\" already exists")));
        }
        for key in ["uid", "deletionTimestamp"] {
            metadata.remove(key);
        }
        metadata.insert("creationTimestamp".to_owned(), self.now());
        if let Some((_, namespace)) = collection.split_once('/') {
            metadata.insert("namespace".to_owned(), json!(namespace));
        }
        if let Some(finalizer) = kinds::protection(&resource).filter(|_| self.protects_storage) {
            let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
            finalizers.as_array_mut().expect("finalizers").push(json!(finalizer));
        }
        if kinds::has_status(&resource) {
            let fields = object.as_object_mut().expect("an object");
            fields.remove("status");
            if kinds::protection(&resource).is_some() {
                fields.insert("status".to_owned(), json!({ "phase": "Pending" }));
            }
        }
        kinds::check(&resource, &object)?;
        omit_empty(&mut object);
        Ok(self.write(&path, object))
    }

    /// Writes the whole object, or with `is_status` its status only.
    pub(super) fn update(
        &mut self,
        path: &str,
        mut new: Value,
        is_status: bool,
    ) -> Result<Arc<Value>, Failure> {
        let old = self.existing(path)?;
        for key in ["resourceVersion", "uid"] {
            check_precondition(&new["metadata"], &old, key)?;
        }
        let resource = resource(path);
        if is_status && !kinds::has_status(resource) {
            return Err(Failure::new(404, "NotFound", "the server could not find the requested resource"));
        }
        if is_status {
            kinds::check_status(resource, &new)?;
            let written = std::mem::replace(&mut new, (*old).clone());
            copy(&mut new, &written, "status");
            if kinds::status_has_metadata(resource) {
                copy(&mut new["metadata"], &written["metadata"], "annotations");
            }
        } else {
            for key in
                ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "resourceVersion"]
            {
                copy(&mut new["metadata"], &old["metadata"], key);
            }
            if kinds::has_status(resource) {
                copy(&mut new, &old, "status");
            }
            let added: Vec<_> = finalizers(&new).difference(&finalizers(&old)).copied().collect();
            if old["metadata"]["deletionTimestamp"].is_string() && !added.is_empty() {
                let message = "Forbidden: no new finalizers can be added if the object is being deleted";
                return Err(Failure::invalid("metadata.finalizers", &format!("{message}, found {added:?}")));
            }
            kinds::check(resource, &new)?;
            kinds::check_change(resource, &old, &new)?;
        }
        omit_empty(&mut new);
        if new == *old {
            return Ok(old);
        }
        let is_released = !finalizers(&old).is_empty() && finalizers(&new).is_empty();
        if old["metadata"]["deletionTimestamp"].is_string() && is_released {
            return Ok(self.remove(path, new));
        }
        Ok(self.write(path, new))
    }

    /// Deletes an object, or marks it as deleting while it has finalizers or, for a pod, a grace period.
    pub(super) fn delete(&mut self, path: &str, options: &Value) -> Result<Arc<Value>, Failure> {
        let old = self.existing(path)?;
        for key in ["resourceVersion", "uid"] {
            check_precondition(&options["preconditions"], &old, key)?;
        }
        let has_grace = resource(path) == "pods" && options["gracePeriodSeconds"] != 0;
        if finalizers(&old).is_empty() && !has_grace {
            return Ok(self.remove(path, (*old).clone()));
        }
        if old["metadata"]["deletionTimestamp"].is_string() {
            return Ok(old);
        }
        let mut object = (*old).clone();
        object["metadata"]["deletionTimestamp"] = self.now();
        Ok(self.write(path, object))
    }

    pub(super) fn existing(&self, path: &str) -> Result<Arc<Value>, Failure> {
        self.all.get(path).cloned().ok_or_else(|| Failure::new(404, "NotFound", format!("{path} not found")))
    }

    /// One page of a list. The pages after the first have the objects of their own time.
    pub(super) fn list(&self, target: &Target) -> Result<Value, Failure> {
        let token = target.query.get("continue").and_then(|token| token.split_once(':'));
        let version = token.map_or(self.version, |(version, _)| version.parse().expect("a version"));
        if version < self.oldest_watch {
            return Err(Failure::new(410, "Expired", "the continue parameter is too old"));
        }
        let prefix = format!("{}/", target.call.path);
        let mut found = self
            .below(&prefix, token.map_or("", |(_, path)| path))
            .filter(|(_, object)| target.selects(object));
        let limit = target.number("limit").filter(|limit| *limit > 0).unwrap_or(u64::MAX);
        let page: Vec<_> = found.by_ref().take(usize::try_from(limit).unwrap_or(usize::MAX)).collect();
        let mut metadata = json!({ "resourceVersion": version.to_string() });
        if let (Some(_), Some((last, _))) = (found.next(), page.last()) {
            metadata["continue"] = json!(format!("{version}:{last}"));
        }
        let items: Vec<&Value> = page.iter().map(|(_, object)| &***object).collect();
        Ok(json!({ "metadata": metadata, "items": items }))
    }
}

/// The resource of a path.
pub(super) fn resource(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

pub(super) fn finalizers(object: &Value) -> BTreeSet<&str> {
    let all = object["metadata"]["finalizers"].as_array();
    all.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The real server keeps no empty list or map of metadata, so that removing the last entry twice is no change.
fn omit_empty(object: &mut Value) {
    let metadata = object["metadata"].as_object_mut().expect("metadata");
    metadata.retain(|_, value| !(value.is_null() || *value == json!([]) || *value == json!({})));
}

fn check_precondition(due: &Value, object: &Value, key: &str) -> Result<(), Failure> {
    let due = due[key].as_str().unwrap_or_default();
    if due.is_empty() || object["metadata"][key] == due {
        return Ok(());
    }
    let message =
        format!("the object has been modified; please apply your changes to the latest version ({key})");
    Err(Failure::new(409, "Conflict", message))
}

fn copy(to: &mut Value, from: &Value, key: &str) {
    let to = to.as_object_mut().expect("an object");
    match from.get(key) {
        Some(value) => drop(to.insert(key.to_owned(), value.clone())),
        None => drop(to.remove(key)),
    }
}
