//! A pod for the FUSE program of each volume, made when the volume is attached to a node.

mod ends;
mod owner;
mod pod;
mod sweep;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use csi_core::controller::Published;
use csi_core::kubernetes::{FUSE_POD_KEY, Quantity};
use csi_core::types::{NodeId, VolumeId};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use self::ends::Ends;
use self::owner::{Owner, users};
use self::pod::Use;
use crate::error::Result;
use crate::events::Events;
use crate::request::send;

/// The external-attacher waits 15 s for an answer.
const LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(250);
const DRIVER: &str = "csi-kube/driver";
const NODE: &str = "csi-kube/node";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Pods for the FUSE programs of a driver: one for each volume on each node, with limits of its own, unless volumes
/// [share](Self::share_parameter) it. The node's side is `Mounter::in_pod_of_volume` of csi-mount.
///
/// A controller publishes and unpublishes volumes by it, so it needs PUBLISH_UNPUBLISH_VOLUME. The VolumeAttachment is
/// the record of the pod's use, and the pod's name is derived from driver, node, and volume or share: each call can be
/// repeated, and two controllers make one pod. The id of a node must be its name. Whether the volume exists is not asked:
/// the driver does that.
///
/// Only a process that serves the controller makes this value and spawns [`run`](Self::run). The capability is offered
/// wherever `DriverArgs::mounter` has a `namespace_of_volumes`, also by the command `manifests`, which has no cluster:
/// `main.rs` of examples/fuse shows it.
///
/// ```
/// use csi_core::controller::{
///     ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, Published, PublishUnpublishVolume,
/// };
/// use csi_core::{Result, prelude::*};
/// use csi_kube::FusePods;
///
/// struct Buckets {
///     pods: FusePods,
/// }
/// # #[async_trait]
/// # impl Controller for Buckets {
/// #     async fn lookup(&self, _: &VolumeId) -> Result<Option<Volume>> { Ok(None) }
/// #     fn supports(&self, _: &VolumeCapability) -> bool { true }
/// # }
///
/// #[async_trait]
/// impl PublishUnpublishVolume for Buckets {
///     async fn publish_volume(&self, request: ControllerPublishVolumeRequest) -> Result<Published> {
///         self.pods.publish(&request.volume_id, &request.node_id).await
///     }
///     async fn unpublish_volume(&self, request: ControllerUnpublishVolumeRequest) -> Result<()> {
///         self.pods.unpublish(&request.volume_id, request.node_id.as_ref()).await
///     }
/// }
/// ```
///
/// The pods are made from the PodTemplate of the manifests (`--fuse-pods=per-volume`), which has the name of its namespace:
/// with the level `restricted` of the Pod Security Standards, the image (`--fuse-image`), the memory (`--fuse-memory`) and
/// the priority class (`--fuse-priority-class`). They need the rules [`rules::FUSE_PODS`](crate::rules::FUSE_PODS), and in
/// the pods' namespace [`rules::FUSE_PODS_NAMESPACE`](crate::rules::FUSE_PODS_NAMESPACE).
#[derive(Clone)]
pub struct FusePods {
    client: Client,
    driver: String,
    namespace: String,
    memory_parameter: Option<(String, RangeInclusive<Quantity>)>,
    share_parameter: Option<String>,
    /// What a class sets.
    class: Class,
    ends: Ends,
}

#[derive(Clone, Default)]
struct Class {
    /// Otherwise the template's.
    memory: Option<Quantity>,
    share: Option<String>,
}

impl Class {
    fn owner<'a>(&'a self, volume: &'a str) -> Owner<'a> {
        self.share.as_deref().map_or(Owner::Volume(volume), Owner::Share)
    }
}

impl FusePods {
    /// The pods of this driver, in this namespace. Call it in the runtime that serves the driver.
    pub fn new(client: Client, driver: impl Into<String>, namespace: impl Into<String>) -> Self {
        let driver = driver.into();
        Self {
            ends: Ends::new(client.clone(), Events::new(client.clone(), driver.clone(), "fuse-pods")),
            client,
            driver,
            namespace: namespace.into(),
            memory_parameter: None,
            share_parameter: None,
            class: Class::default(),
        }
    }

