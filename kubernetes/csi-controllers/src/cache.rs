//! All objects of a kind in memory, kept up to date by one watch, and who is told of changes.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use kube::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use tokio::sync::watch;
use tokio_stream::StreamExt as _;

use crate::objects::{ForKube, Key, Kind, Pool};
use crate::queue::Queue;

/// What happened to an object.
pub(crate) enum Change<'a, K> {
    /// It is new, or differs from the one before. All objects are new at the start.
    Set {
        before: Option<&'a K>,
        now: &'a Arc<K>,
    },
    Gone(&'a Arc<K>),
}

type Handler<K> = Box<dyn Fn(Change<'_, K>) + Send + Sync>;

/// The objects of a kind. Clones share them.
pub(crate) struct Cache<K>(Arc<Shared<K>>);

struct Shared<K> {
    pool: Mutex<Pool>,
    objects: RwLock<HashMap<Key, Arc<K>>>,
    /// The versions that this process wrote, until the watch shows them.
    written: Mutex<HashMap<Key, u64>>,
    /// Until the watch begins, which owns them then: some of them know this cache, and would keep it for ever.
    handlers: Mutex<Vec<Handler<K>>>,
    is_synced: watch::Sender<bool>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self(Arc::new(Shared {
            pool: Mutex::default(),
            objects: RwLock::default(),
            written: Mutex::default(),
            handlers: Mutex::default(),
            is_synced: watch::Sender::new(false),
        }))
    }
}

impl<K: Kind> Cache<K> {
    /// Calls this at each change, after the change is in the cache. It must not block. To be called before the watch begins.
    pub(crate) fn on_change(&self, handler: impl Fn(Change<'_, K>) + Send + Sync + 'static) {
        self.handlers().push(Box::new(handler));
    }

    fn handlers(&self) -> MutexGuard<'_, Vec<Handler<K>>> {
        self.0.handlers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the key of each object whose change matters, and of each that is gone.
    pub(crate) fn add_changed(
        &self,
        queue: &Queue<Key>,
        matters: impl Fn(Option<&K>, &K) -> bool + Send + Sync + 'static,
    ) {
        let queue = queue.clone();
        self.on_change(move |change| match change {
            Change::Set { before, now } if !matters(before, now) => {}
            Change::Set { now: object, .. } | Change::Gone(object) => queue.add(Key::of(&**object)),
        });
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.objects().get(key).cloned()
    }

    /// The object of a kind without namespaces.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<K>> {
        self.get(&Key::new("", name))
    }

    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.objects().values().cloned().collect()
    }

    pub(crate) fn find(&self, is_wanted: impl Fn(&K) -> bool) -> Option<Arc<K>> {
        self.objects().values().find(|object| is_wanted(object)).cloned()
    }

    /// Remembers what a write of this process left of an object, so that no step decides by an older version. With its last
    /// finalizer the API server deletes an object that is being deleted.
    pub(crate) fn wrote(&self, object: &K, left: Option<&K>) {
        let is_left = |left: &&K| !left.is_deleting() || !left.metadata().finalizers.is_empty();
        let number = left.filter(is_left).map_or(u64::MAX, version);
        let key = Key::of(object);
        // While it is locked, the watch can't show the version.
        let objects = self.objects();
        let is_older = |cached: &Arc<K>| cached.uid() == object.uid() && version(&**cached) < number;
        if objects.get(&key).is_some_and(is_older) {
            self.written().insert(key, number);
        }
    }

    /// Whether the cache has an older version of the object than this process wrote.
    pub(crate) fn is_behind(&self, key: &Key) -> bool {
        self.written().contains_key(key)
    }

    fn written(&self) -> MutexGuard<'_, HashMap<Key, u64>> {
        self.0.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the cache has all objects of the cluster. A cache that was never started waits for ever.
    pub(crate) async fn synced(&self) {
        let mut is_synced = self.0.is_synced.subscribe();
        // The sender is in `self`.
        let _ = is_synced.wait_for(|is_synced| *is_synced).await;
    }

    fn objects(&self) -> std::sync::RwLockReadGuard<'_, HashMap<Key, Arc<K>>> {
        self.0.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the cache up to date with these objects, without an end.
    pub(crate) async fn watch(self, api: Api<ForKube<K>>) {
        let handlers = std::mem::take(&mut *self.handlers());
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
        let mut listed = HashSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Apply(watched)) => self.set(watched.object, &handlers),
                Ok(watcher::Event::Delete(watched)) => self.remove(&Key::of(&watched.object), &handlers),
                Ok(watcher::Event::Init) => listed.clear(),
                Ok(watcher::Event::InitApply(watched)) => {
                    listed.insert(Key::of(&watched.object));
                    self.set(watched.object, &handlers);
                }
                Ok(watcher::Event::InitDone) => {
                    let known: Vec<Key> = self.objects().keys().cloned().collect();
                    for key in known.iter().filter(|key| !listed.contains(key)) {
                        self.remove(key, &handlers);
                    }
                    listed = HashSet::new();
                    self.0.is_synced.send_replace(true);
                }
                Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if status.is_forbidden() => {
                    let text = status.message;
                    tracing::warn!(kind = K::KIND, "nothing is worked on without this access rule: {text}");
                }
                Err(error) => tracing::info!(kind = K::KIND, "the watch is repeated: {error}"),
            }
        }
    }

    fn set(&self, mut object: K, handlers: &[Handler<K>]) {
        object.strip(&mut self.0.pool.lock().unwrap_or_else(PoisonError::into_inner));
        let key = Key::of(&object);
        let now = Arc::new(object);
        let before = {
            let mut objects = self.0.objects.write().unwrap_or_else(PoisonError::into_inner);
            // `insert` alone would keep the older key, which is not the new object's.
            let before = objects.remove(&key);
            let is_same = before.as_ref().is_some_and(|before| before.uid() == now.uid());
            let mut written = self.written();
            if written.get(&key).is_some_and(|number| !is_same || version(&*now) >= *number) {
                written.remove(&key);
            }
            objects.insert(key, Arc::clone(&now));
            before
        };
        let version = &now.metadata().resource_version;
        if before.as_ref().is_some_and(|before| before.metadata().resource_version == *version) {
            return;
        }
        for handler in handlers {
            handler(Change::Set { before: before.as_deref(), now: &now });
        }
    }

    fn remove(&self, key: &Key, handlers: &[Handler<K>]) {
        let gone = self.0.objects.write().unwrap_or_else(PoisonError::into_inner).remove(key);
        self.written().remove(key);
        if let Some(gone) = gone {
            handlers.iter().for_each(|handler| handler(Change::Gone(&gone)));
        }
    }
}

/// Versions of one kind can be compared as numbers. An object without a number is never older.
fn version<K: Kind>(object: &K) -> u64 {
    object.metadata().resource_version.parse().unwrap_or(u64::MAX)
}
