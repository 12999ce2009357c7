//! Attach and detach: ControllerPublishVolume and ControllerUnpublishVolume, and what is written before and after them.

use std::collections::BTreeMap;

use csi_proto::v1::volume_capability::AccessType;
use csi_proto::{ControllerCapability, v1};
use serde_json::{Map, Value, json};

use super::{Attacher, status_error, volume_name};
use crate::capability::merged_capability;
use crate::error::{Error, Result, ensure, invalid};
use crate::objects::{Attachment, Kind as _, Pairs, Volume};
use crate::{keys, secrets};

impl Attacher {
    pub(super) async fn attach(&self, attachment: &Attachment) -> Result<()> {
        let publish_context = match self.publish(attachment).await {
            Ok(publish_context) => publish_context,
            Err(error) => {
                let status = json!({ "attachError": status_error(&error, error.code()) });
                self.report(attachment, status).await;
                return Err(error);
            }
        };
        let before = &attachment.status.attachment_metadata;
        let status = json!({
            "attached": true,
            "attachmentMetadata": replacement(before, publish_context),
            "attachError": null,
        });
        self.context.attacher.patch(attachment, json!({ "status": status })).await.map(drop)
    }

    async fn report(&self, attachment: &Attachment, status: Value) {
        let written = self.context.attacher.patch(attachment, json!({ "status": status })).await;
        if let Err(unwritten) = written {
            tracing::info!("the error of an attachment is not written: {unwritten}");
        }
    }

    /// All that can fail is done before the finalizer, which would keep the attachment.
    async fn publish(&self, attachment: &Attachment) -> Result<BTreeMap<String, String>> {
        let context = &self.context;
        let name = volume_name(attachment)?;
        let volume = context.caches.volumes.named(name);
        let volume = volume.ok_or_else(|| invalid!("persistentvolume {name:?} not found"))?;
        self.keep_volume(&volume).await?;
        let driver = &context.driver.name;
        let source = volume.source_of(driver);
        let source = source
            .ok_or_else(|| invalid!("PersistentVolume {name:?} has no source of the driver {driver}"))?;
        let mut capability = merged_capability(&volume, &context.driver)?;
        if let Some(AccessType::Mount(mount)) = &mut capability.access_type
            && mount.fs_type.is_empty()
        {
            mount.fs_type.clone_from(&context.args.default_fstype);
        }
        let secret = source.controller_publish_secret_ref.as_deref();
        let node_id = self.registered_node_id(attachment)?;
        if attachment.annotation(keys::ATTACHED_NODE_ID).is_some_and(|former| former != node_id) {
            // Another machine has the node's name now, and nothing else detaches the volume from the former one.
            self.unpublish(attachment).await?;
        }
        let request = v1::ControllerPublishVolumeRequest {
            volume_id: source.volume_handle.to_string(),
            node_id,
            volume_capability: Some(capability),
            // The driver is not asked for what it can't do.
            readonly: source.read_only && context.driver.can(ControllerCapability::PublishReadonly),
            secrets: secrets::read(&context.attacher, secret).await?,
            volume_context: source.volume_attributes.to_map(),
        };
        self.record(attachment, &request).await?;
        let answer = context.calls.call(request).await?;
        Ok(answer.publish_context)
    }

    /// The volume's finalizer: its object stays until it is detached.
    async fn keep_volume(&self, volume: &Volume) -> Result<()> {
        let name = volume.name();
        let adding = |volume: &Volume| {
            ensure!(!volume.is_deleting(), "PersistentVolume {name:?} is marked for deletion");
            Ok(volume.adding_finalizer(&self.finalizer))
        };
        let kept = self.context.attacher.edit(volume, adding).await?;
        ensure!(kept.is_some(), "persistentvolume {name:?} not found");
        Ok(())
    }

