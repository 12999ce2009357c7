//! The calls of each sidecar, with the fields that it adds, and its repetitions.

use std::collections::BTreeMap;

use csi_proto::ControllerCapability::{
    CreateDeleteSnapshot, CreateDeleteVolume, ExpandVolume, GetVolumeHealth, ListSnapshots, ListVolumeHealth,
    ListVolumes, ListVolumesPublishedNodes, ModifyVolume, PublishUnpublishVolume,
};
use csi_proto::{Rpc, v1};
use tonic::Code;

use super::paging::{listed_snapshots, listed_unhealthy, listed_volume};
use super::snapshots::{cut, request_of_new_volume};
use crate::context::TestContext;
use crate::failure::{Outcome, check, or_nothing};
use crate::life::VolumeLifecycle;
use csi_proto::RpcRequest;

crate::test::tests! { "sequences", "Volume Lifecycle";
    Must "The provisioner creates a volume, with the claim's name in the parameters, and deletes it, each twice", provisioner, ["create-volume.same-name-same-volume", "delete-volume.missing-is-ok"], [Controller(CreateDeleteVolume)];
    Must "The attacher attaches and detaches, each twice, with the provisioner's identity in the context, and checks the list", attacher, ["controller-publish-volume.repeated-is-ok", "controller-unpublish-volume.not-attached-is-ok"], [Controller(PublishUnpublishVolume), Controller(CreateDeleteVolume), NodeService];
    Must "The resizer expands a volume and changes its mutable parameters, each call twice", resizer, ["controller-expand-volume.grows", "controller-modify-volume.repeated-is-ok"], [Controller(ExpandVolume), Controller(CreateDeleteVolume)];
    Must "The health monitor reads the condition of a volume from the list of all, or volume by volume", health_monitor, ["list-volumes.condition", "controller-get-volume.condition"], [HealthMonitor, Controller(CreateDeleteVolume)];
    Must "The health monitor of 1.13.0 reads the unhealthy volumes, and then each volume, twice", health_monitor_of_1_13, ["controller-list-volume-health.pages", "controller-get-volume-health.current"], [Controller(GetVolumeHealth), Controller(CreateDeleteVolume)];
    Must "The snapshotter creates a snapshot, waits until it is ready, and deletes it twice", snapshotter, ["create-snapshot.same-name-same-snapshot", "delete-snapshot.missing-is-ok"], [Controller(CreateDeleteSnapshot)];
}

fn named(keys: &[&str]) -> BTreeMap<String, String> {
    keys.iter().map(|key| (format!("csi.storage.k8s.io/{key}"), "conformance".to_owned())).collect()
}

/// Whether the call with additional parameters is OK. A driver that accepts only its own parameters refuses
/// it; its sidecar must then run without `--extra-create-metadata`.
async fn takes_metadata<C: RpcRequest>(ctx: &TestContext, request: &C) -> Outcome<bool> {
    let due = "OK, or InvalidArgument for unknown parameters";
    Ok(ctx.ok_or(request.clone(), &[Code::InvalidArgument], due).await?.is_some())
}

async fn provisioner(ctx: &TestContext) -> Outcome {
    let mut request = ctx.create(&ctx.name());
    let plain = request.clone();
    request.parameters.extend(named(&["pvc/name", "pvc/namespace", "pv/name"]));
    if !takes_metadata(ctx, &request).await? {
        request = plain;
    }
    let volume = ctx.created(request.clone()).await?;
    let again = ctx.created(request).await?;
    check(again.volume_id == volume.volume_id, "the same volume", || format!("{again:?}"))?;
    ctx.twice(v1::DeleteVolumeRequest { volume_id: volume.volume_id, ..Default::default() }).await
}

async fn attacher(ctx: &TestContext) -> Outcome {
    let mut life = VolumeLifecycle::new(ctx, ctx.any_kind()).await?;
    life.volume_context.insert(
        "storage.kubernetes.io/csiProvisionerIdentity".into(),
        "1700000000000-8081-conformance".into(),
    );
    let compares = [ListVolumes, ListVolumesPublishedNodes].into_iter().all(|one| ctx.offers.controller(one));
    ctx.twice(life.controller_publish_volume()).await?;
    if compares {
        let status = listed_volume(ctx, &life.volume_id).await?.and_then(|one| one.status);
        let has = status.as_ref().is_some_and(|one| one.published_node_ids.contains(&ctx.offers.node_id));
        check(has, "in the list the node that the volume is attached to", || or_nothing(&status))?;
    }
    ctx.twice(life.controller_unpublish_volume()).await?;
    ctx.ok(life.delete_volume()).await.map(drop)
}

