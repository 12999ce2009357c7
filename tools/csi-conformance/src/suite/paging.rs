//! Lists read to their end, whatever the size of the driver's pages.

use std::collections::BTreeSet;

use csi_proto::v1;

use crate::context::TestContext;
use crate::failure::{Outcome, check};
use csi_proto::RpcRequest;

/// The entries of all pages. A page must not have more than `most` entries, unless `most` is 0. After each page one
/// of the `extra` volumes is deleted, and another one created.
pub(super) async fn all_pages<C: RpcRequest, T>(
    ctx: &TestContext,
    most: usize,
    asking: impl Fn(String) -> C,
    taken_apart: impl Fn(C::Answer) -> (Vec<T>, String),
    mut extra: Vec<v1::Volume>,
) -> Outcome<Vec<T>> {
    let mut all = Vec::new();
    let mut token = String::new();
    let mut tokens = BTreeSet::new();
    loop {
        let request = asking(token);
        let (entries, next) = taken_apart(ctx.ok(request.clone()).await?);
        let count = entries.len();
        let is_few = most == 0 || count <= most;
        ctx.check(&request, is_few, format!("at most {most}"), || format!("{count} entries"))?;
        all.extend(entries);
        if next.is_empty() {
            return Ok(all);
        }
        check(tokens.insert(next.clone()), "pages that end", || format!("the token {next:?} twice"))?;
        token = next;
        if let Some(volume) = extra.pop() {
            ctx.ok(v1::DeleteVolumeRequest { volume_id: volume.volume_id, ..Default::default() }).await?;
            ctx.volume().await?;
        }
    }
}

/// Checks that each of these ids is once in the list of all.
pub(super) fn each_once(what: &str, all: &[String], due: &[String]) -> Outcome {
    for id in due {
        let times = all.iter().filter(|one| *one == id).count();
        let expected = format!("each {what} once in all pages");
        check(times == 1, &expected, || format!("{what} {id}: {times} times"))?;
    }
    Ok(())
}

pub(super) async fn listed_volume(
    ctx: &TestContext,
    volume_id: &str,
) -> Outcome<Option<v1::list_volumes_response::Entry>> {
    let asking = |starting_token| v1::ListVolumesRequest { max_entries: 0, starting_token };
    let all = all_pages(ctx, 0, asking, |page| (page.entries, page.next_token), vec![]).await?;
    Ok(all.into_iter().find(|one| one.volume.as_ref().is_some_and(|volume| volume.volume_id == volume_id)))
}

/// The snapshots that match the request's filters.
pub(super) async fn listed_snapshots(
    ctx: &TestContext,
    request: v1::ListSnapshotsRequest,
) -> Outcome<Vec<v1::Snapshot>> {
    let most = usize::try_from(request.max_entries).unwrap_or_default();
    let asking = |starting_token| v1::ListSnapshotsRequest { starting_token, ..request.clone() };
    let entries = all_pages(ctx, most, asking, |page| (page.entries, page.next_token), vec![]).await?;
    Ok(entries.into_iter().filter_map(|entry| entry.snapshot).collect())
}

pub(super) async fn listed_unhealthy(ctx: &TestContext, max_entries: i32) -> Outcome<Vec<v1::VolumeHealth>> {
    let most = usize::try_from(max_entries).unwrap_or_default();
    let asking = |starting_token| v1::ControllerListVolumeHealthRequest {
        max_entries,
        starting_token,
        ..Default::default()
    };
    all_pages(ctx, most, asking, |page| (page.entries, page.next_token), vec![]).await
}
