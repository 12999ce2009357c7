//! ControllerModifyVolume.

use csi_proto::ControllerCapability::{CreateDeleteVolume, ModifyVolume};
use csi_proto::Rpc;
use csi_proto::v1;
use tonic::Code;

use crate::context::TestContext;
use crate::failure::{Outcome, check};

crate::test::tests! { "modify", "Controller Service RPC: ControllerModifyVolume";
    Must "The mutable parameters of the run are accepted, also repeatedly", takes, ["controller-modify-volume.repeated-is-ok"], [Controller(ModifyVolume), Controller(CreateDeleteVolume), MutableParameters];
    Must "A volume can be created with mutable parameters, which override the others", taken_at_creation, ["create-volume.mutable-parameters-win", "create-volume.same-name-same-volume"], [Controller(ModifyVolume), Controller(CreateDeleteVolume), MutableParameters];
    Must "A key that is not in the request does not change", absent_keys_stay, ["controller-modify-volume.absent-keys-stay"], [Controller(ModifyVolume), Controller(CreateDeleteVolume), MutableParameters];
    Must "A change that is refused is INVALID_ARGUMENT, and nothing is changed", refused_change, ["controller-modify-volume.invalid-changes-nothing"], [Controller(ModifyVolume), Controller(CreateDeleteVolume)];
    Practice "An unknown key is refused", unknown_key, ["controller-modify-volume.invalid-changes-nothing"], [Controller(ModifyVolume), Controller(CreateDeleteVolume)];
    Must "A change of nothing is INVALID_ARGUMENT", nothing, ["fields.required-list"], [Controller(ModifyVolume), Controller(CreateDeleteVolume)];
    Must "A volume that does not exist is NOT_FOUND", not_found, ["controller-modify-volume.missing"], [Controller(ModifyVolume)];
}

const NO_KEY: &str = "csi-conformance-no-such-parameter";

fn request(ctx: &TestContext, volume_id: &str) -> v1::ControllerModifyVolumeRequest {
    let mutable_parameters = ctx.settings.mutable_parameters.of(Rpc::ControllerModifyVolume);
    v1::ControllerModifyVolumeRequest {
        volume_id: volume_id.to_owned(),
        mutable_parameters,
        ..Default::default()
    }
}

fn creating(ctx: &TestContext) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        mutable_parameters: request(ctx, "").mutable_parameters,
        ..ctx.create(&ctx.name())
    }
}

/// Checks that the volume still matches the request that created it.
async fn is_unchanged(ctx: &TestContext, made_by: &v1::CreateVolumeRequest, volume: &v1::Volume) -> Outcome {
    let again = ctx.created(made_by.clone()).await?;
    check(again.volume_id == volume.volume_id, "the volume that the same request made", || {
        format!("{again:?}")
    })
}

async fn takes(ctx: &TestContext) -> Outcome {
    let request = request(ctx, &ctx.volume().await?.volume_id);
    ctx.ok(request.clone()).await?;
    ctx.ok(request).await.map(drop)
}

async fn taken_at_creation(ctx: &TestContext) -> Outcome {
    let create = creating(ctx);
    let volume = ctx.created(create.clone()).await?;
    is_unchanged(ctx, &create, &volume).await?;
    // The same keys as ordinary parameters are overridden by the mutable ones, so they make no difference.
    let mut covered = create.clone();
    covered.parameters.extend(create.mutable_parameters.clone());
    is_unchanged(ctx, &covered, &volume).await
}

async fn absent_keys_stay(ctx: &TestContext) -> Outcome {
    let create = creating(ctx);
    let volume = ctx.created(create.clone()).await?;
    for (key, value) in &create.mutable_parameters {
        let mutable_parameters = [(key.clone(), value.clone())].into();
        ctx.ok(v1::ControllerModifyVolumeRequest { mutable_parameters, ..request(ctx, &volume.volume_id) })
            .await?;
        is_unchanged(ctx, &create, &volume).await?;
    }
    Ok(())
}

fn with_unknown_key(ctx: &TestContext, volume: &v1::Volume) -> v1::ControllerModifyVolumeRequest {
    let mut change = request(ctx, &volume.volume_id);
    change.mutable_parameters.insert(NO_KEY.to_owned(), "1".to_owned());
    change
}

/// A driver that accepts any key is allowed to: then nothing is refused.
async fn refused_change(ctx: &TestContext) -> Outcome {
    let create = creating(ctx);
    let volume = ctx.created(create.clone()).await?;
    let change = with_unknown_key(ctx, &volume);
    let answer = ctx.ok_or(change, &[Code::InvalidArgument], "InvalidArgument, or OK").await?;
    if answer.is_none() { is_unchanged(ctx, &create, &volume).await } else { Ok(()) }
}

async fn unknown_key(ctx: &TestContext) -> Outcome {
    let volume = ctx.created(creating(ctx)).await?;
    let change = with_unknown_key(ctx, &volume);
    ctx.refused(change, &[Code::InvalidArgument], "the parameter does not exist").await
}

async fn nothing(ctx: &TestContext) -> Outcome {
    let volume_id = ctx.volume().await?.volume_id;
    let request = v1::ControllerModifyVolumeRequest { volume_id, ..Default::default() };
    ctx.refused(request, &[Code::InvalidArgument], "mutable_parameters are required").await
}

async fn not_found(ctx: &TestContext) -> Outcome {
    let mut request = request(ctx, &ctx.name());
    let mut due = vec![Code::NotFound];
    if request.mutable_parameters.is_empty() {
        // A key that the driver might not know either.
        request.mutable_parameters.insert(NO_KEY.into(), "1".into());
        due.push(Code::InvalidArgument);
    }
    ctx.refused(request, &due, "the volume does not exist").await
}
