//! What all parts share.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use csi_kube::{Client, Events, Severity};
use csi_proto::ControllerCapability;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::api::Requests;
use crate::args::ControllerArgs;
use crate::cache::Cache;
use crate::caches::{Cached, Caches};
use crate::calls::Calls;
use crate::driver::Driver;
use crate::error::{Error, Result, invalid};
use crate::objects::{Claim, ForKube, Key, Kind, Named, Volume};
use crate::queue::{Next, Queue, queue};

/// How often a kind without a definition is looked for.
const DEFINITION_PERIOD: Duration = Duration::from_secs(180);
/// How long a step waits for a cache that is behind.
pub(crate) const CACHE_PAUSE: Duration = Duration::from_secs(1);
/// The pause after a failed look.
const DISCOVERY_PAUSE: Duration = Duration::from_secs(5);

/// The driver, the cluster's objects, and the ways to change them.
pub(crate) struct Context {
    pub(crate) driver: Driver,
    pub(crate) calls: Calls,
    pub(crate) caches: Caches,
    /// For watches: each answer begins soon, or is asked for again.
    pub(crate) client: Client,
    events: Events,
    pub(crate) args: ControllerArgs,
    /// One for each sidecar whose work this is, so that none waits for another's burst.
    pub(crate) provisioner: Requests,
    pub(crate) attacher: Requests,
    pub(crate) resizer: Requests,
    pub(crate) snapshotter: Requests,
    pub(crate) monitor: Requests,
    /// Where a volume was created or deleted here, or found no room. Nobody receives it if the driver has no GET_CAPACITY,
    /// and a receiver that misses some asks for all at its next poll.
    pub(crate) capacity_changed: broadcast::Sender<Room>,
    is_synced: watch::Sender<bool>,
}

/// What shares the room of a volume. A pool can be that of several classes, so the volume's places say more than its
/// class.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    pub(crate) class: String,
    /// The segments of the cluster, in whatever class; empty if nothing more than the class is known.
    pub(crate) segments: Vec<BTreeMap<String, String>>,
}

impl Context {
    pub(crate) fn new(driver: Driver, calls: Calls, client: Client, args: ControllerArgs) -> Self {
        let caches = Caches::default();
        let client = csi_kube::internal::with_answer_limit(&client);
        let client = csi_kube::internal::while_leading(&client, calls.leaderships.clone());
        let rate = args.kube_api_qps;
        let burst = args.kube_api_burst;
        let requests = || Requests::new(client.clone(), caches.clone(), rate, burst);
        Self {
            events: Events::new(client.clone(), driver.name.clone(), args.instance()),
            provisioner: requests(),
            attacher: requests(),
            resizer: requests(),
            snapshotter: requests(),
            monitor: requests(),
            capacity_changed: broadcast::Sender::new(64),
            is_synced: watch::Sender::new(false),
            client,
            caches: caches.clone(),
            driver,
            calls,
            args,
        }
    }

    /// Starts the watches that this driver's parts need, and waits until the caches are complete.
    pub(crate) async fn fill_caches(&self, tasks: &mut JoinSet<()>) {
        let can = |capability| self.driver.can(capability);
        let caches = &self.caches;
        let creates = can(ControllerCapability::CreateDeleteVolume);
        let attaches = can(ControllerCapability::PublishUnpublishVolume);
        let snapshots = self.driver.snapshots();
        let changes = self.driver.expands || self.driver.modifies() || self.driver.reports_health();
        // The access rules allow nothing that no part needs, and a cache that can't be filled stops them all.
        let places = creates && self.driver.has_topology;
        self.fill(&caches.claims, creates || changes, tasks).await;
        self.fill(&caches.volumes, creates || changes || attaches, tasks).await;
        self.fill(&caches.classes, creates, tasks).await;
        self.fill_if_served(&caches.attributes_classes, self.driver.modifies(), tasks).await;
        let has_attachments = attaches || self.has_attachments().await;
        self.fill(&caches.attachments, has_attachments, tasks).await;
        self.fill(&caches.csi_nodes, attaches || places, tasks).await;
        self.fill(&caches.nodes, places, tasks).await;
        self.fill_if_served(&caches.snapshots, snapshots && creates, tasks).await;
        self.fill_if_served(&caches.snapshot_contents, snapshots, tasks).await;
        self.fill_if_served(&caches.snapshot_classes, snapshots, tasks).await;
        let groups = snapshots && self.driver.has_group_snapshots;
        self.fill_if_served(&caches.group_contents, groups, tasks).await;
        self.fill_if_served(&caches.group_classes, groups, tasks).await;
        self.is_synced.send_replace(true);
    }

    /// Writes an event of this object soon.
    pub(crate) fn publish<K: Kind>(
        &self,
        object: &K,
        severity: Severity,
        reason: impl Into<String>,
        note: impl Into<String>,
    ) {
        self.events.publish(&ForKube::from(object.clone()), severity, reason, note);
    }

    /// Waits until all caches are complete. No step is decided before.
    pub(crate) async fn synced(&self) {
        let mut is_synced = self.is_synced.subscribe();
        // The sender is in `self`.
        let _ = is_synced.wait_for(|is_synced| *is_synced).await;
    }

