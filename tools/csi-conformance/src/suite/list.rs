//! ListVolumes and ControllerGetVolume: pages have each volume once, even while volumes come and go.

use std::collections::BTreeSet;

use csi_proto::ControllerCapability::{CreateDeleteVolume, GetVolume, ListVolumes};
use csi_proto::v1;
use tonic::Code;

use super::paging::{all_pages, each_once};
use crate::context::TestContext;
use crate::failure::{Outcome, check};

crate::test::tests! { "list-volumes", "Controller Service RPC: ListVolumes, ControllerGetVolume";
    Must "Created volumes are listed, and deleted volumes are not", lists_what_is, ["list-volumes.all"], [Controller(ListVolumes), Controller(CreateDeleteVolume)];
    Must "Pages have each volume once, and no more than the requested number", pages, ["list-volumes.all", "list-volumes.max-entries"], [Controller(ListVolumes), Controller(CreateDeleteVolume)];
    Practice "Volumes that exist throughout are listed once while others are created and deleted between pages", pages_under_change, ["list-volumes.all", "list-volumes.max-entries"], [Controller(ListVolumes), Controller(CreateDeleteVolume)];
    Must "An unknown token is ABORTED", bad_token, ["list-volumes.bad-token"], [Controller(ListVolumes)];
    Must "ControllerGetVolume returns the volume; a volume that does not exist is NOT_FOUND", one_volume, ["controller-get-volume.current", "controller-get-volume.missing"], [Controller(GetVolume), Controller(CreateDeleteVolume)];
}

/// Reads all pages, and returns each id as often as it came.
async fn paged(ctx: &TestContext, size: usize, extra: Vec<v1::Volume>) -> Outcome<Vec<String>> {
    let asking = |starting_token| v1::ListVolumesRequest { max_entries: size as i32, starting_token };
    let entries = all_pages(ctx, size, asking, |page| (page.entries, page.next_token), extra).await?;
    Ok(entries.into_iter().filter_map(|entry| Some(entry.volume?.volume_id)).collect())
}

pub(super) async fn volume_ids(ctx: &TestContext) -> Outcome<BTreeSet<String>> {
    Ok(paged(ctx, 0, vec![]).await?.into_iter().collect())
}

async fn lists_what_is(ctx: &TestContext) -> Outcome {
    let volume = ctx.volume().await?;
    check(volume_ids(ctx).await?.contains(&volume.volume_id), "the volume in the list", || {
        "it is not in the list".into()
    })?;
    ctx.ok(v1::DeleteVolumeRequest { volume_id: volume.volume_id.clone(), ..Default::default() }).await?;
    let listed = volume_ids(ctx).await?.contains(&volume.volume_id);
    check(!listed, "a deleted volume is not listed", || format!("{} is in the list", volume.volume_id))
}

async fn several(ctx: &TestContext) -> Outcome<Vec<String>> {
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(ctx.volume().await?.volume_id);
    }
    Ok(ids)
}

async fn pages(ctx: &TestContext) -> Outcome {
    let due = several(ctx).await?;
    each_once("volume", &paged(ctx, 2, vec![]).await?, &due)
}

async fn pages_under_change(ctx: &TestContext) -> Outcome {
    let extra = vec![ctx.volume().await?, ctx.volume().await?];
    let due = several(ctx).await?;
    each_once("volume", &paged(ctx, 2, extra).await?, &due)
}

async fn bad_token(ctx: &TestContext) -> Outcome {
    let request =
        v1::ListVolumesRequest { max_entries: 1, starting_token: "csi-conformance-no-token".into() };
    ctx.refused(request, &[Code::Aborted], "the driver did not issue this token").await
}

async fn one_volume(ctx: &TestContext) -> Outcome {
    let volume = ctx.volume().await?;
    let request = v1::ControllerGetVolumeRequest { volume_id: volume.volume_id.clone() };
    let answer = ctx.ok(request.clone()).await?;
    let is_it = answer.volume.as_ref().is_some_and(|found| found.volume_id == volume.volume_id);
    ctx.check(&request, is_it, "this volume", || format!("{answer:?}"))?;
    let missing = v1::ControllerGetVolumeRequest { volume_id: ctx.name() };
    ctx.refused(missing, &[Code::NotFound], "the volume does not exist").await
}
