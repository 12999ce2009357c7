//! ListVolumes and ControllerGetVolume: pages have each volume once, even while volumes come and go.

use std::collections::BTreeSet;

use csi_proto::ControllerCapability::{CreateDeleteVolume, GetVolume, ListVolumes};
use csi_proto::v1;
use tonic::Code;

use super::paging::is_new;
use crate::cx::Cx;
use crate::failure::{Outcome, check};

crate::test::tests! { "list-volumes", "Controller Service RPC: ListVolumes, ControllerGetVolume";
    "What was made is listed, and what was deleted is not", lists_what_is, ["list-volumes.all"], [Controller(ListVolumes), Controller(CreateDeleteVolume)];
    "Pages hold each volume once and no more than was asked for", pages, ["list-volumes.all", "list-volumes.max-entries"], [Controller(ListVolumes), Controller(CreateDeleteVolume)];
    "Volumes that stay are listed once while others come and go between pages", pages_under_change, ["list-volumes.all", "list-volumes.max-entries"], [Controller(ListVolumes), Controller(CreateDeleteVolume)];
    "A token that was never given out is ABORTED", bad_token, ["list-volumes.bad-token"], [Controller(ListVolumes)];
    "ControllerGetVolume tells the volume; of one that is not there NOT_FOUND", one_volume, ["controller-get-volume.current", "controller-get-volume.missing"], [Controller(GetVolume), Controller(CreateDeleteVolume)];
}

async fn page(cx: &Cx, max_entries: i32, starting_token: String) -> Outcome<(Vec<String>, String)> {
    let request = v1::ListVolumesRequest { max_entries, starting_token };
    let answer = cx.ok(request.clone()).await?;
    if max_entries > 0 && answer.entries.len() > max_entries as usize {
        return Err(cx.failure(
            &request,
            format!("{} entries", answer.entries.len()),
            format!("at most {max_entries}"),
        ));
    }
    let ids = answer.entries.into_iter().filter_map(|entry| Some(entry.volume?.volume_id));
    Ok((ids.collect(), answer.next_token))
}

/// Reads all pages, and returns each id as often as it came. After each page one of the `extra` volumes is
/// deleted, and another one created.
async fn paged(cx: &Cx, size: i32, mut extra: Vec<v1::Volume>) -> Outcome<Vec<String>> {
    let (mut all, mut token, mut tokens) = (Vec::new(), String::new(), BTreeSet::new());
    loop {
        let (ids, next) = page(cx, size, token).await?;
        all.extend(ids);
        if next.is_empty() {
            return Ok(all);
        }
        is_new(&mut tokens, &next)?;
        token = next;
        if let Some(volume) = extra.pop() {
            cx.ok(v1::DeleteVolumeRequest { volume_id: volume.volume_id, ..Default::default() }).await?;
            cx.volume().await?;
        }
    }
}

pub(super) async fn volume_ids(cx: &Cx) -> Outcome<BTreeSet<String>> {
    Ok(paged(cx, 0, vec![]).await?.into_iter().collect())
}

async fn lists_what_is(cx: &Cx) -> Outcome {
    let volume = cx.volume().await?;
    check(volume_ids(cx).await?.contains(&volume.volume_id), "the volume in the list", || {
        "it is not there".into()
    })?;
    cx.ok(v1::DeleteVolumeRequest { volume_id: volume.volume_id.clone(), ..Default::default() }).await?;
    let listed = volume_ids(cx).await?.contains(&volume.volume_id);
    check(!listed, "a deleted volume is not listed", || format!("{} is in the list", volume.volume_id))
}

fn each_once(all: &[String], due: &[String]) -> Outcome {
    for id in due {
        let times = all.iter().filter(|one| *one == id).count();
        check(times == 1, "each volume once in all pages", || format!("volume {id}: {times} times"))?;
    }
    Ok(())
}

async fn several(cx: &Cx) -> Outcome<Vec<String>> {
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(cx.volume().await?.volume_id);
    }
    Ok(ids)
}

async fn pages(cx: &Cx) -> Outcome {
    let due = several(cx).await?;
    each_once(&paged(cx, 2, vec![]).await?, &due)
}

async fn pages_under_change(cx: &Cx) -> Outcome {
    let extra = vec![cx.volume().await?, cx.volume().await?];
    let due = several(cx).await?;
    each_once(&paged(cx, 2, extra).await?, &due)
}

async fn bad_token(cx: &Cx) -> Outcome {
    let request =
        v1::ListVolumesRequest { max_entries: 1, starting_token: "csi-conformance-no-token".into() };
    cx.refused(request, &[Code::Aborted], "the token is none of the driver's").await
}

async fn one_volume(cx: &Cx) -> Outcome {
    let volume = cx.volume().await?;
    let request = v1::ControllerGetVolumeRequest { volume_id: volume.volume_id.clone() };
    let answer = cx.ok(request.clone()).await?;
    if answer.volume.as_ref().is_none_or(|found| found.volume_id != volume.volume_id) {
        return Err(cx.failure(&request, format!("{answer:?}"), "this volume"));
    }
    cx.refused(
        v1::ControllerGetVolumeRequest { volume_id: cx.name() },
        &[Code::NotFound],
        "there is no such volume",
    )
    .await
}
