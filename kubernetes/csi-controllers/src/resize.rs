//! Expands volumes of claims that ask for more: external-resizer's work.
//!
//! An expansion that has begun is finished first, because its outcome can be unknown. The user can choose another size
//! after a failure that is known to have left nothing behind. What a crash leaves, by what was written last:
//!
//! | after | the next start |
//! |---|---|
//! | the claim's status says that it is in progress | calls the driver again, for the same size |
//! | the driver's answer | the same: the call is idempotent |
//! | the volume's capacity | the same; then the claim's status is written |

use std::sync::Arc;

use csi_core::kubernetes::Quantity;
use csi_kube::Severity;
use csi_proto::{ControllerCapability, Rpc, v1};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tonic::Code;

use crate::cache::Change;
use crate::calls::{Outcome, outcome};
use crate::capability::merged_capability;
use crate::context::Context;
use crate::error::{Error, Result, invalid};
use crate::keys::{NODE_EXPANSION_NOT_REQUIRED, PRE_RESIZE_CAPACITY};
use crate::memory::{Failure, Memory};
use crate::objects::{Claim, Key, Kind as _, OfStorage, STORAGE, Text, Volume, condition, uses};
use crate::queue::Next;
use crate::secrets;

const WORKERS: usize = 10;

const RESIZING: &str = "Resizing";
const RESIZE_PENDING: &str = "FileSystemResizePending";
const CONTROLLER_ERROR: &str = "ControllerResizeError";
/// The conditions of an expansion.
const SET: [&str; 4] = [RESIZING, RESIZE_PENDING, CONTROLLER_ERROR, "NodeResizeError"];

// `status.allocatedResourceStatuses.storage` of a claim.
const CONTROLLER_IN_PROGRESS: &str = "ControllerResizeInProgress";
const CONTROLLER_INFEASIBLE: &str = "ControllerResizeInfeasible";
const NODE_PENDING: &str = "NodeResizePending";
const NODE_IN_PROGRESS: &str = "NodeResizeInProgress";
const NODE_INFEASIBLE: &str = "NodeResizeInfeasible";

pub(crate) fn start(context: &Arc<Context>, tasks: &mut JoinSet<()>) {
    let resizer = Resizer { context: Arc::clone(context), failures: Memory::default() };
    let forget = |resizer: &Resizer, key: &Key| _ = resizer.failures.remove(key);
    let name = format!("{}-pvc", context.driver.name);
    let queue = context.work_on(tasks, &name, WORKERS, Arc::new(resizer), step, forget);
    context.caches.claims.add_changed(&queue, is_of_interest);
    // The node can have expanded it while nobody worked. Its claim does not say so.
    context.caches.volumes.on_change(move |change| {
        if let Change::Set { before: None, now: volume } = change
            && let Some(claim) = &volume.spec.claim_ref
            && volume.annotation(PRE_RESIZE_CAPACITY).is_some()
        {
            queue.add(claim.key());
        }
    });
}

struct Resizer {
    context: Arc<Context>,
    failures: Memory<Key, Failure>,
}

/// Whether a change of the claim is not this part's own report of a failure, which would lead to a try without a pause.
fn is_of_interest(before: Option<&Claim>, now: &Claim) -> bool {
    let Some(before) = before else { return now.request() > now.status.capacity.bytes() };
    before.request() != now.request()
        || before.status.phase != now.status.phase
        || before.spec.volume_name != now.spec.volume_name
        || before.status.capacity.bytes() != now.status.capacity.bytes()
        || node_status(before) != node_status(now)
}

/// What the kubelet reports; the other states are this part's own.
fn node_status(claim: &Claim) -> Option<&Text> {
    claim.status.allocated_resource_statuses.storage.as_ref().filter(|status| status.starts_with("Node"))
}

