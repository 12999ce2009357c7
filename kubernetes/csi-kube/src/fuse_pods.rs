//! A pod for the FUSE program of each volume, made when the volume is attached to a node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use csi_core::controller::Published;
use csi_core::kubernetes::FUSE_POD_KEY;
use csi_core::types::{NodeId, VolumeId};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::error::{Error, Result};
use crate::request::send;

/// The external-attacher waits 15 s for an answer.
const LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(250);
/// Between two looks at all pods and attachments.
const SWEEP: Duration = Duration::from_secs(60);
const DRIVER: &str = "csi-kube/driver";
const VOLUME: &str = "csi-kube/volume";
const NODE: &str = "csi-kube/node";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// How long a pod waits for the end of its volume, and what it then gets to end it, in seconds.
const DRAIN: u32 = 570;
const MARGIN: u32 = 30;

/// Pods for the FUSE programs of a driver: one for each volume on each node, with limits of its own. The node's side is
/// `Mounter::in_pod_of_volume` of csi-mount.
///
/// A controller publishes and unpublishes volumes by it, so it needs PUBLISH_UNPUBLISH_VOLUME. The VolumeAttachment is
/// the record of the pod's use, and the pod's name is derived from driver, node and volume: each call can be repeated, and
/// two controllers make one pod. The id of a node must be its name.
///
/// ```
/// # use csi_core::{Result, prelude::*};
/// # use csi_core::controller::{
/// #     ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, Published, PublishUnpublishVolume,
/// # };
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
/// The pods have the level `restricted` of the Pod Security Standards, no token of the API, and a priority class if it is
/// set. They need the rules [`rules::FUSE_PODS`](crate::rules::FUSE_PODS), and in the pods' namespace
/// [`rules::FUSE_PODS_NAMESPACE`](crate::rules::FUSE_PODS_NAMESPACE).
#[derive(Clone)]
pub struct FusePods {
    client: Client,
    driver: String,
    namespace: String,
    image: String,
    args: Vec<String>,
    memory: String,
    priority_class: Option<String>,
}

impl FusePods {
    /// The pods of this driver, in this namespace, with this image: the driver's own, or another one that has the
    /// driver's program as its entry point. A pod has 1Gi of memory.
    pub fn new(
        client: Client,
        driver: impl Into<String>,
        namespace: impl Into<String>,
        image: impl Into<String>,
    ) -> Self {
        Self {
            client,
            driver: driver.into(),
            namespace: namespace.into(),
            image: image.into(),
            args: Vec::new(),
            memory: "1Gi".to_owned(),
            priority_class: None,
        }
    }

