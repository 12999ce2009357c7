//! ControllerPublishVolume and ControllerUnpublishVolume, as the attacher calls them.

use csi_proto::ControllerCapability::{
    CreateDeleteVolume, GetVolume, ListVolumes, ListVolumesPublishedNodes, PublishReadonly,
    PublishUnpublishVolume,
};
use csi_proto::v1;
use tonic::Code;
use v1::volume_capability::access_mode::Mode;

use super::paging::listed_volume;
use crate::content;
use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::{Outcome, check};
use crate::life::VolumeLifecycle;

crate::test::tests! { "controller-publish", "Controller Service RPC: ControllerPublishVolume, ControllerUnpublishVolume";
    Must "Repeating ControllerPublishVolume and ControllerUnpublishVolume is OK", idempotent, ["controller-publish-volume.repeated-is-ok", "controller-unpublish-volume.not-attached-is-ok"], [Controller(PublishUnpublishVolume), Controller(CreateDeleteVolume), NodeService];
    Must "A volume or node that does not exist is NOT_FOUND", not_found, ["controller-publish-volume.volume-missing", "controller-publish-volume.node-missing"], [Controller(PublishUnpublishVolume), Controller(CreateDeleteVolume), NodeService];
    Must "The same node with different arguments is ALREADY_EXISTS", incompatible, ["controller-publish-volume.differs-is-already-exists"], [Controller(PublishUnpublishVolume), Controller(PublishReadonly), Controller(CreateDeleteVolume), NodeService];
    Must "A single-node volume is not attached to a second node", second_node, ["controller-publish-volume.on-another-node"], [Controller(PublishUnpublishVolume), Controller(CreateDeleteVolume), NodeService];
    Must "Detaching a volume from a node that it is not attached to leaves it attached to its own", other_node_stays, ["controller-unpublish-volume.not-attached-is-ok", "controller-publish-volume.on-another-node"], [Controller(PublishUnpublishVolume), Controller(CreateDeleteVolume), NodeService];
    Must "An attached volume is listed with its node", listed_with_node, ["list-volumes.published-nodes"], [Controller(ListVolumesPublishedNodes), Controller(ListVolumes), Controller(CreateDeleteVolume), NodeService];
    Must "ControllerGetVolume returns the node of an attached volume", told_with_node, ["controller-get-volume.published-nodes"], [Controller(ListVolumesPublishedNodes), Controller(GetVolume), Controller(CreateDeleteVolume), NodeService];
    Practice "A detached volume has no node, in ListVolumes and ControllerGetVolume: the attacher repairs differences", no_node_left, ["list-volumes.published-nodes", "controller-get-volume.published-nodes"], [Controller(ListVolumesPublishedNodes), Controller(PublishUnpublishVolume), Controller(CreateDeleteVolume), NodeService];
    Should "The refusal of a second node names the first", names_the_node, ["controller-publish-volume.on-another-node"], [SecondNode, Controller(PublishUnpublishVolume), Controller(CreateDeleteVolume), NodeService];
    Must "A single-node volume is refused on a second node; after detaching it can move", moves, ["controller-publish-volume.on-another-node", "controller-unpublish-volume.all-nodes"], [SecondNode, Controller(PublishUnpublishVolume), Controller(CreateDeleteVolume), NodeService];
    Must "A filesystem that is attached read-only refuses writes", read_only = takes_no_writes(Files), ["controller-publish-volume.readonly"], [Volume(Files), Mounts, Controller(PublishUnpublishVolume), Controller(PublishReadonly)];
    Must "A raw device that is attached read-only refuses writes", device_read_only = takes_no_writes(Device), ["controller-publish-volume.readonly"], [Volume(Device), Mounts, Controller(PublishUnpublishVolume), Controller(PublishReadonly)];
    Must "A node accepts as many volumes as it reports; one more is RESOURCE_EXHAUSTED", limit, ["controller-publish-volume.limit", "node-get-info.max-volumes"], [AttachLimit, Controller(PublishUnpublishVolume), Controller(CreateDeleteVolume), NodeService];
    Must "Detaching from all nodes is OK", from_all_nodes, ["controller-unpublish-volume.all-nodes"], [Controller(PublishUnpublishVolume), Controller(CreateDeleteVolume), NodeService];
}

async fn life(ctx: &TestContext) -> Outcome<VolumeLifecycle> {
    VolumeLifecycle::new(ctx, ctx.any_kind()).await
}

async fn idempotent(ctx: &TestContext) -> Outcome {
    let life = life(ctx).await?;
    let first = ctx.ok(life.controller_publish_volume()).await?;
    let again = ctx.ok(life.controller_publish_volume()).await?;
    check(first == again, "the same publish_context", || format!("{again:?} after {first:?}"))?;
    ctx.ok(life.controller_unpublish_volume()).await?;
    ctx.ok(life.controller_unpublish_volume()).await.map(drop)
}