/// The resizer names the capability of the volume, and repeats a call whose answer it could not store.
async fn resizer(ctx: &TestContext) -> Outcome {
    let life = VolumeLifecycle::new(ctx, ctx.any_kind()).await?;
    let wanted = life.size().saturating_mul(2);
    for _ in 0..2 {
        // After a smaller size the claim would never be resized.
        ctx.expanded(life.controller_expand_volume(wanted), wanted).await?;
    }
    let mutable_parameters = ctx.settings.mutable_parameters.of(Rpc::ControllerModifyVolume);
    if ctx.offers.controller(ModifyVolume) && !mutable_parameters.is_empty() {
        let volume_id = life.volume_id.clone();
        let request =
            v1::ControllerModifyVolumeRequest { volume_id, mutable_parameters, ..Default::default() };
        ctx.twice(request).await?;
    }
    ctx.ok(life.delete_volume()).await.map(drop)
}

/// It lists the volumes if the driver can, and asks for each of them otherwise. A volume without a condition
/// is an error for it.
#[allow(deprecated, reason = "external-health-monitor reads it")]
async fn health_monitor(ctx: &TestContext) -> Outcome {
    ctx.ok(v1::ProbeRequest {}).await?;
    let life = VolumeLifecycle::new(ctx, ctx.any_kind()).await?;
    for _ in 0..2 {
        let condition = if ctx.offers.controller(ListVolumes) {
            let entry = listed_volume(ctx, &life.volume_id).await?;
            entry.and_then(|one| one.status).and_then(|status| status.volume_condition)
        } else {
            let answer = ctx.ok(v1::ControllerGetVolumeRequest { volume_id: life.volume_id.clone() }).await?;
            answer.status.and_then(|status| status.volume_condition)
        };
        let is_told = condition.as_ref().is_some_and(|condition| !condition.message.is_empty());
        check(is_told, "a volume_condition with a message", || or_nothing(&condition))?;
    }
    ctx.ok(life.delete_volume()).await.map(drop)
}

async fn health_monitor_of_1_13(ctx: &TestContext) -> Outcome {
    ctx.ok(v1::ProbeRequest {}).await?;
    let life = VolumeLifecycle::new(ctx, ctx.any_kind()).await?;
    for _ in 0..2 {
        if ctx.offers.controller(ListVolumeHealth) {
            listed_unhealthy(ctx, 0).await?;
        }
        let request =
            v1::ControllerGetVolumeHealthRequest { volume_id: life.volume_id.clone(), ..Default::default() };
        let health = ctx.ok(request.clone()).await?.volume_health.unwrap_or_default();
        check(health.volume_id == life.volume_id, "the health of this volume", || format!("{health:?}"))?;
    }
    ctx.ok(life.delete_volume()).await.map(drop)
}

async fn snapshotter(ctx: &TestContext) -> Outcome {
    let mut request = request_of_new_volume(ctx).await?;
    let plain = request.clone();
    let keys = ["volumesnapshot/name", "volumesnapshot/namespace", "volumesnapshotcontent/name"];
    request.parameters.extend(named(&keys));
    if !takes_metadata(ctx, &request).await? {
        request = plain;
    }
    let snapshot_id = cut(ctx, request).await?.snapshot_id;
    if ctx.offers.controller(ListSnapshots) {
        let by_id = v1::ListSnapshotsRequest { snapshot_id: snapshot_id.clone(), ..Default::default() };
        let found = listed_snapshots(ctx, by_id).await?;
        let is_ready = found.first().is_some_and(|one| one.ready_to_use);
        check(is_ready, "the snapshot, ready to use, in the list", || format!("{found:?}"))?;
    }
    ctx.twice(v1::DeleteSnapshotRequest { snapshot_id, ..Default::default() }).await
}