    /// Adds an argument of the driver's program in the pods, after `--fuse-mounter`.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.args.push(argument.into());
        self
    }

    /// Sets the memory that each pod reserves and is limited to, as a quantity of Kubernetes: `256Mi`. For a value of a
    /// StorageClass, clone the pods and set it; the vendor checks its bounds.
    #[must_use]
    pub fn memory(mut self, quantity: impl Into<String>) -> Self {
        self.memory = quantity.into();
        self
    }

    /// Sets the priority class. The workload is scheduled before its volume's pod exists; with a higher class, the pod
    /// makes room for itself.
    #[must_use]
    pub fn priority_class(mut self, name: impl Into<String>) -> Self {
        self.priority_class = Some(name.into());
        self
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
        let name = name(&self.driver, &uid, volume);
        let until = Instant::now() + LIMIT;
        loop {
            match self.look(&name, node, volume).await? {
                State::Missing => self.create(&name, node, volume).await?,
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
                State::Waiting if Instant::now() > until => {
                    let text = format!("the pod {name} of the volume was not scheduled within {LIMIT:?}");
                    return Err(csi_core::Error::Unavailable(text.into()));
                }
                State::Waiting => sleep(PAUSE).await,
            }
        }
    }

    /// Deletes the pod of a volume on a node, or on all nodes if none is given, and waits for its end. On a node
    /// that does not exist, or is out of service, nothing is waited for.
    ///
    /// # Errors
    /// [`Pending`](csi_core::Error::Pending) (ABORTED) while its program still stores data. Those of the API.
    pub async fn unpublish(&self, volume: &VolumeId, node: Option<&NodeId>) -> csi_core::Result<()> {
        let volume = volume.as_str();
        let node = node.map(NodeId::as_str);
        let until = Instant::now() + LIMIT;
        loop {
            let is_of_call = |pod: &Pod| {
                annotation(pod, VOLUME) == Some(volume)
                    && node.is_none_or(|node| annotation(pod, NODE) == Some(node))
            };
            let left: Vec<Pod> = self.list().await?.into_iter().filter(is_of_call).collect();
            if left.is_empty() {
                return Ok(());
            }
            for pod in &left {
                if self.is_lost(pod).await? {
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
        }
    }

    /// Makes pods and attachments agree: a pod without an attachment is deleted, and an attachment whose pod was evicted
    /// gets another one. A VolumeAttachment exists before its pod, so a pod without one is never needed.
    ///
    /// # Errors
    /// Those of the API.
    pub async fn sweep(&self) -> Result<()> {
        let pods = self.list().await?;
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        let attachments = send("list volumeattachments", attachments.list(&ListParams::default())).await?;
        let handles = self.handles().await?;
        let of_driver = attachments.items.iter().filter(|one| one.spec.attacher == self.driver);
        let wanted: BTreeMap<(&str, &str), bool> = of_driver
            .filter_map(|one| {
                let handle = handles.get(one.spec.source.persistent_volume_name.as_ref()?)?;
                let is_attached = one.status.as_ref().is_some_and(|status| status.attached);
                let is_kept = is_attached && one.metadata.deletion_timestamp.is_none();
                Some(((one.spec.node_name.as_str(), handle.as_str()), is_kept))
            })
            .collect();
        let mut found = BTreeSet::new();
        for pod in &pods {
            let place = annotation(pod, NODE).zip(annotation(pod, VOLUME));
            match place.filter(|place| wanted.contains_key(place)) {
                Some(place) if !has_ended(pod) => drop(found.insert(place)),
                Some(_) => self.delete(pod, Some(0)).await?,
                None if pod.metadata.deletion_timestamp.is_none() => {
                    tracing::info!(pod = pod.name_any(), "deleting the pod of a volume that is not attached");
                    self.delete(pod, None).await?;
                }
                None => {}
            }
        }
        for (&(node, volume), _) in
            wanted.iter().filter(|(place, is_kept)| **is_kept && !found.contains(*place))
        {
            if let Some(uid) = self.node(node).await?.and_then(|node| node.metadata.uid) {
                tracing::info!(node, volume, "making another pod for an attached volume");
                self.create(&name(&self.driver, &uid, volume), node, volume).await?;
            }
        }
        Ok(())
    }

    /// Sweeps once a minute, as long as this process runs: for the leader among several controllers.
    pub async fn run(&self) {
        loop {
            if let Err(error) = self.sweep().await {
                tracing::warn!(
                    "the pods of FUSE programs could not be compared with the attachments: {error}"
                );
            }
            sleep(SWEEP).await;
        }
    }

    async fn node(&self, name: &str) -> Result<Option<Node>> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        send(&format!("read node {name}"), nodes.get_opt(name)).await
    }

    /// The driver's volumes, by the names of their PersistentVolumes.
    async fn handles(&self) -> Result<BTreeMap<String, String>> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let volumes = send("list persistentvolumes", volumes.list(&ListParams::default())).await?;
        let handle = |volume: PersistentVolume| {
            let source = volume.spec?.csi.filter(|source| source.driver == self.driver)?;
            Some((volume.metadata.name?, source.volume_handle))
        };
        Ok(volumes.items.into_iter().filter_map(handle).collect())
    }

    async fn list(&self) -> Result<Vec<Pod>> {
        let pods = send("list pods", self.pods().list(&ListParams::default())).await?;
        Ok(pods.items.into_iter().filter(|pod| annotation(pod, DRIVER) == Some(&self.driver)).collect())
    }

    async fn look(&self, name: &str, node: &str, volume: &str) -> Result<State> {
        let Some(pod) = send(&format!("read pod {name}"), self.pods().get_opt(name)).await? else {
            return Ok(State::Missing);
        };
        let own = [(DRIVER, self.driver.as_str()), (VOLUME, volume), (NODE, node)];
        if own.iter().any(|(key, value)| annotation(&pod, key) != Some(value)) {
            return Ok(State::Other);
        }
        if pod.metadata.deletion_timestamp.is_some() {
            return Ok(State::Ending);
        }
        if has_ended(&pod) {
            return Ok(State::Ended(Box::new(pod)));
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

    /// A pod that exists already is as good: its name says what it is for.
    async fn create(&self, name: &str, node: &str, volume: &str) -> Result<()> {
        let pod = self.pod(name, node, volume)?;
        let created =
            send(&format!("create pod {name}"), self.pods().create(&PostParams::default(), &pod)).await;
        match created {
            Err(error) if !error.is_taken() => Err(error),
            _ => Ok(()),
        }
    }

    /// Deletes this very pod, and no later one of its name.
    async fn delete(&self, pod: &Pod, grace: Option<u32>) -> Result<()> {
        let name = pod.name_any();
        let preconditions = Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None });
        let parameters =
            DeleteParams { grace_period_seconds: grace, preconditions, ..DeleteParams::default() };
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

    fn pod(&self, name: &str, node: &str, volume: &str) -> Result<Pod> {
        let mut args = vec!["--fuse-mounter=/mounter".to_owned(), format!("--grace={DRAIN}s")];
        args.extend(self.args.iter().cloned());
        let in_memory = |name: &str, most: &str| json!({ "name": name, "emptyDir": { "medium": "Memory", "sizeLimit": most } });
        let mount = |name: &str, path: &str| json!({ "name": name, "mountPath": path });
        let on_node = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
        let term = json!({ "matchFields": [on_node] });
        let pod = json!({
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": { "app.kubernetes.io/component": "fuse" },
                "annotations": {
                    DRIVER: self.driver,
                    NODE: node,
                    VOLUME: volume,
                    "cluster-autoscaler.kubernetes.io/daemonset-pod": "true",
                },
            },
            "spec": {
                "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } } },
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "priorityClassName": self.priority_class,
                "terminationGracePeriodSeconds": DRAIN + MARGIN,
                "tolerations": [{ "operator": "Exists" }],
                "securityContext": { "runAsUser": 65532, "runAsGroup": 65532, "runAsNonRoot": true },
                "containers": [{
                    "name": "mounter",
                    "image": self.image,
                    "args": args,
                    "resources": {
                        "requests": { "cpu": "50m", "memory": self.memory },
                        "limits": { "memory": self.memory },
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "capabilities": { "drop": ["ALL"] },
                        "readOnlyRootFilesystem": true,
                        "seccompProfile": { "type": "RuntimeDefault" },
                    },
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": [mount("mounter", "/mounter"), mount("tmp", "/tmp"), mount("cache", "/var/cache/fuse")],
                }],
                "volumes": [in_memory("mounter", "10Mi"), in_memory("tmp", "64Mi"), { "name": "cache", "emptyDir": {} }],
            },
        });
        serde_json::from_value(pod).map_err(|error| Error::invalid(format!("pod {name}"), error.to_string()))
    }
}

impl fmt::Debug for FusePods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("FusePods");
        shown.field("driver", &self.driver).field("namespace", &self.namespace).field("image", &self.image);
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

/// The same in every version: FNV-1a. Another volume with the same hash is refused.
fn name(driver: &str, node_uid: &str, volume: &str) -> String {
    let bytes = [driver, node_uid, volume].map(str::as_bytes).join(&0);
    let sum = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    format!("fuse-{sum:016x}")
}