    /// Lets a StorageClass set the memory by this parameter, within these bounds, in place of that of the template.
    ///
    /// CreateVolume checks the parameters by [`of_class`](Self::of_class) and copies this one into the volume context, and
    /// ControllerPublishVolume publishes by it. A pod that is made again has it too.
    ///
    /// ```
    /// # use csi_core::{Result, controller::*, prelude::*};
    /// # use csi_core::kubernetes::Quantity;
    /// # use csi_kube::FusePods;
    /// fn with_bounds(pods: FusePods) -> FusePods {
    ///     pods.memory_parameter("memory", Quantity::new(128 << 20)..=Quantity::new(4 << 30))
    /// }
    ///
    /// fn created(pods: &FusePods, request: &CreateVolumeRequest, volume: Volume) -> Result<Volume> {
    ///     pods.of_class(request.parameters.iter())?;
    ///     let Some(memory) = request.parameters.get("memory") else { return Ok(volume) };
    ///     Ok(volume.context("memory", memory))
    /// }
    ///
    /// async fn publish(pods: &FusePods, request: &ControllerPublishVolumeRequest) -> Result<Published> {
    ///     let pods = pods.of_class(request.volume_context.iter())?;
    ///     pods.publish(&request.volume_id, &request.node_id).await
    /// }
    /// ```
    #[must_use]
    pub fn memory_parameter(mut self, key: impl Into<String>, bounds: RangeInclusive<Quantity>) -> Self {
        self.memory_parameter = Some((key.into(), bounds));
        self
    }

    /// Lets volumes share a pod on a node: those that have the same value of this parameter, for example the bucket that
    /// they are directories of. Volumes without a value have pods of their own.
    ///
    /// The parameter is in the volume context, as [`memory_parameter`](Self::memory_parameter) describes it. Each volume
    /// still has a program of its own. The memory is that of all programs together: the largest that one of the volumes
    /// sets, when the pod is made. The programs have one user, and could read each other's credentials. The pod
    /// ends with its last volume. A volume that is detached earlier, by force and without an unstage, keeps its program
    /// until then.
    #[must_use]
    pub fn share_parameter(mut self, key: impl Into<String>) -> Self {
        self.share_parameter = Some(key.into());
        self
    }

    /// The pods of volumes with these parameters: those of a class, or of a volume context.
    ///
    /// # Errors
    /// [`InvalidArgument`](csi_core::Error::InvalidArgument) with the [bounds](Self::memory_parameter) of the memory.
    pub fn of_class<'a>(
        &self,
        parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> csi_core::Result<Self> {
        let parameters: BTreeMap<&str, &str> = parameters.into_iter().collect();
        let class = self.class_of(|key| parameters.get(key).copied());
        if let Some((key, bounds)) = &self.memory_parameter
            && let Some(text) = parameters.get(&**key)
            && class.memory.is_none()
        {
            let reason = format!("{text:?} is no quantity from {} to {}", bounds.start(), bounds.end());
            return Err(csi_core::Error::invalid(format!("parameters[{key}]"), reason));
        }
        Ok(Self { class, ..self.clone() })
    }