async fn step(resizer: Arc<Resizer>, claim: Arc<Claim>) -> Result<Next> {
    let context = &resizer.context;
    let Some(mut volume) = context.volume_of(&claim)? else { return Ok(Next::Done) };
    let has = claim.status.capacity.bytes().unwrap_or_default();
    if has >= volume.capacity().unwrap_or_default() && volume.annotation(PRE_RESIZE_CAPACITY).is_some() {
        let patch = json!({ "metadata": { "annotations": { PRE_RESIZE_CAPACITY: null } } });
        volume = Arc::new(context.resizer.patch(&*volume, patch).await?);
    }
    if !claim.is_bound() || claim.request().is_none_or(|request| request <= has) {
        return Ok(Next::Done);
    }
    let failure = resizer.failures.get(&Key::of(&*claim));
    let failed_finally = failure.is_some_and(|failure| failure.is_final());
    let in_controller = context.driver.can(ControllerCapability::ExpandVolume);
    let Some(size) = target(&claim, &volume, failed_finally, in_controller) else { return Ok(Next::Done) };
    let is_begun = claim.status.allocated_resources.bytes() == size.bytes();
    if let Some(pause) = failure.and_then(|failure| failure.pause()).filter(|_| is_begun) {
        return Ok(Next::After(pause));
    }
    resizer.run(&claim, &volume, size, is_begun).await
}

/// The size to which a claim that asks for more than it has is expanded now, or `None` where the node has to act first.
/// `in_controller`: the driver has EXPAND_VOLUME, and not only NodeExpandVolume.
fn target<'a>(
    claim: &'a Claim,
    volume: &Volume,
    failed_finally: bool,
    in_controller: bool,
) -> Option<&'a OfStorage> {
    let request = &claim.spec.resources.requests;
    let allocated = Some(&claim.status.allocated_resources).filter(|size| size.bytes().is_some());
    let begun = allocated.unwrap_or(request);
    let status = claim.status.allocated_resource_statuses.storage.as_deref().unwrap_or_default();
    if volume.capacity() < request.bytes() {
        return match status {
            NODE_PENDING | NODE_IN_PROGRESS => Some(begun).filter(|begun| volume.capacity() < begun.bytes()),
            NODE_INFEASIBLE => Some(begun),
            CONTROLLER_IN_PROGRESS if !failed_finally => Some(begun),
            _ => Some(request),
        };
    }
    match status {
        NODE_PENDING | NODE_IN_PROGRESS => None,
        NODE_INFEASIBLE if !in_controller => Some(request),
        NODE_INFEASIBLE | CONTROLLER_IN_PROGRESS | CONTROLLER_INFEASIBLE => Some(begun),
        "" if allocated.is_some() => Some(begun),
        _ if claim.condition(RESIZE_PENDING).is_some() => None,
        _ => Some(request),
    }
}

impl Resizer {
    async fn run(&self, claim: &Claim, volume: &Volume, size: &OfStorage, is_begun: bool) -> Result<Next> {
        let context = &self.context;
        let claim = context.resizer.patch_version(claim, in_progress(claim, size, is_begun)).await?;
        if self.is_in_use(&claim).await? {
            let text = format!(
                "Unable to expand {} because CSI driver {} only supports offline expansion and volume is currently in-use",
                Key::of(&claim),
                context.driver.name
            );
            context.publish(&claim, Severity::Warning, "VolumeResizeFailed", text);
            return Ok(Next::Again);
        }
        let text = format!("External resizer is resizing volume {}", volume.name());
        context.publish(&claim, Severity::Normal, RESIZING, text);
        match self.expand(volume, size).await {
            Ok((bytes, on_node)) => {
                self.failures.remove(&Key::of(&claim));
                self.finish(&claim, volume, bytes, on_node).await?;
                Ok(Next::Done)
            }
            Err(error) => self.failed(&claim, volume, &error).await,
        }
    }

    /// Whether a pod uses the claim, if the driver refused to expand it in use. A driver that expands volumes in use is
    /// asked again in any case.
    async fn is_in_use(&self, claim: &Claim) -> Result<bool> {
        let code = self.failures.get(&Key::of(claim)).and_then(|failure| failure.code);
        if !self.context.driver.expands_offline || code != Some(Code::FailedPrecondition) {
            return Ok(false);
        }
        let pods: Vec<Pod> = self.context.resizer.list(claim.namespace()).await?;
        let name = claim.name();
        Ok(pods.iter().any(|pod| uses(pod, name)))
    }