async fn not_found(ctx: &TestContext) -> Outcome {
    let life = life(ctx).await?;
    let other =
        v1::ControllerPublishVolumeRequest { volume_id: ctx.name(), ..life.controller_publish_volume() };
    ctx.refused(other, &[Code::NotFound], "the volume does not exist").await?;
    let other =
        v1::ControllerPublishVolumeRequest { node_id: ctx.name(), ..life.controller_publish_volume() };
    ctx.refused(other, &[Code::NotFound], "the node does not exist").await
}

async fn incompatible(ctx: &TestContext) -> Outcome {
    let life = life(ctx).await?;
    ctx.ok(life.controller_publish_volume()).await?;
    let other = v1::ControllerPublishVolumeRequest { readonly: true, ..life.controller_publish_volume() };
    ctx.refused(other, &[Code::AlreadyExists], "it is already attached for writing").await
}

/// The id of a node that does not exist.
fn no_node(ctx: &TestContext) -> String {
    format!("{}-csi-conformance", ctx.offers.node_id)
}

async fn second_node(ctx: &TestContext) -> Outcome {
    let capability = ctx.capability_in(ctx.any_kind(), Mode::SingleNodeWriter);
    let life = VolumeLifecycle::of(ctx, capability).await?;
    ctx.ok(life.controller_publish_volume()).await?;
    let node_id = no_node(ctx);
    let second = v1::ControllerPublishVolumeRequest { node_id, ..life.controller_publish_volume() };
    let due = [Code::FailedPrecondition, Code::NotFound];
    ctx.refused(second, &due, "it is attached to another node, or the node does not exist").await
}

async fn nodes_of(ctx: &TestContext, id: &str) -> Outcome<Vec<String>> {
    let found = listed_volume(ctx, id).await?;
    Ok(found.and_then(|one| one.status).map(|status| status.published_node_ids).unwrap_or_default())
}

/// The nodes of the volume, as ControllerGetVolume returns them.
async fn nodes_of_one(ctx: &TestContext, id: &str) -> Outcome<Vec<String>> {
    let answer = ctx.ok(v1::ControllerGetVolumeRequest { volume_id: id.to_owned() }).await?;
    Ok(answer.status.map(|status| status.published_node_ids).unwrap_or_default())
}

/// The spec allows other nodes next to this one.
fn has_this_node(ctx: &TestContext, nodes: &[String]) -> Outcome {
    let has = nodes.contains(&ctx.offers.node_id);
    check(has, "the node that the volume is attached to", || format!("{nodes:?}"))
}

async fn listed_with_node(ctx: &TestContext) -> Outcome {
    let life = life(ctx).await?;
    ctx.ok(life.controller_publish_volume()).await?;
    has_this_node(ctx, &nodes_of(ctx, &life.volume_id).await?)
}

async fn no_node_left(ctx: &TestContext) -> Outcome {
    let life = life(ctx).await?;
    ctx.ok(life.controller_publish_volume()).await?;
    ctx.ok(life.controller_unpublish_volume()).await?;
    let mut nodes = Vec::new();
    if ctx.offers.controller(ListVolumes) {
        nodes.extend(nodes_of(ctx, &life.volume_id).await?);
    }
    if ctx.offers.controller(GetVolume) {
        nodes.extend(nodes_of_one(ctx, &life.volume_id).await?);
    }
    check(nodes.is_empty(), "no node, because the volume was detached", || format!("{nodes:?}"))
}

async fn from_all_nodes(ctx: &TestContext) -> Outcome {
    let life = life(ctx).await?;
    let lists = [ListVolumesPublishedNodes, ListVolumes].into_iter().all(|one| ctx.offers.controller(one));
    ctx.ok(life.controller_publish_volume()).await?;
    ctx.ok(life.controller_unpublish_volume()).await?;
    // A list is allowed to have nodes that the volume is not attached to. Then it shows nothing here.
    let is_exact = lists && nodes_of(ctx, &life.volume_id).await?.is_empty();
    ctx.ok(life.controller_publish_volume()).await?;
    let request =
        v1::ControllerUnpublishVolumeRequest { node_id: String::new(), ..life.controller_unpublish_volume() };
    ctx.ok(request.clone()).await?;
    let nodes = if is_exact { nodes_of(ctx, &life.volume_id).await? } else { vec![] };
    let due = "a volume that is attached to no node";
    ctx.check(&request, nodes.is_empty(), due, || format!("still attached to {nodes:?}"))?;
    ctx.ok(life.delete_volume()).await.map(drop)
}

async fn told_with_node(ctx: &TestContext) -> Outcome {
    let life = life(ctx).await?;
    ctx.ok(life.controller_publish_volume()).await?;
    has_this_node(ctx, &nodes_of_one(ctx, &life.volume_id).await?)
}