    /// The claim's volume, if it is this driver's.
    ///
    /// # Errors
    /// The volume's object is not in the cache yet, or not as this process wrote it.
    pub(crate) fn volume_of(&self, claim: &Claim) -> Result<Option<Arc<Volume>>> {
        let name = &claim.spec.volume_name;
        if name.is_empty() {
            return Ok(None);
        }
        let volume =
            self.caches.volumes.named(name).filter(|now| !self.caches.volumes.is_behind(&Key::of(&**now)));
        let volume = volume.ok_or_else(|| invalid!("the volume {name} of a claim is not seen yet"))?;
        let is_ours = volume.source_of(&self.driver.name).is_some();
        Ok(Some(volume).filter(|volume| is_ours && volume.is_of(claim.uid())))
    }

    /// Starts the steps of a part, of which so many are at work at once. They wait until the caches are complete. `name`
    /// is the queue's in the metrics.
    pub(crate) fn work<K, P, F>(
        self: &Arc<Self>,
        tasks: &mut JoinSet<()>,
        name: &str,
        workers: usize,
        part: Arc<P>,
        step: impl Fn(Arc<P>, K) -> F + Send + Sync + 'static,
    ) -> Queue<K>
    where
        K: Clone + Eq + Hash + Display + Send + Sync + 'static,
        P: Send + Sync + 'static,
        F: Future<Output = Result<Next>> + Send + 'static,
    {
        let (queue, steps) = queue(workers, self.calls.metrics.queues.add(name));
        let context = Arc::clone(self);
        tasks.spawn(async move {
            context.synced().await;
            steps.run(|key| step(Arc::clone(&part), key)).await;
        });
        queue
    }

    /// As [`work`](Self::work), for the objects of a kind. A step gets the object of the cache, once that has what this
    /// process wrote of it. `forget` is for an object that is gone.
    pub(crate) fn work_on<K: Cached, P, F>(
        self: &Arc<Self>,
        tasks: &mut JoinSet<()>,
        name: &str,
        workers: usize,
        part: Arc<P>,
        step: impl Fn(Arc<P>, Arc<K>) -> F + Send + Sync + 'static,
        forget: impl Fn(&P, &Key) + Send + Sync + 'static,
    ) -> Queue<Key>
    where
        P: Send + Sync + 'static,
        F: Future<Output = Result<Next>> + Send + 'static,
    {
        let cache = K::cache(&self.caches).clone();
        self.work(tasks, name, workers, part, move |part, key| {
            let object = cache.get(&key);
            let is_behind = cache.is_behind(&key);
            if object.is_none() {
                forget(&part, &key);
            }
            let work = object.filter(|_| !is_behind).map(|object| step(part, object));
            async move {
                match work {
                    Some(work) => work.await,
                    None if is_behind => Ok(Next::After(CACHE_PAUSE)),
                    None => Ok(Next::Done),
                }
            }
        })
    }

    /// Whether Kubernetes makes attachments for a driver that publishes nothing. It does, unless the driver's object has
    /// `attachRequired: false`.
    async fn has_attachments(&self) -> bool {
        loop {
            match self.attacher.read::<CSIDriver>(&Key::new("", &self.driver.name)).await {
                // Without the object or the field Kubernetes waits for attachments.
                Ok(driver) => return driver.and_then(|driver| driver.spec.attach_required).unwrap_or(true),
                Err(Error::Api(error)) if error.is_transient() => sleep(DISCOVERY_PAUSE).await,
                Err(error) => {
                    tracing::info!("attachments are not marked as attached: {error}");
                    return false;
                }
            }
        }
    }

    async fn fill<K: Kind>(&self, cache: &Cache<K>, is_needed: bool, tasks: &mut JoinSet<()>) {
        if is_needed {
            tasks.spawn(cache.clone().watch(Api::all(self.client.clone())));
            cache.synced().await;
        }
    }

    /// Fills the cache of a kind whose definition can be missing. It is then looked for again and again, and nothing
    /// else waits for it.
    async fn fill_if_served<K: Kind>(&self, cache: &Cache<K>, is_needed: bool, tasks: &mut JoinSet<()>) {
        if !is_needed || is_served::<K>(&self.client).await {
            return self.fill(cache, is_needed, tasks).await;
        }
        let resource = K::PLURAL;
        tracing::warn!("the cluster has no {resource}: their definition is looked for again");
        let cache = cache.clone();
        let client = self.client.clone();
        tasks.spawn(async move {
            while !is_served::<K>(&client).await {
                sleep(DEFINITION_PERIOD).await;
            }
            cache.watch(Api::all(client)).await;
        });
    }
}

/// Whether the API server has this kind, once it says so.
async fn is_served<K: Named>(client: &Client) -> bool {
    let path = format!("{}/{}", K::GROUP, K::VERSION);
    loop {
        match client.list_api_group_resources(&path).await {
            Ok(list) => return list.resources.iter().any(|resource| resource.name == K::PLURAL),
            // The answer for a group that is missing is a text, so the status has no reason.
            Err(kube::Error::Api(status)) if status.code == 404 => return false,
            Err(error) => tracing::info!("the kinds of {path} can't be listed: {error}"),
        }
        sleep(DISCOVERY_PAUSE).await;
    }
}