    /// The new size, and whether the node must expand the volume too.
    async fn expand(&self, volume: &Volume, size: &OfStorage) -> Result<(Quantity, bool)> {
        let driver = &self.context.driver;
        let bytes = size.bytes().unwrap_or_default();
        if !driver.can(ControllerCapability::ExpandVolume) {
            return Ok((Quantity::new(bytes), true));
        }
        let csi = volume.source_of(&driver.name);
        let csi = csi.ok_or_else(|| invalid!("the volume {} is not this driver's", volume.name()))?;
        let required_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let request = v1::ControllerExpandVolumeRequest {
            volume_id: csi.volume_handle.to_string(),
            capacity_range: Some(v1::CapacityRange { required_bytes, limit_bytes: 0 }),
            secrets: secrets::read(&self.context.resizer, csi.controller_expand_secret_ref.as_deref())
                .await?,
            volume_capability: Some(merged_capability(volume, driver)?),
        };
        let answer = self.context.calls.call(request).await?;
        let bytes = u64::try_from(answer.capacity_bytes).unwrap_or_default();
        Ok((Quantity::new(bytes), answer.node_expansion_required))
    }

    /// Writes the volume's capacity first: a claim is never larger than its volume.
    async fn finish(&self, claim: &Claim, volume: &Volume, size: Quantity, on_node: bool) -> Result<()> {
        let resizer = &self.context.resizer;
        let mut patch = json!({ "spec": { "capacity": { STORAGE: size.to_string() } } });
        if on_node && volume.annotation(PRE_RESIZE_CAPACITY).is_none() {
            let before = &claim.status.capacity.storage;
            patch["metadata"] = json!({ "annotations": { PRE_RESIZE_CAPACITY: before } });
        }
        resizer.patch(volume, patch).await?;
        if on_node {
            let claim = resizer.write(claim, pending_on_node).await?;
            let text = "Require file system resize of volume on node";
            self.context.publish(&claim, Severity::Normal, "FileSystemResizeRequired", text);
        } else {
            let claim = resizer.write(claim, |claim| finished(claim, size)).await?;
            let text = "Resize volume succeeded";
            self.context.publish(&claim, Severity::Normal, "VolumeResizeSuccessful", text);
        }
        Ok(())
    }

    async fn failed(&self, claim: &Claim, volume: &Volume, error: &Error) -> Result<Next> {
        let key = Key::of(claim);
        let outcome = |code| outcome(Rpc::ControllerExpandVolume, code);
        let outcome = error.code().map_or(Outcome::Unknown, outcome);
        self.failures.set(key.clone(), Failure::new(outcome, error.code()));
        if outcome != Outcome::Unknown {
            let new = [condition(CONTROLLER_ERROR, &format!("failed to expand pvc with {error}"))];
            let change = |claim: &Claim| {
                let mut status = json!({ "conditions": claim.conditions_with(&new, &[]) });
                if outcome == Outcome::Infeasible {
                    status["allocatedResourceStatuses"] = json!({ STORAGE: CONTROLLER_INFEASIBLE });
                }
                json!({ "status": status })
            };
            self.context.resizer.write(claim, change).await?;
        }
        let name = &self.context.driver.name;
        let text = format!("resize volume {:?} by resizer {name:?} failed: {error}", volume.name());
        tracing::info!(claim = %key, "{text}");
        self.context.publish(claim, Severity::Warning, "VolumeResizeFailed", text);
        Ok(Next::Again)
    }
}

fn in_progress(claim: &Claim, size: &OfStorage, is_begun: bool) -> Value {
    let dropped: &[&str] = if is_begun { &[] } else { &SET };
    let mut status = json!({
        "conditions": claim.conditions_with(&[condition(RESIZING, "")], dropped),
        "allocatedResources": { STORAGE: size.storage },
    });
    if !is_begun {
        status["allocatedResourceStatuses"] = json!({ STORAGE: CONTROLLER_IN_PROGRESS });
    }
    json!({ "metadata": { "annotations": { NODE_EXPANSION_NOT_REQUIRED: null } }, "status": status })
}

fn pending_on_node(claim: &Claim) -> Value {
    let text = "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
    json!({
        "metadata": { "annotations": { NODE_EXPANSION_NOT_REQUIRED: null } },
        "status": {
            "conditions": claim.conditions_with(&[condition(RESIZE_PENDING, text)], &[]),
            "allocatedResourceStatuses": { STORAGE: NODE_PENDING },
        },
    })
}

/// The annotation keeps the kubelet from expanding it again.
fn finished(claim: &Claim, size: Quantity) -> Value {
    json!({
        "metadata": { "annotations": { NODE_EXPANSION_NOT_REQUIRED: "true" } },
        "status": {
            "capacity": { STORAGE: size.to_string() },
            "conditions": claim.conditions_with(&[], &SET),
            "allocatedResourceStatuses": { STORAGE: null },
        },
    })
}
