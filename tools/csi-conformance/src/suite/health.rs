//! Health in the forms of v1.13.0 and v1.12.0.

use csi_proto::ControllerCapability::{
    CreateDeleteVolume, GetVolume, GetVolumeHealth, ListVolumeHealth, ListVolumes,
};
use csi_proto::NodeCapability as N;
use csi_proto::v1;
use tonic::Code;

use super::paging::{listed_unhealthy, listed_volume};
use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::{Outcome, check, or_nothing};
use crate::life::{VolumeLifecycle, text};

crate::test::tests! { "health", "Volume health: ControllerGetVolumeHealth, ControllerListVolumeHealth, NodeGetVolumeHealth, NodeGetStorageHealth";
    Must "The controller reports the health of a volume; a volume that does not exist is NOT_FOUND", controller, ["controller-get-volume-health.current", "controller-get-volume-health.missing"], [Controller(GetVolumeHealth), Controller(CreateDeleteVolume)];
    Practice "Callers of 1.12.0 also get a new volume as healthy", condition, ["list-volumes.condition", "controller-get-volume.condition"], [Condition, Controller(CreateDeleteVolume)];
    Must "An unknown token for the list of unhealthy volumes is ABORTED", bad_token, ["controller-list-volume-health.pages"], [Controller(ListVolumeHealth)];
    Must "Callers of 1.12.0 also get the condition of a published volume", condition_of_published, ["node-get-volume-stats.condition"], [NodeCondition, Volume(Files)];
    Must "The node does not report a volume that does not exist as healthy: it is NOT_FOUND, or a problem", node_missing, ["node-get-volume-health.missing"], [Node(N::GetVolumeHealth), Volume(Files)];
    Must "Only unhealthy volumes are listed", listed, ["controller-list-volume-health.only-unwell"], [Controller(ListVolumeHealth), Controller(CreateDeleteVolume)];
    Practice "The node reports a published volume as healthy", node, ["node-get-volume-health.current"], [Node(N::GetVolumeHealth), Volume(Files)];
    Must "The node reports the health of its backends, and the same when called again", storage, ["node-get-storage-health.unique"], [Node(N::GetStorageHealth)];
}

async fn controller(ctx: &TestContext) -> Outcome {
    let volume_id = ctx.volume().await?.volume_id;
    let request = v1::ControllerGetVolumeHealthRequest { volume_id: volume_id.clone(), ..Default::default() };
    let health = ctx.ok(request.clone()).await?.volume_health.unwrap_or_default();
    ctx.check(&request, health.volume_id == volume_id, "this volume", || format!("{health:?}"))?;
    let unknown = v1::ControllerGetVolumeHealthRequest { volume_id: ctx.name(), ..request };
    ctx.refused(unknown, &[Code::NotFound], "the volume does not exist").await
}

async fn listed(ctx: &TestContext) -> Outcome {
    let volume_id = ctx.volume().await?.volume_id;
    let request = v1::ControllerGetVolumeHealthRequest { volume_id: volume_id.clone(), ..Default::default() };
    let own = ctx.ok(request).await?.volume_health.unwrap_or_default();
    let all = listed_unhealthy(ctx, 0).await?;
    let is_well = |one: &&v1::VolumeHealth| {
        one.health_statuses.is_empty() || (one.volume_id == volume_id && own.health_statuses.is_empty())
    };
    let well = all.iter().find(is_well);
    check(well.is_none(), "only unhealthy volumes", || or_nothing(&well))
}

async fn bad_token(ctx: &TestContext) -> Outcome {
    let request = v1::ControllerListVolumeHealthRequest {
        max_entries: 1,
        starting_token: "csi-conformance-no-token".into(),
        ..Default::default()
    };
    ctx.refused(request, &[Code::Aborted], "the driver did not issue this token").await
}

#[allow(deprecated, reason = "callers of 1.12.0 read it")]
async fn condition(ctx: &TestContext) -> Outcome {
    let id = ctx.volume().await?.volume_id;
    let mut told = Vec::new();
    if ctx.offers.controller(ListVolumes) {
        let status = listed_volume(ctx, &id).await?.and_then(|one| one.status);
        told.push(("ListVolumes", status.and_then(|status| status.volume_condition)));
    }
    if ctx.offers.controller(GetVolume) {
        let answer = ctx.ok(v1::ControllerGetVolumeRequest { volume_id: id }).await?;
        told.push(("ControllerGetVolume", answer.status.and_then(|status| status.volume_condition)));
    }
    for (rpc, condition) in told {
        let well = condition.as_ref().is_some_and(|condition| !condition.abnormal);
        check(well, &format!("from {rpc} a volume_condition that is not abnormal"), || {
            or_nothing(&condition)
        })?;
    }
    Ok(())
}

#[allow(deprecated, reason = "callers of 1.12.0 read it")]
async fn condition_of_published(ctx: &TestContext) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, Kind::Files).await?;
    let condition = ctx.ok(life.node_get_volume_stats(&target)).await?.volume_condition;
    check(condition.is_some(), "a volume_condition", || or_nothing(&condition))?;
    life.end(&[&target]).await
}

async fn node_missing(ctx: &TestContext) -> Outcome {
    let life = VolumeLifecycle::with(
        ctx,
        ctx.capability(Kind::Files),
        v1::Volume { volume_id: ctx.name(), ..Default::default() },
    );
    let request = v1::NodeGetVolumeHealthRequest {
        volume_publish_path: text(&life.target()),
        volume_id: life.volume_id.clone(),
        ..Default::default()
    };
    let due = "NotFound, or an entry with the problem";
    let Some(answer) = ctx.ok_or(request.clone(), &[Code::NotFound], due).await? else { return Ok(()) };
    // Not every node can tell that a volume does not exist.
    let is_told = answer.volume_health.as_ref().is_some_and(|health| !health.health_statuses.is_empty());
    ctx.check(&request, is_told, due, || format!("{answer:?}"))
}

async fn node(ctx: &TestContext) -> Outcome {
    let (life, target) = VolumeLifecycle::published(ctx, Kind::Files).await?;
    let request = v1::NodeGetVolumeHealthRequest {
        volume_id: life.volume_id.clone(),
        volume_publish_path: text(&target),
        ..Default::default()
    };
    let health = ctx.ok(request.clone()).await?.volume_health.unwrap_or_default();
    let is_well = health.volume_id == life.volume_id && health.health_statuses.is_empty();
    ctx.check(&request, is_well, "this volume, without problems", || format!("{health:?}"))?;
    life.end(&[&target]).await
}

async fn storage(ctx: &TestContext) -> Outcome {
    let first = ctx.ok(v1::NodeGetStorageHealthRequest::default()).await?;
    let whole = first.backend_health.iter().all(|one| one.status != 0 && !one.reason.is_empty());
    check(whole, "each with a status and a reason", || format!("{first:?}"))?;
    let again = ctx.ok(v1::NodeGetStorageHealthRequest::default()).await?;
    let kinds = |answer: &v1::NodeGetStorageHealthResponse| {
        let mut all: Vec<_> =
            answer.backend_health.iter().map(|one| (one.status, one.reason.clone())).collect();
        all.sort();
        all
    };
    let due = format!("the entries of the previous call: {first:?}");
    check(kinds(&first) == kinds(&again), &due, || format!("{again:?}"))
}
