//! An API server of Kubernetes in memory, at the level of HTTP requests: objects with versions and finalizers,
//! patches, watches, access rules and faults. [`Cluster`] adds the controllers that a cluster has.
//!
//! Each client has its own [`Link`] to it, which can be slow, cut, or hold everything back as if the process were
//! frozen. Time is tokio's, so tests pause it. An object's path is its resource, namespace and name
//! (`persistentvolumeclaims/ns/claim`, `nodes/worker-1`); groups and versions of resources are not told apart.
//!
//! Not simulated: server-side apply, schemas, defaults, admission by class or quota, garbage collection by owner, and
//! lists as of an older version. What it does not know panics.

pub mod cluster;
mod kinds;
mod link;
mod request;
mod serve;
mod snapshots;
mod state;
mod storage;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::Request;
use kube::Client;
use kube::client::Body;
use serde_json::Value;

pub use cluster::Cluster;
pub use link::{Link, LinkState};
pub use request::Call;
use request::Failure;
use state::Objects;

/// An access rule: the group, the resource (`pods`, `pods/status`) and the verbs.
pub type Row = (&'static str, &'static str, &'static [&'static str]);

type Hook = Box<dyn FnOnce(&ApiServer) + Send>;

/// The server. Clones are the same server.
#[derive(Debug, Clone)]
pub struct ApiServer {
    state: Arc<Mutex<State>>,
    changed: tokio::sync::watch::Sender<u64>,
}

struct State {
    objects: Objects,
    rules: Option<Vec<Row>>,
    calls: Vec<Call>,
    faults: Vec<(String, Fault)>,
    hooks: Vec<(String, Hook)>,
    missing: BTreeSet<String>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("objects", &self.objects).finish_non_exhaustive()
    }
}

/// What happens to one request.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// This status instead of an answer; nothing is changed.
    Status(u16),
    /// 429, with the time after which the client should repeat the request, in seconds.
    TooMany(u32),
    /// The request is not read, and has no answer.
    NoAnswer,
    /// The request is served, but its answer is lost.
    AnswerLost,
    /// The connection breaks before the request is read.
    Reset,
}

impl Default for ApiServer {
    fn default() -> Self {
        Self::new()
    }
}

/// What a test sets and sees.
impl ApiServer {
    /// A server without objects that allows everything.
    pub fn new() -> Self {
        let state = State {
            objects: Objects::new(),
            rules: None,
            calls: Vec::new(),
            faults: Vec::new(),
            hooks: Vec::new(),
            missing: BTreeSet::new(),
        };
        Self { state: Arc::new(Mutex::new(state)), changed: tokio::sync::watch::Sender::new(0) }
    }

    /// Allows what these rules allow, and nothing else.
    pub fn allow(&self, rules: &[Row]) {
        self.state().rules = Some(rules.to_vec());
    }

    /// Panics unless each verb of the rules was used.
    pub fn assert_rules_used(&self, rules: &[Row]) {
        let state = self.state();
        let row = |call: &Call| (call.group.clone(), call.rule_resource(), call.verb);
        let used: BTreeSet<_> = state.calls.iter().map(row).collect();
        for (group, resource, verbs) in rules {
            for verb in *verbs {
                let row = ((*group).to_owned(), (*resource).to_owned(), *verb);
                assert!(used.contains(&row), "{row:?} is not needed: {used:?}");
            }
        }
    }

    /// The verbs of all requests for this resource, in order.
    pub fn verbs(&self, resource: &str) -> Vec<String> {
        let state = self.state();
        state.calls.iter().filter(|call| call.resource == resource).map(|call| call.verb.to_owned()).collect()
    }

    /// The number of requests until now, for [`requests_since`](Self::requests_since).
    pub fn mark(&self) -> usize {
        self.state().calls.len()
    }

    /// The requests after the first so many, in order.
    pub fn requests_since(&self, mark: usize) -> Vec<Call> {
        self.state().calls[mark..].to_vec()
    }

