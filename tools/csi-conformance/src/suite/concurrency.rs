//! Many concurrent calls, and callers that give up and retry.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use csi_proto::ControllerCapability::{CreateDeleteVolume, ListVolumes};
use csi_proto::{RpcRequest, v1};
use tonic::Code;

use super::list::volume_ids;
use crate::context::TestContext;
use crate::failure::{Failure, Outcome, check};
use crate::retries::{call_all_at_once, call_with_retries};

crate::test::tests! { "concurrency", "Concurrency, Timeouts";
    Should "Concurrent CreateVolume of one name create one volume", same_create_at_once, ["concurrency.simultaneous-calls", "concurrency.pending-is-aborted"], [Controller(CreateDeleteVolume)];
    Should "Concurrent CreateVolume of different names create one volume each", different_creates_at_once, ["concurrency.simultaneous-calls"], [Controller(CreateDeleteVolume)];
    Should "Concurrent DeleteVolume of one volume delete it", same_delete_at_once, ["concurrency.simultaneous-calls", "concurrency.pending-is-aborted"], [Controller(CreateDeleteVolume)];
    Should "A retry after an abandoned CreateVolume returns one volume", given_up, ["create-volume.one-volume-a-name", "timeouts.retry-continues", "timeouts.only-the-opposite-cancels"], [Controller(CreateDeleteVolume), Controller(ListVolumes)];
}

const AT_ONCE: usize = 16;
/// How long volumes of other clients can stay in the list.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(10);

async fn made(ctx: &TestContext, request: v1::CreateVolumeRequest) -> Outcome<v1::Volume> {
    let answer = call_with_retries(ctx, request.clone()).await?;
    answer.volume.ok_or_else(|| ctx.failure(&request, "no volume", "a volume"))
}

async fn same_create_at_once(ctx: &TestContext) -> Outcome {
    let request = ctx.create(&ctx.name());
    let answers = same_at_once(ctx, &request, AT_ONCE).await?.into_iter();
    let mut ids: BTreeSet<_> = answers.filter_map(|answer| Some(answer.volume?.volume_id)).collect();
    ids.insert(made(ctx, request.clone()).await?.volume_id);
    ctx.check(&request, ids.len() == 1, "one volume for one name", || format!("volumes {ids:?}"))
}

async fn different_creates_at_once(ctx: &TestContext) -> Outcome {
    let requests = (0..AT_ONCE).map(|_| ctx.create(&ctx.name())).collect();
    let answers = call_all_at_once(ctx, requests).await?.into_iter();
    let ids: BTreeSet<_> = answers.filter_map(|answer| Some(answer.volume?.volume_id)).collect();
    check(ids.len() == AT_ONCE, "one volume for each name", || format!("{} for {AT_ONCE}", ids.len()))
}

async fn same_delete_at_once(ctx: &TestContext) -> Outcome {
    let volume = ctx.volume().await?;
    let request = v1::DeleteVolumeRequest { volume_id: volume.volume_id, ..Default::default() };
    same_at_once(ctx, &request, AT_ONCE).await?;
    ctx.ok(request).await.map(drop)
}

/// Sends a request several times at once, and returns the answers of those that succeeded. The others are ABORTED.
pub(super) async fn same_at_once<R: RpcRequest>(
    ctx: &TestContext,
    request: &R,
    times: usize,
) -> Outcome<Vec<R::Answer>> {
    let mut answers = Vec::new();
    for answer in ctx.at_once(vec![request.clone(); times]).await {
        match answer {
            Ok(answer) => answers.push(answer),
            Err(refusal) if refusal.code == Code::Aborted => {}
            Err(refusal) => {
                let due = "OK, or ABORTED while another operation is pending";
                return Err(ctx.unexpected(request, &refusal, due));
            }
        }
    }
    Ok(answers)
}

async fn given_up(ctx: &TestContext) -> Outcome {
    let before = volume_ids(ctx).await?;
    let request = ctx.create(&ctx.name());
    // Some calls are given up by deadline and some cancelled, at different times. Each is retried at once.
    for millis in [1, 2, 5, 10, 20] {
        let _ = ctx.call_within(request.clone(), Duration::from_millis(millis)).await;
        let _ = tokio::time::timeout(Duration::from_millis(millis), ctx.call(request.clone())).await;
    }
    let volume = made(ctx, request.clone()).await?;
    // An operation that was given up can end after its retry.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let new = new_volumes(ctx, &before, 1).await?;
    if new.len() <= 1 {
        return Ok(());
    }
    let mut failure =
        Failure::new("one volume after all abandoned calls", format!("{} new volumes are listed", new.len()));
    failure.sent = format!(
        "CreateVolume of one name eleven times, ten of them abandoned; the last answer was {}",
        volume.volume_id
    );
    Err(Box::new(failure))
}

/// The volumes that are listed and were not listed before. Volumes of other clients come and go, so more than `due` are
/// looked at again for a while: a volume that a call of this kit left stays.
pub(super) async fn new_volumes(
    ctx: &TestContext,
    before: &BTreeSet<String>,
    due: usize,
) -> Outcome<BTreeSet<String>> {
    let end = Instant::now() + OTHERS_TIMEOUT;
    let mut new: BTreeSet<_> = volume_ids(ctx).await?.difference(before).cloned().collect();
    while new.len() > due && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let after = volume_ids(ctx).await?;
        new.retain(|id| after.contains(id));
    }
    Ok(new)
}
