//! VolumeSnapshotContents: one snapshot of one volume.

use csi_proto::{ControllerCapability, v1};
use serde_json::{Value, json};

use super::{Content, Names, Parameters, nanoseconds};
use crate::caches::Caches;
use crate::context::Context;
use crate::error::{Result, invalid};
use crate::objects::{ContentSpec, SnapshotContent};

pub(super) const NAMES: Names = Names {
    queue: "csi-snapshotter-content",
    noun: "snapshot",
    owner: "volumesnapshot",
    class: "volumesnapshotclass.snapshot.storage.k8s.io",
    creation_failed: "SnapshotCreationFailed",
    check_failed: "SnapshotContentCheckandUpdateFailed",
    deletion_failed: "SnapshotDeleteError",
    being_created: "snapshot.storage.kubernetes.io/volumesnapshot-being-created",
    being_deleted: "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted",
    finalizer: "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection",
    secret: [
        "snapshot.storage.kubernetes.io/deletion-secret-name",
        "snapshot.storage.kubernetes.io/deletion-secret-namespace",
    ],
    look_up_secret: "snapshotter-list-",
    handle: "snapshotHandle",
    cleared: &["snapshotHandle", "readyToUse", "creationTime", "restoreSize"],
};

impl Content for SnapshotContent {
    const NAMES: Names = NAMES;

    fn class_parameters(caches: &Caches, class: &str) -> Option<(String, Parameters)> {
        let class = caches.snapshot_classes.named(class)?;
        Some((class.driver.clone(), class.parameters.clone()))
    }

    fn spec(&self) -> &ContentSpec {
        &self.spec
    }

    fn status(&self) -> Option<&Value> {
        self.status.as_ref()
    }

    fn has_group(&self) -> bool {
        self.status_text("volumeGroupSnapshotHandle").is_some()
    }

    async fn create(&self, context: &Context, parameters: Parameters, secrets: Parameters) -> Result<Value> {
        let request = v1::CreateSnapshotRequest {
            name: format!("snapshot-{}", self.spec.volume_snapshot_ref.uid),
            source_volume_id: self.spec.source.volume_handle.clone().unwrap_or_default(),
            parameters,
            secrets,
            ..Default::default()
        };
        let answer = context.calls.call(request).await?;
        let snapshot = answer.snapshot.unwrap_or_default();
        Ok(found(&snapshot, &snapshot.snapshot_id, ""))
    }

    async fn look_up(&self, context: &Context, secrets: Parameters) -> Result<Value> {
        let handle = self.handle().unwrap_or_default();
        if !context.driver.can(ControllerCapability::ListSnapshots) {
            // Nobody can say whether it exists.
            let assumed = v1::Snapshot { ready_to_use: true, ..Default::default() };
            return Ok(found(&assumed, handle, ""));
        }
        let request =
            v1::ListSnapshotsRequest { snapshot_id: handle.to_owned(), secrets, ..Default::default() };
        let listed = context.calls.call(request).await?;
        let snapshot = listed.entries.into_iter().find_map(|entry| entry.snapshot);
        let snapshot = snapshot.ok_or_else(|| invalid!("can not find snapshot for snapshotID {handle}"))?;
        let handle = self.spec.source.handle().unwrap_or(handle);
        Ok(found(&snapshot, handle, &snapshot.group_snapshot_id))
    }

    async fn delete(&self, context: &Context, secrets: Parameters) -> Result<()> {
        let snapshot_id = self.handle().unwrap_or_default().to_owned();
        context.calls.call(v1::DeleteSnapshotRequest { snapshot_id, secrets }).await?;
        Ok(())
    }
}

/// The status of a snapshot that was found.
fn found(snapshot: &v1::Snapshot, handle: &str, group: &str) -> Value {
    let mut status = json!({
        "snapshotHandle": handle,
        "readyToUse": snapshot.ready_to_use,
        "creationTime": nanoseconds(snapshot.creation_time.as_ref()),
    });
    if snapshot.size_bytes > 0 {
        status["restoreSize"] = snapshot.size_bytes.into();
    }
    if !group.is_empty() {
        status["volumeGroupSnapshotHandle"] = group.into();
    }
    status
}
