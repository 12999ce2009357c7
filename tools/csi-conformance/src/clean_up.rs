//! Undoes what a test, or a run that died, left behind: the reverse of each call, the last call first.

use csi_proto::internal::is_final;
use csi_proto::{Rpc, RpcRequest, escape, v1};
use tonic::Code;

use crate::context::TestContext;
use crate::ledger::CreatedObject;
use crate::own_mount;
use crate::wire::Refusal;

/// Undoes everything in the ledger, and returns what could not be undone.
pub(crate) async fn clean_up(ctx: &TestContext) -> Vec<String> {
    let mut left = Vec::new();
    for made in ctx.ledger.all().into_iter().rev() {
        let undone = match undo(ctx, &made).await {
            Err(Refusal { code: Code::InvalidArgument | Code::Unimplemented, .. })
                if was_never_created(ctx, &made).await =>
            {
                Ok(())
            }
            outcome => outcome,
        };
        match undone {
            Ok(()) => ctx.ledger.forget(&made),
            Err(refusal) => {
                let id = made.id.as_deref().unwrap_or("id unknown");
                let what =
                    format!("the object that {} created ({id}): {}", made.rpc, ctx.refusal_text(&refusal));
                left.push(escape::terminal(&what).into_owned());
                ctx.ledger.leaves(&made);
            }
        }
    }
    remove_staging(ctx, ctx.prefix());
    left.extend(own_mount::unmount_left(ctx, ctx.prefix()));
    left
}

/// Removes the staging directories whose names start with `prefix`. They belong to the kit, in the role of
/// the orchestrator. Only empty directories that are no mount points are removed.
pub(crate) fn remove_staging(ctx: &TestContext, prefix: &str) {
    let Some(entries) = ctx.settings.staging.as_ref().and_then(|path| std::fs::read_dir(path).ok()) else {
        return;
    };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)) {
        let _ = std::fs::remove_dir(entry.path());
    }
}

/// If the kit was killed before a call was answered, the driver can have refused that call, for example because it does
/// not offer it, and then refuses the reverse call too. Repeating the call shows it.
async fn was_never_created(ctx: &TestContext, made: &CreatedObject) -> bool {
    let again = ctx.settled_raw(made.rpc, &made.request).await;
    again.is_err_and(|refusal| is_final(refusal.code))
}

async fn undo(ctx: &TestContext, made: &CreatedObject) -> Result<(), Refusal> {
    match made.rpc {
        Rpc::NodePublishVolume => {
            reverse::<v1::NodePublishVolumeRequest, v1::NodeUnpublishVolumeRequest>(ctx, made).await
        }
        Rpc::NodeStageVolume => {
            reverse::<v1::NodeStageVolumeRequest, v1::NodeUnstageVolumeRequest>(ctx, made).await
        }
        Rpc::ControllerPublishVolume => {
            reverse::<v1::ControllerPublishVolumeRequest, v1::ControllerUnpublishVolumeRequest>(ctx, made)
                .await
        }
        _ => delete(ctx, made).await,
    }
}

/// Makes the call that undoes the request `D`.
async fn reverse<D: RpcRequest, U: RpcRequest + for<'d> From<&'d D>>(
    ctx: &TestContext,
    made: &CreatedObject,
) -> Result<(), Refusal> {
    // Bytes that can't be decoded were not written by this kit.
    let Ok(did) = D::decode(&*made.request) else { return Ok(()) };
    ctx.settled(&U::from(&did)).await.map(drop)
}

/// Deletes a volume or snapshot. If its id is unknown, the create request is repeated, and its answer has the
/// id: names are idempotency keys.
async fn delete(ctx: &TestContext, made: &CreatedObject) -> Result<(), Refusal> {
    let mut made = made.clone();
    if made.id.is_none() {
        // The ledger learns the id from the answer.
        match ctx.settled_raw(made.rpc, &made.request).await {
            Ok(_) => {}
            // A final refusal: nothing was created.
            Err(refusal) if is_final(refusal.code) => return Ok(()),
            Err(refusal) => return Err(refusal),
        }
        let all = ctx.ledger.all();
        let Some(known) = all
            .into_iter()
            .rev()
            .find(|one| one.rpc == made.rpc && one.request == made.request && one.id.is_some())
        else {
            return Ok(());
        };
        made = known;
    }
    let id = made.id.clone().unwrap_or_default();
    match made.rpc {
        Rpc::CreateVolume => {
            ctx.settled(&v1::DeleteVolumeRequest { volume_id: id, ..Default::default() }).await.map(drop)
        }
        Rpc::CreateSnapshot => {
            ctx.settled(&v1::DeleteSnapshotRequest { snapshot_id: id, ..Default::default() }).await.map(drop)
        }
        _ => {
            let undo = v1::DeleteVolumeGroupSnapshotRequest {
                group_snapshot_id: id,
                snapshot_ids: made.members.clone(),
                ..Default::default()
            };
            ctx.settled(&undo).await.map(drop)
        }
    }
}
