//! The calls in the order in which the orchestrator's components make them, with the fields that they add.

use csi_proto::ControllerCapability::{CreateDeleteVolume, PublishUnpublishVolume};
use csi_proto::v1;
use tonic::Code;
use v1::plugin_capability::service::Type::{ControllerService, GroupControllerService};

use crate::content;
use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::{Outcome, check};
use crate::life::VolumeLifecycle;

crate::test::tests! { "sequences", "Volume Lifecycle";
    Must "The first calls of sidecars and kubelet: Probe, GetPluginInfo, capabilities, NodeGetInfo", sidecar, ["probe.ready", "node-get-info.served"], [];
    Must "The life cycle of a volume with the calls of provisioner, attacher and kubelet", whole_life = life_of(Files), ["node-publish-volume.usable-as-described"], [Volume(Files)];
    Must "The life cycle of a raw device with the calls of provisioner, attacher and kubelet", whole_life_of_device = life_of(Device), ["node-publish-volume.usable-as-described"], [Volume(Device)];
    Must "Undoing a step that was not done is OK", undo_nothing, ["node-unpublish-volume.repeated-is-ok", "controller-unpublish-volume.not-attached-is-ok"], [AnyVolume];
    Practice "A driver that attaches volumes refuses to delete a volume in use; a refused volume is unchanged", delete_in_use, ["delete-volume.in-use"], [Volume(Files), Controller(CreateDeleteVolume)];
    Practice "Keys that callers add to the volume's context are accepted", added_context, ["node-publish-volume.usable-as-described"], [AnyVolume, Controller(CreateDeleteVolume)];
}

async fn sidecar(ctx: &TestContext) -> Outcome {
    let ready = ctx.ok(v1::ProbeRequest {}).await?.ready;
    check(ready != Some(false), "ready, as before", || "ready=false".into())?;
    ctx.ok(v1::GetPluginInfoRequest {}).await?;
    ctx.ok(v1::GetPluginCapabilitiesRequest {}).await?;
    if ctx.offers.plugin(ControllerService) {
        ctx.ok(v1::ControllerGetCapabilitiesRequest {}).await?;
    }
    if ctx.offers.plugin(GroupControllerService) {
        ctx.ok(v1::GroupControllerGetCapabilitiesRequest {}).await?;
    }
    if ctx.offers.has_node {
        ctx.ok(v1::NodeGetCapabilitiesRequest {}).await?;
    }
    if ctx.offers.has_node && ctx.offers.controller(PublishUnpublishVolume) {
        let again = ctx.ok(v1::NodeGetInfoRequest {}).await?.node_id;
        check(again == ctx.offers.node_id, "the same node_id as before", || again.clone())?;
    }
    Ok(())
}

async fn life_of(ctx: &TestContext, kind: Kind) -> Outcome {
    let mut life = VolumeLifecycle::new(ctx, kind).await?;
    life.prepare().await?;
    let target = life.target();
    ctx.ok(life.node_publish_volume(&target)).await?;
    if ctx.offers.node(csi_proto::NodeCapability::GetVolumeStats) {
        ctx.ok(life.node_get_volume_stats(&target)).await?;
    }
    life.end(&[&target]).await
}

async fn undo_nothing(ctx: &TestContext) -> Outcome {
    let life = VolumeLifecycle::new(ctx, ctx.any_kind()).await?;
    life.end(&[&life.target()]).await
}

async fn delete_in_use(ctx: &TestContext) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, Kind::Files).await?;
    if ctx.sees_mounts() {
        content::write(&target, Kind::Files, b'u').await?;
    }
    let request = life.delete_volume();
    let codes = [Code::FailedPrecondition];
    if ctx.ok_or(request.clone(), &codes, "FailedPrecondition or OK").await?.is_some() {
        // A driver without PUBLISH_UNPUBLISH_VOLUME might not know where its volumes are used.
        let attaches = ctx.offers.controller(PublishUnpublishVolume);
        let due = format!("FailedPrecondition: the volume is attached to {}", ctx.offers.node_id);
        return ctx.check(&request, !attaches, due, || "OK".to_owned());
    }
    if ctx.sees_mounts() {
        content::holds(&target, Kind::Files, b'u').await?;
    }
    ctx.ok(life.node_publish_volume(&target)).await?;
    life.end(&[&target]).await
}

async fn added_context(ctx: &TestContext) -> Outcome {
    let mut life = VolumeLifecycle::new(ctx, ctx.any_kind()).await?;
    life.volume_context.insert(
        "storage.kubernetes.io/csiProvisionerIdentity".into(),
        "1700000000000-8081-conformance".into(),
    );
    life.prepare().await?;
    let target = life.target();
    let mut request = life.node_publish_volume(&target);
    for (key, value) in [
        ("pod.name", "pod"),
        ("pod.namespace", "default"),
        ("pod.uid", "u-1"),
        ("serviceAccount.name", "default"),
        ("ephemeral", "false"),
    ] {
        request.volume_context.insert(format!("csi.storage.k8s.io/{key}"), value.into());
    }
    ctx.ok(request.clone()).await?;
    // The same call after the token was renewed.
    request.volume_context.insert("csi.storage.k8s.io/serviceAccount.tokens".into(), "{}".into());
    ctx.ok(request).await?;
    life.end(&[&target]).await
}
