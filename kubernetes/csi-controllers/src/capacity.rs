//! Tells the scheduler how much room there is: one CSIStorageCapacity object for each segment of the cluster and each
//! class whose volumes wait for their pod.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use csi_core::kubernetes::Quantity;
use csi_proto::v1;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Api;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

use crate::api::Requests;
use crate::cache::Change;
use crate::context::{Context, Room};
use crate::error::{Error, Result, invalid};
use crate::memory::Memory;
use crate::objects::{Capacity, Class, Key, Kind as _};
use crate::provision::{Cluster, Segment};
use crate::queue::{Next, Queue};

const WORKERS: usize = 1;

/// How often the driver is asked, apart from changes that this process makes.
const POLL: Duration = Duration::from_secs(60);

/// How long a segment is missed before its objects are deleted: a node whose driver registers again is not one without
/// room.
const PATIENCE: Duration = Duration::from_secs(300);

const DRIVER_LABEL: &str = "csi.storage.k8s.io/drivername";
const MANAGER_LABEL: &str = "csi.storage.k8s.io/managed-by";
const MANAGER: &str = "external-provisioner";

/// What one object is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Item {
    class: String,
    segment: Segment,
}

impl Item {
    fn is_of(&self, object: &Capacity) -> bool {
        let labels = object.node_topology.match_labels.as_ref();
        object.storage_class_name == self.class
            && labels.map_or(self.segment.is_empty(), |labels| *labels == self.segment)
    }

    fn shares(&self, room: &Room) -> bool {
        if room.segments.is_empty() {
            room.class == self.class
        } else {
            room.segments.contains(&self.segment)
        }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "capacity of {} in {:?}", self.class, self.segment)
    }
}

/// The part's state.
struct Capacities {
    context: Arc<Context>,
    /// A client of its own, so that thousands of segments don't delay volumes.
    requests: Requests,
    owner: OnceCell<Option<OwnerReference>>,
    /// Those of the last poll: to look for one in all nodes takes longer.
    segments: Memory<Segment, ()>,
    missed_since: Memory<Item, Instant>,
    /// What this process created, until the watch shows it.
    created: Memory<Item, Instant>,
}

pub(crate) fn start(context: &Arc<Context>, tasks: &mut JoinSet<()>) {
    let part = Arc::new(Capacities {
        context: Arc::clone(context),
        requests: Requests::new(context.client.clone(), context.caches.clone(), 1, 5),
        owner: OnceCell::new(),
        segments: Memory::default(),
        missed_since: Memory::default(),
        created: Memory::default(),
    });
    let step = async |part: Arc<Capacities>, item| part.step(item).await;
    let queue = context.work(tasks, "csistoragecapacity", WORKERS, Arc::clone(&part), step);
    let sender = queue.clone();
    let this = Arc::clone(&part);
    let objects = context.caches.capacities.clone();
    // Most changes are this part's own, and would have the driver asked again. The next poll sees those of others.
    objects.on_change(move |change| {
        if let Change::Gone(object) = change {
            this.created.remove(&item_of(object));
            sender.add(item_of(object));
        }
    });
    let api = Api::default_namespaced_with(context.client.clone(), &());
    tasks.spawn(objects.watch(api));
    tasks.spawn(async move { poll(&part, &queue).await });
}

/// Adds all items again and again, and those that share the room of a volume that was created or deleted.
async fn poll(part: &Capacities, queue: &Queue<Item>) {
    part.context.synced().await;
    part.context.caches.capacities.synced().await;
    let mut changed = part.context.capacity_changed.subscribe();
    let mut ticks = interval(POLL);
    loop {
        let room = tokio::select! {
            _ = ticks.tick() => None,
            room = changed.recv() => room.ok(),
        };
        let existing = part.context.caches.capacities.all();
        let existing = existing.iter().map(|object| item_of(object));
        for item in existing.chain(part.wanted()) {
            if room.as_ref().is_none_or(|room| item.shares(room)) {
                queue.add(item);
            }
        }
    }
}

fn quantity(bytes: i64) -> String {
    Quantity::new(u64::try_from(bytes).unwrap_or_default()).to_string()
}

fn item_of(object: &Capacity) -> Item {
    let labels = object.node_topology.match_labels.clone();
    Item { class: object.storage_class_name.clone(), segment: labels.unwrap_or_default() }
}

impl Capacities {
    fn is_wanted_class(&self, class: &Class) -> bool {
        class.provisioner == self.context.driver.name && class.is_delayed()
    }

    /// What is to have an object: each segment of the nodes on which the driver runs, or one of all nodes for a driver
    /// without a topology.
    fn wanted(&self) -> Vec<Item> {
        let context = &self.context;
        let csi_nodes = context.caches.csi_nodes.all();
        let nodes = context.caches.nodes.all();
        let mut segments = Cluster::new(&context.driver.name, &csi_nodes, &nodes).node_segments();
        if !context.driver.has_topology {
            segments = BTreeSet::from([Segment::new()]);
        }
        let mut items = Vec::new();
        for class in context.caches.classes.all().iter().filter(|class| self.is_wanted_class(class)) {
            let item = |segment: &Segment| Item { class: class.name().to_owned(), segment: segment.clone() };
            items.extend(segments.iter().map(item));
        }
        *self.segments.all() = segments.into_iter().map(|segment| (segment, ())).collect();
        items
    }

