//! Requests to the API server: each with a time limit, and all of a part at the rate of a sidecar.

use std::time::Duration;

use kube::Client;
use kube::api::{
    DeleteParams, GetParams, ListParams, ObjectList, Patch, PatchParams, PostParams, Preconditions,
};
use kube::core::Request;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::caches::{Cached, Caches};
use crate::error::{Error, Result, invalid};
use crate::objects::{Claim, Key, Kind, Named};

/// The number of objects in one answer.
const PAGE: u32 = 500;

/// How often a change is made again because somebody else changed the object meanwhile.
const EDITS: usize = 5;

/// The requests of one part.
pub(crate) struct Requests {
    client: Client,
    caches: Caches,
    rate: Rate,
}

impl Requests {
    /// At most `burst` requests at once, and `per_second` in the long run.
    pub(crate) fn new(client: Client, caches: Caches, per_second: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second;
        let rate = Rate { interval, room: interval * burst, full_at: Mutex::new(Instant::now()) };
        Self { client, caches, rate }
    }

    /// The object as the API server has it now.
    pub(crate) async fn read<K: Named>(&self, key: &Key) -> Result<Option<K>> {
        let request = resource::<K>(&key.namespace).get(&key.name, &GetParams::default());
        none_if(csi_kube::Error::is_missing, self.send::<K, K>("read", key, request).await)
    }

    /// Creates an object; `None` if its name is taken.
    pub(crate) async fn create<K: Named>(&self, object: &Value) -> Result<Option<K>> {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let key = Key::new(text("/metadata/namespace"), text("/metadata/name"));
        let body = object.to_string().into_bytes();
        let request = resource::<K>(&key.namespace).create(&PostParams::default(), body);
        none_if(csi_kube::Error::is_taken, self.send::<K, K>("create", &key, request).await)
    }

    /// Merges this into the object; only this object, and not a later one with its name. A patch with a `status` changes
    /// the status.
    pub(crate) async fn patch<K: Cached>(&self, object: &K, mut patch: Value) -> Result<K> {
        let key = Key::of(object);
        // The uid can't be changed, so a patch with another one is refused.
        patch["metadata"]["uid"] = object.uid().into();
        let is_of_status = patch.get("status").is_some();
        let patch = Patch::Merge(patch);
        let params = PatchParams::default();
        let resource = resource::<K>(&key.namespace);
        let (action, request) = if is_of_status {
            ("write the status of", resource.patch_subresource("status", &key.name, &params, &patch))
        } else {
            ("change", resource.patch(&key.name, &params, &patch))
        };
        let written: K = self.send::<K, K>(action, &key, request).await?;
        K::cache(&self.caches).wrote(object, Some(&written));
        Ok(written)
    }

    /// Merges this into the object of a kind that has no cache; `None` if it does not exist.
    pub(crate) async fn merge<K: Named>(&self, key: &Key, patch: &Value) -> Result<Option<K>> {
        let request =
            resource::<K>(&key.namespace).patch(&key.name, &PatchParams::default(), &Patch::Merge(patch));
        none_if(csi_kube::Error::is_missing, self.send::<K, K>("change", key, request).await)
    }

    /// As [`patch`](Self::patch), but refused if the object has changed.
    pub(crate) async fn patch_version<K: Cached>(&self, object: &K, mut patch: Value) -> Result<K> {
        patch["metadata"]["resourceVersion"] = json!(object.metadata().resource_version);
        self.patch(object, patch).await
    }

    /// Writes the patch that `change` makes of this version of the object. If another client has changed the object
    /// meanwhile, the patch is made again, of what the API server has. Without a patch nothing is written.
    ///
    /// Returns the newest object, or `None` if it does not exist any more.
    pub(crate) async fn edit<K: Cached>(
        &self,
        object: &K,
        change: impl Fn(&K) -> Result<Option<Value>>,
    ) -> Result<Option<K>> {
        let mut current = object.clone();
        for edit in 1.. {
            let Some(patch) = change(&current)? else { break };
            match self.patch_version(&current, patch).await {
                Ok(changed) => return Ok(Some(changed)),
                Err(Error::Api(error)) if error.is_missing() => return Ok(None),
                Err(Error::Api(error)) if error.is_conflict() && edit < EDITS => {}
                Err(error) => return Err(error),
            }
            let now: Option<K> = self.read(&Key::of(object)).await?;
            let Some(now) = now.filter(|now| now.uid() == object.uid()) else { return Ok(None) };
            current = now;
        }
        Ok(Some(current))
    }

