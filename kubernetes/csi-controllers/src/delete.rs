//! Volumes that nobody claims any more: what external-provisioner does when it deletes.
//!
//! DeleteVolume comes first, then the object is deleted, then its finalizer is removed. A process that stops in between
//! leaves an object by which the next one repeats all of it.

use std::sync::Arc;

use csi_kube::Severity;
use csi_proto::ControllerCapability;
use csi_proto::v1::DeleteVolumeRequest;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::context::{CACHE_PAUSE, Context, Room};
use crate::error::{Error, Result, invalid};
use crate::keys::{self, VOLUME_FINALIZER};
use crate::objects::{Attachment, Class, Key, Kind as _, Metadata, SecretReference, Volume};
use crate::provision::Records;
use crate::queue::Next;
use crate::secrets::{self, PROVISIONER};

const WORKERS: usize = 100;

pub(crate) fn start(context: &Arc<Context>, records: Arc<Records>, tasks: &mut JoinSet<()>) {
    let deleter = Deleter { context: Arc::clone(context), records, attachments: LiveAttachments::default() };
    let queue = context.work_on(tasks, "volumes", WORKERS, Arc::new(deleter), step, |_, _| {});
    let driver = context.driver.name.clone();
    let matters = move |before: Option<&Volume>, now: &Volume| {
        decide(now, &driver) != Action::Ignore && before.is_none_or(|before| state(before) != state(now))
    };
    context.caches.volumes.add_changed(&queue, matters);
    context.caches.add_detached(queue);
}

struct Deleter {
    context: Arc<Context>,
    records: Arc<Records>,
    attachments: LiveAttachments,
}

/// The attachments of released volumes as the API server has them, listed once for all deletions that wait for it: the
/// last list, and when it was begun.
#[derive(Default)]
struct LiveAttachments(Mutex<(Option<Instant>, Arc<[Attachment]>)>);

impl LiveAttachments {
    /// A list that was begun after this call.
    async fn read(&self, context: &Context) -> Result<Arc<[Attachment]>> {
        let asked = Instant::now();
        let mut last = self.0.lock().await;
        if last.0.is_none_or(|begun| begun <= asked) {
            let begun = Instant::now();
            let mut attachments: Vec<Attachment> = context.provisioner.list("").await?;
            attachments.retain(|attachment| {
                let volume = attachment.volume().and_then(|name| context.caches.volumes.named(name));
                volume.is_some_and(|volume| volume.is_in("Released"))
            });
            *last = (Some(begun), attachments.into());
        }
        Ok(Arc::clone(&last.1))
    }
}

/// What matters here of a volume: what this part writes itself must not lead to a second call.
fn state(volume: &Volume) -> (&str, &str, bool) {
    let policy = &*volume.spec.persistent_volume_reclaim_policy;
    (&volume.status.phase, policy, volume.has_finalizer(VOLUME_FINALIZER))
}

#[derive(Debug, PartialEq, Eq)]
enum Action {
    Ignore,
    AddFinalizer,
    RemoveFinalizer,
    Delete,
}

fn decide(volume: &Volume, driver: &str) -> Action {
    let is_ours = match volume.annotation(keys::PROVISIONED_BY) {
        Some(provisioner) => provisioner == driver,
        None => volume.source_of(driver).is_some(),
    };
    let is_kept = volume.has_finalizer(VOLUME_FINALIZER);
    match &*volume.spec.persistent_volume_reclaim_policy {
        _ if !is_ours => Action::Ignore,
        "Retain" | "Recycle" if is_kept => Action::RemoveFinalizer,
        "Delete" if volume.is_in("Bound") && !is_kept && !volume.is_deleting() => Action::AddFinalizer,
        // Without the finalizer the volume of a deleting object is deleted already.
        "Delete" if volume.is_in("Released") && (is_kept || !volume.is_deleting()) => Action::Delete,
        _ => Action::Ignore,
    }
}

