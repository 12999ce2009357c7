//! ControllerPublishVolume and ControllerUnpublishVolume, as the attacher calls them.

use csi_core::ControllerCapability::{
    CreateDeleteVolume, ListVolumes, ListVolumesPublishedNodes, PublishReadonly, PublishUnpublishVolume,
};
use csi_proto::v1;
use tonic::Code;

use crate::cx::Cx;
use crate::failure::{Outcome, check};
use crate::life::Life;

crate::test::tests! { "controller-publish", "Controller Service RPC: ControllerPublishVolume, ControllerUnpublishVolume";
    "Attaching and detaching again are OK", idempotent, ["controller-publish-volume.repeated-is-ok", "controller-unpublish-volume.not-attached-is-ok"], [Controller(PublishUnpublishVolume), Controller(CreateDeleteVolume), NodeService];
    "A volume or node that is not there is NOT_FOUND", not_found, ["controller-publish-volume.volume-missing", "controller-publish-volume.node-missing"], [Controller(PublishUnpublishVolume), Controller(CreateDeleteVolume), NodeService];
    "The same node with other arguments is ALREADY_EXISTS", incompatible, ["controller-publish-volume.differs-is-already-exists"], [Controller(PublishUnpublishVolume), Controller(PublishReadonly), Controller(CreateDeleteVolume), NodeService];
    "A volume for one node is not attached to a second", second_node, ["controller-publish-volume.on-another-node"], [Controller(PublishUnpublishVolume), Controller(CreateDeleteVolume), NodeService];
    "An attached volume is listed with its node, and with none when it is detached", listed_with_node, ["list-volumes.published-nodes"], [Controller(ListVolumesPublishedNodes), Controller(ListVolumes), Controller(CreateDeleteVolume), NodeService];
    "Detaching from all nodes is OK", from_all_nodes, ["controller-unpublish-volume.all-nodes"], [Controller(PublishUnpublishVolume), Controller(CreateDeleteVolume), NodeService];
}

async fn life(cx: &Cx) -> Outcome<Life> {
    Life::new(cx, cx.any_kind()).await
}

async fn idempotent(cx: &Cx) -> Outcome {
    let life = life(cx).await?;
    let first = cx.ok(life.attaching()).await?;
    let again = cx.ok(life.attaching()).await?;
    check(first == again, "the same publish_context", || format!("{again:?} after {first:?}"))?;
    cx.ok(life.detaching()).await?;
    cx.ok(life.detaching()).await.map(drop)
}

async fn not_found(cx: &Cx) -> Outcome {
    let life = life(cx).await?;
    let other = v1::ControllerPublishVolumeRequest { volume_id: cx.name(), ..life.attaching() };
    cx.refused(other, &[Code::NotFound], "there is no such volume").await?;
    let other = v1::ControllerPublishVolumeRequest { node_id: cx.name(), ..life.attaching() };
    cx.refused(other, &[Code::NotFound], "there is no such node").await
}

async fn incompatible(cx: &Cx) -> Outcome {
    let life = life(cx).await?;
    cx.ok(life.attaching()).await?;
    let other = v1::ControllerPublishVolumeRequest { readonly: true, ..life.attaching() };
    cx.refused(other, &[Code::AlreadyExists], "it is attached for writing already").await
}

async fn second_node(cx: &Cx) -> Outcome {
    let capability = cx.capability_in(cx.any_kind(), 1);
    let life = Life::of(cx, capability).await?;
    cx.ok(life.attaching()).await?;
    let second = v1::ControllerPublishVolumeRequest {
        node_id: format!("{}-2", cx.offers.node_id),
        ..life.attaching()
    };
    let due = [Code::FailedPrecondition, Code::NotFound];
    cx.refused(second, &due, "it is on another node, or there is no such node").await
}

async fn nodes_of(cx: &Cx, id: &str) -> Outcome<Vec<String>> {
    let answer = cx.ok(v1::ListVolumesRequest::default()).await?;
    let found = answer
        .entries
        .into_iter()
        .find(|one| one.volume.as_ref().is_some_and(|volume| volume.volume_id == id));
    Ok(found.and_then(|one| one.status).map(|status| status.published_node_ids).unwrap_or_default())
}

async fn listed_with_node(cx: &Cx) -> Outcome {
    let life = life(cx).await?;
    cx.ok(life.attaching()).await?;
    let nodes = nodes_of(cx, &life.id).await?;
    check(nodes == [cx.offers.node_id.clone()], "the node that it is attached to", || format!("{nodes:?}"))?;
    cx.ok(life.detaching()).await?;
    let nodes = nodes_of(cx, &life.id).await?;
    check(nodes.is_empty(), "no node, for it was detached", || format!("{nodes:?}"))
}

async fn from_all_nodes(cx: &Cx) -> Outcome {
    let life = life(cx).await?;
    cx.ok(life.attaching()).await?;
    cx.ok(v1::ControllerUnpublishVolumeRequest { node_id: String::new(), ..life.detaching() }).await?;
    cx.ok(life.deleting()).await.map(drop)
}
