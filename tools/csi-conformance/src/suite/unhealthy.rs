//! An unhealthy volume: in the list, by its own RPC, and in the form of v1.12.0.

use csi_proto::ControllerCapability::{GetVolume, GetVolumeHealth, ListVolumeHealth, ListVolumes};
use csi_proto::v1;

use super::paging::{listed_unhealthy, listed_volume};
use crate::context::TestContext;
use crate::failure::{Outcome, check};

crate::test::tests! { "health", "Volume health of an unhealthy volume";
    Must "The controller reports the problem in each call until it is fixed", entry_stays, ["volume-health.entry-stays", "controller-get-volume-health.current"], [UnhealthyVolume, Controller(GetVolumeHealth)];
    Must "An unhealthy volume is listed with its problem, once in all pages", unwell_is_listed, ["controller-list-volume-health.only-unwell", "controller-list-volume-health.pages"], [UnhealthyVolume, Controller(ListVolumeHealth), Controller(GetVolumeHealth)];
    Must "Callers of 1.12.0 also get the problem, from ListVolumes", condition_is_listed, ["list-volumes.condition"], [UnhealthyVolume, Condition, Controller(ListVolumes)];
    Must "Callers of 1.12.0 also get the problem, from ControllerGetVolume", condition_is_told, ["controller-get-volume.condition"], [UnhealthyVolume, Condition, Controller(GetVolume)];
}

fn id(ctx: &TestContext) -> String {
    ctx.settings.unhealthy_volume.clone().unwrap_or_default()
}

type Entries = Vec<v1::volume_health::VolumeHealthEntry>;

async fn health_entries(ctx: &TestContext) -> Outcome<Entries> {
    let request = v1::ControllerGetVolumeHealthRequest { volume_id: id(ctx), ..Default::default() };
    let health = ctx.ok(request.clone()).await?.volume_health.unwrap_or_default();
    let is_told = health.volume_id == id(ctx) && !health.health_statuses.is_empty();
    ctx.check(&request, is_told, "this volume, with its problem", || format!("{health:?}"))?;
    Ok(health.health_statuses)
}

fn kinds(entries: &Entries) -> std::collections::BTreeSet<(i32, String)> {
    entries.iter().map(|one| (one.status, one.reason.clone())).collect()
}

async fn entry_stays(ctx: &TestContext) -> Outcome {
    let first = health_entries(ctx).await?;
    for _ in 0..3 {
        let again = health_entries(ctx).await?;
        let due = format!("the problem of the previous call: {first:?}");
        check(kinds(&again).is_superset(&kinds(&first)), &due, || format!("{again:?}"))?;
    }
    Ok(())
}

async fn unwell_is_listed(ctx: &TestContext) -> Outcome {
    let mut found = listed_unhealthy(ctx, 1).await?;
    found.retain(|one| one.volume_id == id(ctx));
    check(found.len() == 1, "the volume once in all pages", || format!("{} times", found.len()))?;
    let listed = kinds(&found[0].health_statuses);
    let reported = kinds(&health_entries(ctx).await?);
    check(
        listed == reported,
        &format!("the problem that ControllerGetVolumeHealth reports: {reported:?}"),
        || format!("{listed:?}"),
    )
}

#[allow(deprecated, reason = "callers of 1.12.0 read it")]
async fn condition_is_listed(ctx: &TestContext) -> Outcome {
    let status = listed_volume(ctx, &id(ctx)).await?.and_then(|one| one.status);
    is_abnormal(status.and_then(|status| status.volume_condition).as_ref())
}

#[allow(deprecated, reason = "callers of 1.12.0 read it")]
async fn condition_is_told(ctx: &TestContext) -> Outcome {
    let answer = ctx.ok(v1::ControllerGetVolumeRequest { volume_id: id(ctx) }).await?;
    is_abnormal(answer.status.and_then(|status| status.volume_condition).as_ref())
}

fn is_abnormal(condition: Option<&v1::VolumeCondition>) -> Outcome {
    let is_reported = condition.is_some_and(|condition| condition.abnormal && !condition.message.is_empty());
    check(is_reported, "a volume_condition that is abnormal, with a message", || format!("{condition:?}"))
}