    /// How often each verb was used on each resource, by `patch volumeattachments/status`.
    pub fn counts_since(&self, mark: usize) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for call in &self.state().calls[mark..] {
            *counts.entry(format!("{} {}", call.verb, call.rule_resource())).or_default() += 1;
        }
        counts
    }

    /// The next such request has this fault. `what` is a verb, or a verb and a resource: `patch`,
    /// `patch volumeattachments/status`.
    pub fn fail(&self, what: &str, fault: Fault) {
        self.state().faults.push((what.to_owned(), fault));
    }

    /// Does this right before the next such request is served. `what` is as for [`fail`](Self::fail).
    pub fn before(&self, what: &str, hook: impl FnOnce(&Self) + Send + 'static) {
        self.state().hooks.push((what.to_owned(), Box::new(hook)));
    }

    /// The cluster has no resources of this group (`snapshot.storage.k8s.io`), or not this one of them
    /// (`storage.k8s.io/volumeattributesclasses`), until [`define`](Self::define).
    pub fn lack(&self, what: &str) {
        self.state().missing.insert(what.to_owned());
    }

    /// Ends a [`lack`](Self::lack).
    pub fn define(&self, what: &str) {
        self.state().missing.remove(what);
    }

    /// Ends each watch with 410, as after a compaction, and each list that is read in pages.
    pub fn expire_watches(&self) {
        self.state().objects.expire_watches();
        self.wake();
    }

    /// Watches of this resource show each change this much later: caches are stale. Lists and reads are not.
    pub fn delay_watch(&self, resource: &str, delay: Duration) {
        self.state().objects.watch_delays.insert(resource.to_owned(), Some(delay));
        self.wake();
    }

    /// Watches of this resource show no change until [`release_watch`](Self::release_watch).
    pub fn hold_watch(&self, resource: &str) {
        self.state().objects.watch_delays.insert(resource.to_owned(), None);
    }

    /// Ends a hold or a delay of watches.
    pub fn release_watch(&self, resource: &str) {
        self.state().objects.watch_delays.remove(resource);
        self.wake();
    }

    /// A client with its own link.
    pub fn client(&self) -> Client {
        self.linked_client().0
    }

    /// A client, and the link between it and the server.
    pub fn linked_client(&self) -> (Client, Link) {
        self.linked_client_as("driver")
    }

    /// A client with this name in the [`Call`]s, and the link between it and the server.
    pub fn linked_client_as(&self, name: &str) -> (Client, Link) {
        let link = Link::new();
        let server = self.clone();
        let way = link.clone();
        let name = name.to_owned();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            let way = way.clone();
            let name = name.clone();
            async move {
                way.pass(false).await?;
                let answer = server.serve(request, &name, &way).await?;
                way.pass(true).await?;
                Ok::<_, std::io::Error>(answer)
            }
        });
        (Client::new(service, "driver"), link)
    }
}

/// The objects, as a test or a controller of the cluster changes them: without requests that are recorded.
impl ApiServer {
    /// The object at this path.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.state().objects.get(path).map(|object| (**object).clone())
    }

    /// The objects whose paths begin like this.
    pub fn objects(&self, prefix: &str) -> Vec<Value> {
        let state = self.state();
        state.objects.below(prefix, "").map(|(_, object)| (**object).clone()).collect()
    }

    /// As [`objects`](Self::objects), without copies.
    fn shared(&self, prefix: &str) -> Vec<Arc<Value>> {
        self.state().objects.below(prefix, "").map(|(_, object)| object.clone()).collect()
    }

    /// Writes an object as it is, with its status and without any check.
    pub fn put(&self, path: &str, object: Value) {
        self.state().objects.write(path, object);
        self.wake();
    }

    /// Removes an object at once, with its finalizers.
    pub fn delete(&self, path: &str) {
        let mut state = self.state();
        let last = state.objects.get(path).map(|object| (**object).clone()).expect("an object");
        state.objects.remove(path, last);
        drop(state);
        self.wake();
    }

    /// Removes all objects whose paths begin like this.
    pub fn delete_all(&self, prefix: &str) {
        let state = self.state();
        let paths: Vec<String> = state.objects.below(prefix, "").map(|(path, _)| path.clone()).collect();
        drop(state);
        paths.iter().for_each(|path| self.delete(path));
    }

    /// Creates an object in a collection (`persistentvolumeclaims/ns`) as a request does.
    ///
    /// # Panics
    ///
    /// If the server would refuse it.
    pub fn create(&self, collection: &str, object: Value) -> Value {
        self.change(|objects| objects.create(collection, object)).unwrap_or_else(refused(collection))
    }

    /// Changes an object as an update does, without its status.
    ///
    /// # Panics
    ///
    /// If the server would refuse it.
    pub fn edit(&self, path: &str, edit: impl FnOnce(&mut Value)) -> Value {
        self.rewrite(path, false, edit)
    }

    /// Changes the status of an object as an update does.
    ///
    /// # Panics
    ///
    /// If the server would refuse it.
    pub fn edit_status(&self, path: &str, edit: impl FnOnce(&mut Value)) -> Value {
        self.rewrite(path, true, |object| edit(&mut object["status"]))
    }

    /// Deletes an object as a user does: it stays until its last finalizer is removed.
    ///
    /// # Panics
    ///
    /// If there is no such object.
    pub fn begin_deletion(&self, path: &str) {
        self.change(|objects| objects.delete(path, &Value::Null)).unwrap_or_else(refused(path));
    }

    fn rewrite(&self, path: &str, is_status: bool, edit: impl FnOnce(&mut Value)) -> Value {
        let change = |objects: &mut Objects| {
            let mut new = (*objects.existing(path)?).clone();
            edit(&mut new);
            objects.update(path, new, is_status)
        };
        self.change(change).unwrap_or_else(refused(path))
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Objects) -> Result<Arc<Value>, Failure>,
    ) -> Result<Value, Failure> {
        let changed = change(&mut self.state().objects);
        self.wake();
        changed.map(|object| (*object).clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

fn refused<T>(path: &str) -> impl FnOnce(Failure) -> T {
    move |failure| panic!("{path}: {}", failure.message)
}
