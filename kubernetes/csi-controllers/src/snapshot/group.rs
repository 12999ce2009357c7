//! VolumeGroupSnapshotContents: snapshots of several volumes at one time.

use csi_proto::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{Content, Names, Parameters, nanoseconds};
use crate::caches::Caches;
use crate::context::Context;
use crate::error::{Result, ensure};
use crate::objects::{ContentSpec, GroupContent, Key};

pub(super) const NAMES: Names = Names {
    queue: "csi-snapshotter-groupsnapshotcontent",
    noun: "group snapshot",
    owner: "volumegroupsnapshot",
    class: "volumegroupsnapshotclass.groupsnapshot.storage.k8s.io",
    creation_failed: "GroupSnapshotCreationFailed",
    check_failed: "GroupSnapshotContentCheckandUpdateFailed",
    deletion_failed: "GroupSnapshotDeleteError",
    being_created: "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created",
    being_deleted: "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted",
    finalizer: "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection",
    secret: [
        "groupsnapshot.storage.kubernetes.io/deletion-secret-name",
        "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace",
    ],
    look_up_secret: "group-snapshotter-get-",
    handle: "volumeGroupSnapshotHandle",
    cleared: &["volumeGroupSnapshotHandle", "readyToUse", "creationTime", "error"],
};

impl GroupContent {
    /// The handles of the group's snapshots, without which the driver deletes no group.
    fn members(&self) -> Result<Vec<String>> {
        let created = self.status.as_ref().and_then(|status| status["volumeSnapshotInfoList"].as_array());
        let created = created.into_iter().flatten().filter_map(|member| member["snapshotHandle"].as_str());
        let mut members: Vec<String> = created.map(str::to_owned).collect();
        if members.is_empty() {
            let given = self.spec.source.group_snapshot_handles.iter();
            members = given.flat_map(|given| given.volume_snapshot_handles.clone()).collect();
        }
        ensure!(!members.is_empty(), "No snapshots found in the group snapshot content {}", Key::of(self));
        Ok(members)
    }
}

impl Content for GroupContent {
    const NAMES: Names = NAMES;

    fn class_parameters(caches: &Caches, class: &str) -> Option<(String, Parameters)> {
        let class = caches.group_classes.named(class)?;
        Some((class.driver.clone(), class.parameters.clone()))
    }

    fn spec(&self) -> &ContentSpec {
        &self.spec
    }

    fn status(&self) -> Option<&Value> {
        self.status.as_ref()
    }

    async fn create(&self, context: &Context, parameters: Parameters, secrets: Parameters) -> Result<Value> {
        let request = v1::CreateVolumeGroupSnapshotRequest {
            name: format!("groupsnapshot-{}", self.spec.volume_snapshot_ref.uid),
            source_volume_ids: self.spec.source.volume_handles.clone(),
            parameters,
            secrets,
        };
        let answer = context.calls.call(request).await?;
        let group = answer.group_snapshot.unwrap_or_default();
        Ok(found(&group, &group.group_snapshot_id, &group.snapshots))
    }

    async fn look_up(&self, context: &Context, secrets: Parameters) -> Result<Value> {
        let handle = self.handle().unwrap_or_default();
        let request = v1::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: handle.to_owned(),
            snapshot_ids: self.members()?,
            secrets,
        };
        let answer = context.calls.call(request).await?;
        Ok(found(&answer.group_snapshot.unwrap_or_default(), handle, &[]))
    }

    async fn delete(&self, context: &Context, secrets: Parameters) -> Result<()> {
        let request = v1::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: self.handle().unwrap_or_default().to_owned(),
            snapshot_ids: self.members()?,
            secrets,
        };
        context.calls.call(request).await?;
        Ok(())
    }
}

/// The status of a group that was found.
fn found(group: &v1::VolumeGroupSnapshot, handle: &str, snapshots: &[v1::Snapshot]) -> Value {
    let created = Timestamp::from_nanosecond(nanoseconds(group.creation_time.as_ref()).into());
    let mut status = json!({
        "volumeGroupSnapshotHandle": handle,
        "readyToUse": group.ready_to_use,
        "creationTime": Time(created.unwrap_or_else(|_| Timestamp::now())),
    });
    let members: Vec<Value> = snapshots.iter().map(member).collect();
    if !members.is_empty() {
        status["volumeSnapshotInfoList"] = members.into();
    }
    status
}

fn member(snapshot: &v1::Snapshot) -> Value {
    let mut member = json!({
        "volumeHandle": snapshot.source_volume_id,
        "snapshotHandle": snapshot.snapshot_id,
        "readyToUse": snapshot.ready_to_use,
    });
    if snapshot.creation_time.is_some() {
        member["creationTime"] = nanoseconds(snapshot.creation_time.as_ref()).into();
    }
    if snapshot.size_bytes != 0 {
        member["restoreSize"] = snapshot.size_bytes.into();
    }
    member
}
