//! VolumeAttachments: what external-attacher does.
//!
//! All of one attachment's state is in its object. Before ControllerPublishVolume it gets, in one patch, the finalizer
//! and the ids of node and volume, so that a later detach needs neither the node's object nor the volume's.

mod publish;
mod reconcile;

use std::sync::Arc;

use csi_proto::ControllerCapability;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tonic::Code;

use crate::context::Context;
use crate::error::{Error, Result, invalid};
use crate::keys;
use crate::memory::Memory;
use crate::objects::{Attachment, Key, Kind as _, Volume, now};
use crate::queue::Next;

const WORKERS: usize = 10;
/// The name in the metrics.
const QUEUE: &str = "csi-attacher-va";

struct Attacher {
    context: Arc<Context>,
    finalizer: String,
    /// Attachments whose step is done although their status says that nothing is to do.
    forced: Memory<Key, ()>,
}

pub(crate) fn start(context: &Arc<Context>, tasks: &mut JoinSet<()>) {
    if !context.driver.can(ControllerCapability::PublishUnpublishVolume) {
        let queue = context.work_on(tasks, QUEUE, WORKERS, Arc::clone(context), mark, |_, _| {});
        let driver = context.driver.name.clone();
        let matters = move |_: Option<&Attachment>, now: &Attachment| {
            *now.spec.attacher == *driver && !now.status.attached
        };
        context.caches.attachments.add_changed(&queue, matters);
        return;
    }
    let attacher = Arc::new(Attacher {
        context: Arc::clone(context),
        finalizer: keys::attacher_finalizer(&context.driver.name),
        forced: Memory::default(),
    });
    let forget = |attacher: &Attacher, key: &Key| _ = attacher.forced.remove(key);
    let queue = context.work_on(tasks, QUEUE, WORKERS, Arc::clone(&attacher), step, forget);
    let volume_queue =
        context.work_on(tasks, "csi-attacher-pv", WORKERS, Arc::clone(&attacher), release_volume, |_, _| {});
    let caches = &context.caches;
    let this = Arc::clone(&attacher);
    let matters = move |before: Option<&Attachment>, now: &Attachment| {
        this.is_own(now) && before.map_or_else(|| this.has_work(now), |before| has_step(before, now))
    };
    caches.attachments.add_changed(&queue, matters);
    let finalizer = attacher.finalizer.clone();
    let is_released =
        move |_: Option<&Volume>, now: &Volume| now.is_deleting() && now.has_finalizer(&finalizer);
    caches.volumes.add_changed(&volume_queue, is_released);
    caches.add_detached(volume_queue);
    tasks.spawn(attacher.reconcile(queue));
}

/// Errors, finalizers and annotations are written by the part itself. If they had a step, failures would be repeated
/// without a pause.
fn has_step(before: &Attachment, now: &Attachment) -> bool {
    before.uid() != now.uid()
        || before.is_deleting() != now.is_deleting()
        || before.status.attached != now.status.attached
        || before.status.attachment_metadata != now.status.attachment_metadata
}

async fn step(attacher: Arc<Attacher>, attachment: Arc<Attachment>) -> Result<Next> {
    if !attacher.is_own(&attachment) {
        return Ok(Next::Done);
    }
    let key = Key::of(&*attachment);
    let is_forced = attacher.forced.remove(&key).is_some();
    let is_detach = attachment.is_deleting();
    if !attacher.has_work(&attachment) && !is_forced {
        return Ok(Next::Done);
    }
    let done =
        if is_detach { attacher.detach(&attachment).await } else { attacher.attach(&attachment).await };
    if done.is_err() && is_forced {
        attacher.forced.set(key, ());
    }
    done.map(|()| Next::Done)
}

/// Removes the finalizer of a volume that is deleted and that no attachment names. Who deletes the volume's data removes it
/// too.
async fn release_volume(attacher: Arc<Attacher>, volume: Arc<Volume>) -> Result<Next> {
    let attachments = &attacher.context.caches.attachments;
    let is_named = || attachments.find(|attachment| attachment.volume() == Some(volume.name())).is_some();
    let is_kept = volume.has_finalizer(&attacher.finalizer) && !volume.has_finalizer(keys::VOLUME_FINALIZER);
    if volume.is_deleting() && is_kept && !is_named() {
        attacher.context.attacher.remove_finalizers(&*volume, &[&attacher.finalizer]).await?;
    }
    Ok(Next::Done)
}

/// For a driver that publishes nothing: Kubernetes waits until its attachments are marked as attached.
async fn mark(context: Arc<Context>, attachment: Arc<Attachment>) -> Result<Next> {
    if !attachment.status.attached && !attachment.is_deleting() {
        context.attacher.patch(&*attachment, json!({ "status": { "attached": true } })).await?;
    }
    Ok(Next::Done)
}

impl Attacher {
    fn is_own(&self, attachment: &Attachment) -> bool {
        *attachment.spec.attacher == *self.context.driver.name
    }

    /// Whether it is to be attached or detached, apart from what the driver's list says.
    fn has_work(&self, attachment: &Attachment) -> bool {
        let is_detach = attachment.is_deleting();
        if is_detach { attachment.has_finalizer(&self.finalizer) } else { !attachment.status.attached }
    }

    /// The id by which the driver registered on the node.
    fn registered_node_id(&self, attachment: &Attachment) -> Result<String> {
        let node = &attachment.spec.node_name;
        let registered = self.context.caches.csi_nodes.named(node);
        let registered = registered.ok_or_else(|| invalid!("csinode.storage.k8s.io {node:?} not found"))?;
        let driver = &self.context.driver.name;
        let registered = registered.driver(driver).map(|driver| driver.node_id.clone());
        registered.ok_or_else(|| invalid!("CSINode {node} does not contain driver {driver}"))
    }

    /// The id of the attachment's node, also after the node or the driver on it is gone.
    fn node_id(&self, attachment: &Attachment) -> Result<String> {
        let recorded = attachment.annotation(keys::ATTACHED_NODE_ID);
        self.registered_node_id(attachment).or_else(|error| recorded.map(str::to_owned).ok_or(error))
    }
}

fn volume_name(attachment: &Attachment) -> Result<&str> {
    attachment.volume().ok_or_else(|| {
        invalid!("neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source")
    })
}

/// An error for the status. The code is that of the driver's answer; without one, an older code is removed.
fn status_error(error: &Error, code: Option<Code>) -> Value {
    let mut message = error.to_string();
    // What Kubernetes takes.
    while message.len() > 1024 {
        message.pop();
    }
    json!({ "message": message, "time": now(), "errorCode": code.map(|code| code as i32) })
}