    /// What the parameters set, without a memory out of bounds: a later version of the driver can have other bounds.
    fn class_of<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> Class {
        let memory = self
            .memory_parameter
            .as_ref()
            .and_then(|(key, bounds)| get(key)?.parse().ok().filter(|memory| bounds.contains(memory)));
        let share = self.share_parameter.as_ref().and_then(|key| get(key)).filter(|value| !value.is_empty());
        Class { memory, share: share.map(str::to_owned) }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Makes the pod of a volume on a node unless it exists, and waits until it is scheduled.
    ///
    /// # Errors
    /// [`NodeNotFound`](csi_core::Error::NodeNotFound) (NOT_FOUND);
    /// [`LimitReached`](csi_core::Error::LimitReached) (RESOURCE_EXHAUSTED) with the scheduler's words, if the node has
    /// no room: the pod stays, and gets the room as soon as it is there. [`Pending`](csi_core::Error::Pending) (ABORTED)
    /// while an earlier pod ends. [`Incompatible`](csi_core::Error::Incompatible): another pod has the name.
    /// Those of the API.
    pub async fn publish(&self, volume: &VolumeId, node_id: &NodeId) -> csi_core::Result<Published> {
        let node = node_id.as_str();
        let volume = volume.as_str();
        let Some(uid) = self.node(node).await?.and_then(|node| node.metadata.uid) else {
            return Err(csi_core::Error::NodeNotFound(node_id.clone()));
        };
        let owner = self.class.owner(volume);
        let name = owner.pod_name(&self.driver, &uid);
        let until = Instant::now() + LIMIT;
        loop {
            match self.look(&name, node, owner, volume).await? {
                State::Missing => self.create_first(&name, node, owner, volume).await?,
                State::NotJoined => self.join(&name, owner, [volume]).await?,
                State::Scheduled => {
                    return Ok(Published::new([(FUSE_POD_KEY.to_owned(), name)].into()));
                }
                State::Ended(pod) => self.delete(&pod, Some(0)).await?,
                State::Unschedulable(text) => {
                    let text = format!("the pod {name} of the volume has no room on the node: {text}");
                    return Err(csi_core::Error::LimitReached(text.into()));
                }
                State::Ending => {
                    let text = format!("the earlier pod {name} of the volume has not ended yet");
                    return Err(csi_core::Error::Pending(text.into()));
                }
                State::Other => {
                    let text = format!("the pod {}/{name} belongs to another volume", self.namespace);
                    return Err(csi_core::Error::Incompatible(text.into()));
                }
                State::Waiting => {}
            }
            if Instant::now() > until {
                let text = format!("the pod {name} of the volume was not scheduled within {LIMIT:?}");
                return Err(csi_core::Error::Unavailable(text.into()));
            }
            sleep(PAUSE).await;
        }
    }

    /// Deletes the pod of a volume on a node, or on all nodes if none is given, and waits for its end. On a node
    /// that does not exist, or is out of service, nothing is waited for. A pod that other volumes share stays.
    ///
    /// # Errors
    /// [`Pending`](csi_core::Error::Pending) (ABORTED) while its program still stores data. Those of the API.
    pub async fn unpublish(&self, volume: &VolumeId, node: Option<&NodeId>) -> csi_core::Result<()> {
        let volume = volume.as_str();
        let node = node.map(NodeId::as_str);
        let until = Instant::now() + LIMIT;
        let is_of_call = |pod: &Pod| {
            users(pod).any(|(_, user)| user == volume)
                && node.is_none_or(|node| annotation(pod, NODE) == Some(node))
        };
        let mut left = self.list().await?;
        loop {
            left.retain(is_of_call);
            if left.is_empty() {
                return Ok(());
            }
            for pod in &left {
                if users(pod).any(|(_, user)| user != volume) {
                    self.leave(pod, volume).await?;
                } else if self.is_lost(pod).await? {
                    self.delete(pod, Some(0)).await?;
                } else if pod.metadata.deletion_timestamp.is_none() {
                    self.delete(pod, None).await?;
                }
            }
            if Instant::now() > until {
                let names: Vec<String> = left.iter().map(Pod::name_any).collect();
                let text = format!("the pod of the volume has not ended yet: {}", names.join(", "));
                return Err(csi_core::Error::Pending(text.into()));
            }
            sleep(PAUSE).await;
            let mut again = Vec::new();
            for pod in &left {
                again.extend(self.read(&pod.name_any()).await?);
            }
            left = again;
        }
    }

    async fn read(&self, name: &str) -> Result<Option<Pod>> {
        send(&format!("read pod {name}"), self.pods().get_opt(name)).await
    }

    async fn node(&self, name: &str) -> Result<Option<Node>> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        send(&format!("read node {name}"), nodes.get_opt(name)).await
    }

    async fn list(&self) -> Result<Vec<Pod>> {
        let pods = send("list pods", self.pods().list(&ListParams::default())).await?;
        Ok(pods.items.into_iter().filter(|pod| annotation(pod, DRIVER) == Some(&self.driver)).collect())
    }

    async fn look(&self, name: &str, node: &str, owner: Owner<'_>, volume: &str) -> Result<State> {
        let Some(pod) = self.read(name).await? else { return Ok(State::Missing) };
        let own = [(DRIVER, self.driver.as_str()), (NODE, node)];
        if own.iter().any(|(key, value)| annotation(&pod, key) != Some(value))
            || Owner::of(&pod) != Some(owner)
        {
            return Ok(State::Other);
        }
        if pod.metadata.deletion_timestamp.is_some() {
            return Ok(State::Ending);
        }
        if has_ended(&pod) {
            return Ok(State::Ended(Box::new(pod)));
        }
        if !users(&pod).any(|(_, user)| user == volume) {
            return Ok(State::NotJoined);
        }
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        let scheduled = conditions.into_iter().find(|condition| condition.type_ == "PodScheduled");
        Ok(match scheduled {
            Some(condition) if condition.status == "True" => State::Scheduled,
            Some(condition) if condition.reason.as_deref() == Some("Unschedulable") => {
                State::Unschedulable(condition.message.unwrap_or_default())
            }
            _ => State::Waiting,
        })
    }