    async fn step(&self, item: Item) -> Result<Next> {
        let driver = &self.context.driver.name;
        let is_wanted = |object: &&Capacity| {
            let labels = &object.metadata.labels;
            item.is_of(object)
                && labels.get(DRIVER_LABEL) == Some(driver)
                && labels.get(MANAGER_LABEL).is_some_and(|manager| manager == MANAGER)
        };
        let all = self.context.caches.capacities.all();
        let mut objects: Vec<&Capacity> = all.iter().map(|object| &**object).filter(is_wanted).collect();
        objects.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
        let class = self.context.caches.classes.named(&item.class);
        let Some(class) = class.filter(|class| self.is_wanted_class(class)) else {
            return self.delete(&objects).await;
        };
        if self.segments.get(&item.segment).is_none() {
            let since = *self.missed_since.all().entry(item.clone()).or_insert_with(Instant::now);
            let left = PATIENCE.saturating_sub(since.elapsed());
            return if left.is_zero() { self.delete(&objects).await } else { Ok(Next::After(left)) };
        }
        self.missed_since.remove(&item);
        let room = self.room(&class, &item.segment).await?;
        let capacity = Some(quantity(room.available_capacity));
        let largest = room.maximum_volume_size.map(quantity);
        let sizes = json!({ "capacity": capacity, "maximumVolumeSize": largest });
        let Some((object, duplicates)) = objects.split_first() else {
            if self.created.get(&item).is_none_or(|created| created.elapsed() > PATIENCE) {
                self.create(&item, sizes).await?;
                self.created.set(item, Instant::now());
            }
            return Ok(Next::Done);
        };
        if object.capacity != capacity || object.maximum_volume_size != largest {
            self.requests.patch(*object, sizes).await?;
        }
        self.delete(duplicates).await
    }

    async fn room(&self, class: &Class, segment: &Segment) -> Result<v1::GetCapacityResponse> {
        let segments = segment.clone();
        let request = v1::GetCapacityRequest {
            parameters: class.parameters.clone(),
            accessible_topology: (!segment.is_empty()).then_some(v1::Topology { segments }),
            ..v1::GetCapacityRequest::default()
        };
        Ok(self.context.calls.call(request).await?)
    }

    /// An object with these sizes.
    async fn create(&self, item: &Item, mut object: Value) -> Result<()> {
        let owner = || async {
            match owner(&self.context, &self.requests).await {
                Err(Error::Api(error)) if error.is_transient() => Err(error.into()),
                Err(error) => {
                    tracing::warn!("the capacity objects stay when the driver is removed: {error}");
                    Ok(None)
                }
                found => found,
            }
        };
        let owners: Vec<&OwnerReference> = self.owner.get_or_try_init(owner).await?.iter().collect();
        object["apiVersion"] = json!("storage.k8s.io/v1");
        object["kind"] = json!("CSIStorageCapacity");
        object["metadata"] = json!({
            "generateName": "csisc-",
            "namespace": self.context.client.default_namespace(),
            "labels": { DRIVER_LABEL: self.context.driver.name, MANAGER_LABEL: MANAGER },
            "ownerReferences": owners,
        });
        object["storageClassName"] = json!(item.class);
        object["nodeTopology"] =
            if item.segment.is_empty() { json!({}) } else { json!({ "matchLabels": item.segment }) };
        self.requests.create::<Capacity>(&object).await.map(drop)
    }

    async fn delete(&self, objects: &[&Capacity]) -> Result<Next> {
        for object in objects {
            self.requests.delete(*object).await?;
        }
        Ok(Next::Done)
    }
}

/// What the objects disappear with: the Deployment, StatefulSet or DaemonSet of this pod.
async fn owner(context: &Context, requests: &Requests) -> Result<Option<OwnerReference>> {
    let Some(pod) = context.args.pod_name.as_deref() else { return Ok(None) };
    let namespace = context.client.default_namespace();
    let pod: Option<Pod> = requests.read(&Key::new(namespace, pod)).await?;
    let pod = pod.ok_or_else(|| invalid!("this pod does not exist"))?;
    let Some(owner) = controller(&pod.metadata) else { return Ok(None) };
    if owner.kind != "ReplicaSet" {
        return Ok(Some(owner));
    }
    let set: Option<ReplicaSet> = requests.read(&Key::new(namespace, &owner.name)).await?;
    Ok(set.and_then(|set| controller(&set.metadata)))
}

fn controller(metadata: &ObjectMeta) -> Option<OwnerReference> {
    let owners = metadata.owner_references.iter().flatten();
    let owner = owners.into_iter().find(|owner| owner.controller == Some(true))?;
    Some(OwnerReference { block_owner_deletion: None, ..owner.clone() })
}