    /// What the detach needs, written before the call: the finalizer and the ids.
    async fn record(
        &self,
        attachment: &Attachment,
        request: &v1::ControllerPublishVolumeRequest,
    ) -> Result<()> {
        let volume_key = keys::attached_volume(&self.context.driver.name);
        let ids = [(keys::ATTACHED_NODE_ID, &request.node_id), (&*volume_key, &request.volume_id)];
        let recording = |attachment: &Attachment| {
            ensure!(!attachment.is_deleting(), "the VolumeAttachment is marked for deletion");
            let mut patch = attachment.adding_finalizer(&self.finalizer).unwrap_or_default();
            for (key, id) in ids {
                if attachment.annotation(key) != Some(id) {
                    patch["metadata"]["annotations"][key] = json!(id);
                }
            }
            Ok(Some(patch).filter(|patch| !patch.is_null()))
        };
        let recorded = self.context.attacher.edit(attachment, recording).await?;
        ensure!(recorded.is_some(), "the VolumeAttachment was deleted");
        Ok(())
    }

    pub(super) async fn detach(&self, attachment: &Attachment) -> Result<()> {
        if let Err(error) = self.unpublish(attachment).await {
            self.report(attachment, json!({ "detachError": status_error(&error, None) })).await;
            return Err(error);
        }
        self.release(attachment).await
    }

    async fn unpublish(&self, attachment: &Attachment) -> Result<()> {
        // Another machine can have the node's name since.
        let recorded = attachment.annotation(keys::ATTACHED_NODE_ID).map(str::to_owned);
        let node_id = recorded.map_or_else(|| self.registered_node_id(attachment), Ok)?;
        let name = volume_name(attachment)?;
        let volume = self.context.caches.volumes.named(name);
        let driver = &self.context.driver.name;
        let source = volume.as_ref().and_then(|volume| volume.source_of(driver));
        // Another volume can have the name since.
        let recorded = attachment.annotation(&keys::attached_volume(driver));
        let volume_id = recorded.or(source.map(|source| &*source.volume_handle));
        let volume_id = volume_id.ok_or_else(|| invalid!("persistentvolume {name:?} not found"))?.to_owned();
        let source = source.filter(|source| *source.volume_handle == *volume_id);
        let reference = source.and_then(|source| source.controller_publish_secret_ref.as_deref());
        let secrets = match secrets::read(&self.context.attacher, reference).await {
            // Without it the attachment would stay for ever. The driver says whether it can do without.
            Err(Error::Invalid(error)) => {
                tracing::info!(attachment = attachment.name(), "detach without a secret: {error}");
                BTreeMap::new()
            }
            read => read?,
        };
        let request = v1::ControllerUnpublishVolumeRequest { volume_id, node_id, secrets };
        self.context.calls.call(request).await?;
        Ok(())
    }

    /// The finalizer is removed before the status is written: a crash between the two must not detach twice. The API
    /// server deletes an attachment without finalizers at once, and then no status is left to be written.
    async fn release(&self, attachment: &Attachment) -> Result<()> {
        let removing = |attachment: &Attachment| Ok(attachment.removing_finalizer(&self.finalizer));
        let released = self.context.attacher.edit(attachment, removing).await?;
        let Some(released) = released.filter(|released| !released.metadata.finalizers.is_empty()) else {
            return Ok(());
        };
        let status = json!({ "attached": false, "attachmentMetadata": null, "detachError": null });
        let written = self.context.attacher.patch(&released, json!({ "status": status })).await;
        match written {
            Err(Error::Api(error)) if error.is_missing() || error.is_conflict() => Ok(()),
            written => written.map(drop),
        }
    }
}

/// A merge patch that leaves exactly these pairs.
fn replacement(before: &Pairs, now: BTreeMap<String, String>) -> Value {
    if now.is_empty() {
        return Value::Null;
    }
    let mut patch: Map<String, Value> = before.iter().map(|(key, _)| (key.to_owned(), Value::Null)).collect();
    patch.extend(now.into_iter().map(|(key, value)| (key, value.into())));
    Value::Object(patch)
}
