//! An unhealthy volume: in the list, by its own RPC, and in the form of v1.12.0.

use csi_core::ControllerCapability::{GetVolume, GetVolumeHealth, ListVolumeHealth, ListVolumes};
use csi_proto::v1;

use super::paging::{listed_unwell, listed_volume};
use crate::cx::Cx;
use crate::failure::{Outcome, check};

crate::test::tests! { "health", "Volume health of an unhealthy volume";
    "The controller reports the problem in each call until it is fixed", entry_stays, ["volume-health.entry-stays", "controller-get-volume-health.current"], [UnwellVolume, Controller(GetVolumeHealth)];
    "An unhealthy volume is listed with its problem, once in all pages", unwell_is_listed, ["controller-list-volume-health.only-unwell", "controller-list-volume-health.pages"], [UnwellVolume, Controller(ListVolumeHealth), Controller(GetVolumeHealth)];
    "Callers of 1.12.0 also get the problem, from ListVolumes", condition_is_listed, ["list-volumes.condition"], [UnwellVolume, Condition, Controller(ListVolumes)];
    "Callers of 1.12.0 also get the problem, from ControllerGetVolume", condition_is_told, ["controller-get-volume.condition"], [UnwellVolume, Condition, Controller(GetVolume)];
}

fn id(cx: &Cx) -> String {
    cx.settings.unwell_volume.clone().unwrap_or_default()
}

type Entries = Vec<v1::volume_health::VolumeHealthEntry>;

async fn told(cx: &Cx) -> Outcome<Entries> {
    let request = v1::ControllerGetVolumeHealthRequest { volume_id: id(cx), ..Default::default() };
    let health = cx.ok(request.clone()).await?.volume_health.unwrap_or_default();
    if health.volume_id != id(cx) || health.health_statuses.is_empty() {
        return Err(cx.failure(&request, format!("{health:?}"), "this volume, with its problem"));
    }
    Ok(health.health_statuses)
}

fn kinds(entries: &Entries) -> std::collections::BTreeSet<(i32, String)> {
    entries.iter().map(|one| (one.status, one.reason.clone())).collect()
}

async fn entry_stays(cx: &Cx) -> Outcome {
    let first = told(cx).await?;
    for _ in 0..3 {
        let again = told(cx).await?;
        let due = format!("the problem of the previous call: {first:?}");
        check(kinds(&again).is_superset(&kinds(&first)), &due, || format!("{again:?}"))?;
    }
    Ok(())
}

async fn unwell_is_listed(cx: &Cx) -> Outcome {
    let mut found = listed_unwell(cx, 1).await?;
    found.retain(|one| one.volume_id == id(cx));
    check(found.len() == 1, "the volume once in all pages", || format!("{} times", found.len()))?;
    let (listed, told) = (kinds(&found[0].health_statuses), kinds(&told(cx).await?));
    check(listed == told, &format!("the problem that ControllerGetVolumeHealth reports: {told:?}"), || {
        format!("{listed:?}")
    })
}

#[allow(deprecated, reason = "callers of 1.12.0 read it")]
async fn condition_is_listed(cx: &Cx) -> Outcome {
    let status = listed_volume(cx, &id(cx)).await?.and_then(|one| one.status);
    is_abnormal(status.and_then(|status| status.volume_condition).as_ref())
}

#[allow(deprecated, reason = "callers of 1.12.0 read it")]
async fn condition_is_told(cx: &Cx) -> Outcome {
    let answer = cx.ok(v1::ControllerGetVolumeRequest { volume_id: id(cx) }).await?;
    is_abnormal(answer.status.and_then(|status| status.volume_condition).as_ref())
}

fn is_abnormal(condition: Option<&v1::VolumeCondition>) -> Outcome {
    let told = condition.is_some_and(|condition| condition.abnormal && !condition.message.is_empty());
    check(told, "a volume_condition that is abnormal, with a message", || format!("{condition:?}"))
}