    /// As [`edit`](Self::edit), for a claim that must exist.
    pub(crate) async fn write(&self, claim: &Claim, change: impl Fn(&Claim) -> Value) -> Result<Claim> {
        let written = self.edit(claim, |claim| Ok(Some(change(claim)))).await?;
        written.ok_or_else(|| invalid!("the claim {} is gone", Key::of(claim)))
    }

    /// Removes finalizers. Unlike [`edit`](Self::edit), this does not conflict with what other clients write at the same
    /// time. For Kubernetes' own kinds: others have no patches of lists.
    pub(crate) async fn remove_finalizers<K: Cached>(&self, object: &K, finalizers: &[&str]) -> Result<()> {
        let metadata = json!({ "uid": object.uid(), "$deleteFromPrimitiveList/finalizers": finalizers });
        let key = Key::of(object);
        let patch = Patch::Strategic(json!({ "metadata": metadata }));
        let request = resource::<K>(&key.namespace).patch(&key.name, &PatchParams::default(), &patch);
        let mut left = none_if(csi_kube::Error::is_missing, self.send::<K, K>("change", &key, request).await);
        if let Err(Error::Api(error)) = &left
            && error.is_conflict()
            && self.read(&key).await?.is_none_or(|now: K| now.uid() != object.uid())
        {
            left = Ok(None);
        }
        // Otherwise somebody else wrote while the API server deleted the object, and nothing is removed.
        K::cache(&self.caches).wrote(object, left?.as_ref());
        Ok(())
    }

    /// Deletes this object, if it still exists.
    pub(crate) async fn delete<K: Kind>(&self, object: &K) -> Result<()> {
        let key = Key::of(object);
        let preconditions = Preconditions { uid: Some(object.uid().to_owned()), resource_version: None };
        let params = DeleteParams::default().preconditions(preconditions);
        let request = resource::<K>(&key.namespace).delete(&key.name, &params);
        none_if(csi_kube::Error::is_missing, self.send::<K, Value>("delete", &key, request).await).map(drop)
    }

    /// All objects of a kind, as the API server has them now, read in pages.
    pub(crate) async fn list<K: Named>(&self, namespace: &str) -> Result<Vec<K>> {
        let mut objects = Vec::new();
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let request = resource::<K>(namespace).list(&params);
            let page: ObjectList<K> = self.send::<K, _>("list", &Key::new(namespace, "*"), request).await?;
            objects.extend(page.items);
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(objects);
            }
        }
    }

    async fn send<K: Named, T: DeserializeOwned>(
        &self,
        action: &str,
        key: &Key,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<T> {
        self.rate.wait().await;
        let action = format!("{action} {} {key}", K::KIND.to_lowercase());
        let request = async { self.client.request(request.map_err(kube::Error::BuildRequest)?).await };
        Ok(csi_kube::internal::send(&action, request).await?)
    }
}

/// Requests for the objects of a kind, in a namespace or all.
fn resource<K: Named>(namespace: &str) -> Request {
    Request::new(K::path(namespace))
}

fn none_if<T>(is_none: fn(&csi_kube::Error) -> bool, answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Err(Error::Api(error)) if is_none(&error) => Ok(None),
        answer => answer.map(Some),
    }
}

/// A rate with room for a burst: the generic cell rate algorithm.
struct Rate {
    interval: Duration,
    room: Duration,
    full_at: Mutex<Instant>,
}

impl Rate {
    async fn wait(&self) {
        let at = {
            let mut full_at = self.full_at.lock().await;
            let now = Instant::now();
            *full_at = (*full_at).max(now) + self.interval;
            full_at.checked_sub(self.room).unwrap_or(now)
        };
        sleep_until(at).await;
    }
}