fn on_second_node(ctx: &TestContext, life: &VolumeLifecycle) -> v1::ControllerPublishVolumeRequest {
    let node_id = ctx.offers.second_node_id.clone().unwrap_or_default();
    v1::ControllerPublishVolumeRequest { node_id, ..life.controller_publish_volume() }
}

/// The attacher detaches the volume from the node of a pod that never started, while another node uses it.
async fn other_node_stays(ctx: &TestContext) -> Outcome {
    let life = VolumeLifecycle::of(ctx, ctx.capability_in(ctx.any_kind(), Mode::SingleNodeWriter)).await?;
    ctx.ok(life.controller_publish_volume()).await?;
    let node_id = ctx.offers.second_node_id.clone().unwrap_or_else(|| no_node(ctx));
    let other = v1::ControllerUnpublishVolumeRequest { node_id, ..life.controller_unpublish_volume() };
    ctx.ok_or(other, &[Code::NotFound], "OK, or NotFound for a node that does not exist").await?;
    if ctx.offers.second_node_id.is_some() {
        let second = on_second_node(ctx, &life);
        ctx.refused(second, &[Code::FailedPrecondition], "it is still attached to another node").await?;
    }
    if [ListVolumesPublishedNodes, ListVolumes].into_iter().all(|one| ctx.offers.controller(one)) {
        has_this_node(ctx, &nodes_of(ctx, &life.volume_id).await?)?;
    }
    if ctx.offers.controller(PublishReadonly) {
        let request = life.controller_publish_volume();
        let other = v1::ControllerPublishVolumeRequest { readonly: true, ..request };
        ctx.refused(other, &[Code::AlreadyExists], "it is still attached for writing").await?;
    }
    ctx.ok(life.controller_unpublish_volume()).await.map(drop)
}

async fn names_the_node(ctx: &TestContext) -> Outcome {
    let life = VolumeLifecycle::of(ctx, ctx.capability_in(ctx.any_kind(), Mode::SingleNodeWriter)).await?;
    let first = &ctx.offers.node_id;
    ctx.ok(life.controller_publish_volume()).await?;
    let second = on_second_node(ctx, &life);
    let due = format!("a refusal with the name of {first}");
    match ctx.call(second.clone()).await {
        Err(refusal) if refusal.message.contains(first) => Ok(()),
        Err(refusal) => Err(ctx.failure(&second, ctx.refusal_text(&refusal), due)),
        Ok(answer) => Err(ctx.failure(&second, format!("OK: {answer:?}"), due)),
    }
}

async fn moves(ctx: &TestContext) -> Outcome {
    let life = VolumeLifecycle::of(ctx, ctx.capability_in(ctx.any_kind(), Mode::SingleNodeWriter)).await?;
    let second = on_second_node(ctx, &life);
    ctx.ok(life.controller_publish_volume()).await?;
    ctx.refused(second.clone(), &[Code::FailedPrecondition], "it is attached to another node").await?;
    ctx.ok(life.controller_unpublish_volume()).await?;
    ctx.ok(second).await?;
    ctx.ok(v1::ControllerUnpublishVolumeRequest {
        node_id: String::new(),
        ..life.controller_unpublish_volume()
    })
    .await?;
    ctx.ok(life.controller_publish_volume()).await.map(drop)
}

/// A volume with a filesystem that is attached read-only, and then published without `readonly`.
async fn takes_no_writes(ctx: &TestContext, kind: Kind) -> Outcome {
    let (mut life, target) = VolumeLifecycle::published(ctx, kind).await?;
    life.leave(&target).await?;
    let attach = v1::ControllerPublishVolumeRequest { readonly: true, ..life.controller_publish_volume() };
    life.publish_context = ctx.ok(attach.clone()).await?.publish_context;
    life.make_staging_directory()?;
    let is_staged = !life.stages() || ctx.call(life.node_stage_volume()).await.is_ok();
    if !is_staged || ctx.call(life.node_publish_volume(&target)).await.is_err() {
        // A refusal by the node is fine too: nothing can be written.
        return Ok(());
    }
    content::size(&target, kind).await?;
    let wrote = content::takes_writes(&target, kind).await?;
    life.leave(&target).await?;
    let came = || "a write through the target succeeded on the node".to_owned();
    ctx.check(&attach, !wrote, "a volume that refuses writes", came)
}

async fn limit(ctx: &TestContext) -> Outcome {
    let mut last = life(ctx).await?;
    for _ in 0..ctx.offers.max_volumes {
        ctx.ok(last.controller_publish_volume()).await?;
        last = life(ctx).await?;
    }
    let words = format!("NodeGetInfo reports a limit of {}", ctx.offers.max_volumes);
    ctx.refused(last.controller_publish_volume(), &[Code::ResourceExhausted], &words).await
}
