//! A volume that something is wrong with: told in the list, one by one, and in the form of 1.12.0 too.

use csi_core::ControllerCapability::{GetVolume, GetVolumeHealth, ListVolumeHealth, ListVolumes};
use csi_proto::v1;

use crate::cx::Cx;
use crate::failure::{Outcome, check};

crate::test::tests! { "health", "Volume health of a volume that is not well";
    "The controller says what is wrong, each time until it is mended", entry_stays, ["volume-health.entry-stays", "controller-get-volume-health.current"], [UnwellVolume, Controller(GetVolumeHealth)];
    "What is not well is listed, with what is wrong, once in all pages", unwell_is_listed, ["controller-list-volume-health.only-unwell", "controller-list-volume-health.pages"], [UnwellVolume, Controller(ListVolumeHealth), Controller(GetVolumeHealth)];
    "Callers of 1.12.0 are told too, by ListVolumes", condition_is_listed, ["list-volumes.condition"], [UnwellVolume, Condition, Controller(ListVolumes)];
    "Callers of 1.12.0 are told too, by ControllerGetVolume", condition_is_told, ["controller-get-volume.condition"], [UnwellVolume, Condition, Controller(GetVolume)];
}

fn id(cx: &Cx) -> String {
    cx.settings.unwell_volume.clone().unwrap_or_default()
}

type Entries = Vec<v1::volume_health::VolumeHealthEntry>;

async fn told(cx: &Cx) -> Outcome<Entries> {
    let request = v1::ControllerGetVolumeHealthRequest { volume_id: id(cx), ..Default::default() };
    let health = cx.ok(request.clone()).await?.volume_health.unwrap_or_default();
    if health.volume_id != id(cx) || health.health_statuses.is_empty() {
        return Err(cx.failure(&request, format!("{health:?}"), "this volume, and what is wrong with it"));
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
        let due = format!("what was wrong a moment ago: {first:?}");
        check(kinds(&again).is_superset(&kinds(&first)), &due, || format!("{again:?}"))?;
    }
    Ok(())
}

async fn unwell_is_listed(cx: &Cx) -> Outcome {
    let (mut found, mut token) = (Vec::new(), String::new());
    for _ in 0..10_000 {
        let request = v1::ControllerListVolumeHealthRequest {
            max_entries: 1,
            starting_token: token,
            ..Default::default()
        };
        let page = cx.ok(request.clone()).await?;
        if page.entries.len() > 1 {
            return Err(cx.failure(&request, format!("{} entries", page.entries.len()), "at most 1"));
        }
        found.extend(page.entries.into_iter().filter(|one| one.volume_id == id(cx)));
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    check(found.len() == 1, "the volume once in all pages", || format!("{} times", found.len()))?;
    let (listed, told) = (kinds(&found[0].health_statuses), kinds(&told(cx).await?));
    check(listed == told, &format!("what ControllerGetVolumeHealth tells: {told:?}"), || {
        format!("{listed:?}")
    })
}

#[allow(deprecated, reason = "it is what callers of 1.12.0 read")]
async fn condition_is_listed(cx: &Cx) -> Outcome {
    let entries = cx.ok(v1::ListVolumesRequest::default()).await?.entries.into_iter();
    let mine = entries.filter(|one| one.volume.as_ref().is_some_and(|volume| volume.volume_id == id(cx)));
    let condition = mine.filter_map(|one| one.status).find_map(|status| status.volume_condition);
    is_abnormal(condition.as_ref())
}

#[allow(deprecated, reason = "it is what callers of 1.12.0 read")]
async fn condition_is_told(cx: &Cx) -> Outcome {
    let answer = cx.ok(v1::ControllerGetVolumeRequest { volume_id: id(cx) }).await?;
    is_abnormal(answer.status.and_then(|status| status.volume_condition).as_ref())
}

fn is_abnormal(condition: Option<&v1::VolumeCondition>) -> Outcome {
    let told = condition.is_some_and(|condition| condition.abnormal && !condition.message.is_empty());
    check(told, "a volume_condition that is abnormal and says why", || format!("{condition:?}"))
}