    /// Makes the pod that a volume lacks, with the volumes that are to share it and are attached already.
    async fn create_first(&self, name: &str, node: &str, owner: Owner<'_>, volume: &str) -> Result<()> {
        let is_shared = matches!(owner, Owner::Share(_));
        let volumes = if is_shared { self.volumes().await? } else { BTreeMap::new() };
        let attachments = if is_shared { self.attachments().await? } else { Vec::new() };
        let wanted = sweep::wanted(&attachments, &volumes).remove(&(node, owner)).unwrap_or_default();
        let mut volumes = wanted.attached;
        volumes.add(volume, &self.class);
        self.create(name, node, owner, &volumes).await
    }

    /// A pod that exists already is as good: its name says what it is for.
    async fn create(&self, name: &str, node: &str, owner: Owner<'_>, volumes: &Use<'_>) -> Result<()> {
        // One that is gone needs no pod.
        let Some(node) = self.node(node).await? else { return Ok(()) };
        let pod = self.pod(name, &node, owner, volumes).await?;
        let created =
            send(&format!("create pod {name}"), self.pods().create(&PostParams::default(), &pod)).await;
        match created {
            Err(error) if !error.is_taken() => Err(error),
            _ => Ok(()),
        }
    }

    /// Adds volumes to a pod that they share. A later pod of this name has the same owner.
    async fn join(
        &self,
        name: &str,
        owner: Owner<'_>,
        volumes: impl IntoIterator<Item = &str>,
    ) -> Result<()> {
        let users = volumes.into_iter().map(|volume| (owner.user_key(volume), json!(volume)));
        let users: serde_json::Map<_, _> = users.collect();
        if users.is_empty() {
            return Ok(());
        }
        self.patch(name, json!({ "annotations": users })).await
    }

    /// Takes a volume from a shared pod, unless that has changed meanwhile: the last volume has to delete it.
    async fn leave(&self, pod: &Pod, volume: &str) -> Result<()> {
        let keys =
            users(pod).filter(|(_, user)| *user == volume).map(|(key, _)| (key.to_owned(), Value::Null));
        let annotations = keys.collect::<serde_json::Map<_, _>>();
        let version = &pod.metadata.resource_version;
        self.patch(&pod.name_any(), json!({ "annotations": annotations, "resourceVersion": version })).await
    }

    /// Changes a pod's metadata, unless it is gone or not what it was.
    async fn patch(&self, name: &str, metadata: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        match send(&format!("change pod {name}"), self.pods().patch(name, &PatchParams::default(), &patch))
            .await
        {
            Err(error) if !error.is_missing() && !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }

    /// Deletes a pod, unless it has changed meanwhile: another volume can have joined it.
    async fn delete(&self, pod: &Pod, grace: Option<u32>) -> Result<()> {
        let name = pod.name_any();
        let metadata = pod.metadata.clone();
        let preconditions = Preconditions { uid: metadata.uid, resource_version: metadata.resource_version };
        let parameters = DeleteParams {
            grace_period_seconds: grace,
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        match send(&format!("delete pod {name}"), self.pods().delete(&name, &parameters)).await {
            Err(error) if !error.is_missing() && !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether nothing runs on the pod's node any more.
    async fn is_lost(&self, pod: &Pod) -> Result<bool> {
        let Some(node) = self.node(annotation(pod, NODE).unwrap_or_default()).await? else { return Ok(true) };
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        Ok(taints.iter().any(|taint| taint.key == OUT_OF_SERVICE))
    }
}

impl fmt::Debug for FusePods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("FusePods");
        shown.field("driver", &self.driver).field("namespace", &self.namespace);
        shown.finish_non_exhaustive()
    }
}

/// What becomes of a pod.
enum State {
    Missing,
    Waiting,
    Scheduled,
    Unschedulable(String),
    /// It was evicted, or its first process has ended.
    Ended(Box<Pod>),
    /// It is being deleted.
    Ending,
    /// It is a pod that the volume is to share.
    NotJoined,
    /// It is no pod of this volume.
    Other,
}

fn annotation<'p>(pod: &'p Pod, key: &str) -> Option<&'p str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}