async fn step(deleter: Arc<Deleter>, volume: Arc<Volume>) -> Result<Next> {
    let context = &*deleter.context;
    let driver = &context.driver.name;
    if let Some(claim) = &volume.spec.claim_ref {
        // Without our finalizer the object can vanish, and then a record has the volume made again. So the record is
        // finished first.
        if deleter.records.get(&claim.uid).is_some() {
            return Ok(Next::After(CACHE_PAUSE));
        }
        deleter.records.settle(&claim.uid).await?;
    }
    if decide(&volume, driver) != Action::Delete {
        let change = |volume: &Volume| {
            Ok(match decide(volume, driver) {
                Action::AddFinalizer => volume.adding_finalizer(VOLUME_FINALIZER),
                Action::RemoveFinalizer => volume.removing_finalizer(VOLUME_FINALIZER),
                Action::Delete | Action::Ignore => None,
            })
        };
        context.provisioner.edit(&*volume, change).await?;
        return Ok(Next::Done);
    }
    let publishes = context.driver.can(ControllerCapability::PublishUnpublishVolume);
    let is_user = |attachment: &Attachment| publishes && attachment.volume() == Some(volume.name());
    if let Some(attachment) = context.caches.attachments.find(is_user) {
        return Ok(wait_for_detach(context, &volume, &attachment));
    }
    // A cache that is behind can have missed that the policy is Retain now, or that the volume is in use.
    let current: Option<Volume> = context.provisioner.read(&Key::of(&*volume)).await?;
    let Some(current) = current.filter(|current| decide(current, driver) == Action::Delete) else {
        return Ok(Next::Done);
    };
    if publishes {
        let attachments = deleter.attachments.read(context).await?;
        if let Some(attachment) = attachments.iter().find(|attachment| is_user(attachment)) {
            return Ok(wait_for_detach(context, &volume, attachment));
        }
    }
    let begun = Instant::now();
    let deleted = delete(context, &current).await;
    let took = matches!(deleted, Ok(Next::Done)).then(|| begun.elapsed());
    let class = current.spec.storage_class_name.to_string();
    context.calls.metrics.deletions.count(&[("class", class)], took);
    deleted
}

async fn delete(context: &Context, volume: &Volume) -> Result<Next> {
    if let Err(error) = delete_storage(context, volume).await {
        context.publish(volume, Severity::Warning, "VolumeFailedDelete", error.to_string());
        return Ok(Next::Again);
    }
    let class = volume.spec.storage_class_name.to_string();
    drop(context.capacity_changed.send(Room { class, segments: volume.segments() }));
    context.provisioner.delete(volume).await?;
    if volume.has_finalizer(VOLUME_FINALIZER) {
        // Kubernetes removes its own at the same time. The attacher's is not needed: no attachment names the volume.
        let finalizers = [VOLUME_FINALIZER, &keys::attacher_finalizer(&context.driver.name)];
        context.provisioner.remove_finalizers(volume, &finalizers).await?;
    }
    Ok(Next::Done)
}

fn wait_for_detach(context: &Context, volume: &Volume, attachment: &Attachment) -> Next {
    let name = volume.name();
    let node = &attachment.spec.node_name;
    let note = format!("persistentvolume {name} is still attached to node {node}, waiting for detach");
    context.publish(volume, Severity::Normal, "VolumeDelete", note);
    Next::Again
}

async fn delete_storage(context: &Context, volume: &Volume) -> Result<()> {
    let driver = &context.driver.name;
    let csi = volume.source_of(driver).ok_or_else(|| invalid!("invalid CSI PV"))?;
    // An administrator can have made a second object, for example for another namespace.
    let shares = |other: &Volume| {
        other.is_in("Bound") && other.name() != volume.name() && other.has_handle(driver, &csi.volume_handle)
    };
    if let Some(other) = context.caches.volumes.find(shares) {
        return Err(invalid!("a claim uses this volume through PersistentVolume {}", other.name()));
    }
    let class = context.caches.classes.named(&volume.spec.storage_class_name);
    let reference = secret(volume, class.as_deref())?;
    let secrets = match secrets::read(&context.provisioner, reference.as_ref()).await {
        Ok(secrets) => secrets,
        Err(Error::Api(error)) if error.is_transient() => return Err(error.into()),
        // The secret can have been deleted before the volume.
        Err(error) => {
            tracing::warn!(volume = volume.name(), "the volume is deleted without its secret: {error}");
            Default::default()
        }
    };
    let request = DeleteVolumeRequest { volume_id: csi.volume_handle.to_string(), secrets };
    context.calls.call(request).await?;
    Ok(())
}

/// The secret for the deletion: the volume's object says which, or that there is none. If it says nothing, the class
/// does, if it still exists.
fn secret(volume: &Volume, class: Option<&Class>) -> Result<Option<SecretReference>> {
    if let Some(noted) = SecretReference::noted(volume, keys::DELETION_SECRET) {
        return Ok(Some(noted).filter(|noted| !noted.is_empty()));
    }
    let (Some(class), Some(claim)) = (class, &volume.spec.claim_ref) else { return Ok(None) };
    let Key { namespace, name } = claim.key();
    let claim = Metadata { namespace, name, ..Metadata::default() };
    secrets::reference(&class.parameters, PROVISIONER, volume.name(), &claim)
}
