//! CreateVolume with an existing name and a different request; fields of a volume other than its size.

use csi_proto::ControllerCapability::{
    CloneVolume, CreateDeleteSnapshot, CreateDeleteVolume, SingleNodeMultiWriter,
};
use csi_proto::v1;
use tonic::Code;
use v1::plugin_capability::service::Type::VolumeAccessibilityConstraints;
use v1::volume_capability::access_mode::Mode;

use super::create_volume::validate;
use super::snapshots::{cut, request as snapshot_request};
use crate::content::Kind;
use crate::context::TestContext;
use crate::failure::{Outcome, check};
use crate::sources::{of_snapshot, of_volume};

crate::test::tests! { "create-volume", "Controller Service RPC: CreateVolume";
    Must "The same name with another source volume is ALREADY_EXISTS", same_name_other_source, ["create-volume.differs-is-already-exists"], [Controller(CreateDeleteVolume), Controller(CloneVolume)];
    Must "The same name with another source snapshot is ALREADY_EXISTS", same_name_other_snapshot, ["create-volume.differs-is-already-exists"], [Controller(CreateDeleteVolume), Controller(CreateDeleteSnapshot)];
    Must "The same name with another capability is ALREADY_EXISTS, or the volume supports that capability", same_name_other_use, ["create-volume.differs-is-already-exists", "create-volume.all-capabilities"], [Controller(CreateDeleteVolume)];
    Must "A driver with SINGLE_NODE_MULTI_WRITER still accepts the mode SINGLE_NODE_WRITER", oldest_mode_stays, ["access-modes.oldest-stays"], [Controller(CreateDeleteVolume), Controller(SingleNodeMultiWriter)];
    Must "Volumes have an accessible topology only with VOLUME_ACCESSIBILITY_CONSTRAINTS", places_need_capability, ["create-volume.topology-needs-capability"], [Controller(CreateDeleteVolume)];
}

/// Kind and mode.
type Way = (Kind, Mode);

/// Checks that the first source creates the volume, and that the second is refused because the name exists.
async fn refuses_the_second(ctx: &TestContext, sources: [v1::VolumeContentSource; 2]) -> Outcome {
    let name = ctx.name();
    let [first, second] =
        sources.map(|source| v1::CreateVolumeRequest { name: name.clone(), ..ctx.create_from(source) });
    ctx.created(first).await?;
    ctx.refused(second, &[Code::AlreadyExists], "a volume of this name with another source exists").await
}

async fn same_name_other_source(ctx: &TestContext) -> Outcome {
    let one = ctx.volume().await?;
    let other = ctx.volume().await?;
    refuses_the_second(ctx, [of_volume(&one.volume_id), of_volume(&other.volume_id)]).await
}

async fn same_name_other_snapshot(ctx: &TestContext) -> Outcome {
    let volume_id = ctx.volume().await?.volume_id;
    let one = cut(ctx, snapshot_request(ctx, &volume_id)).await?;
    let other = cut(ctx, snapshot_request(ctx, &volume_id)).await?;
    refuses_the_second(ctx, [of_snapshot(&one.snapshot_id), of_snapshot(&other.snapshot_id)]).await
}

async fn same_name_other_use(ctx: &TestContext) -> Outcome {
    let used_as = |(kind, mode): (_, Mode)| vec![ctx.capability_in(kind, mode)];
    let Some((first, other)) = two_uses(ctx) else { return Ok(()) };
    let request = v1::CreateVolumeRequest { volume_capabilities: used_as(first), ..ctx.create(&ctx.name()) };
    let volume = ctx.created(request.clone()).await?;
    let request = v1::CreateVolumeRequest { volume_capabilities: used_as(other), ..request };
    let answer = ctx.ok_or(request.clone(), &[Code::AlreadyExists], "AlreadyExists, or OK").await?;
    let Some(answer) = answer else { return Ok(()) };
    let answered = answer.volume.unwrap_or_default();
    check(answered.volume_id == volume.volume_id, "the volume of this name", || format!("{answered:?}"))?;
    let asked = validate(volume, request.volume_capabilities);
    let answer = ctx.ok(asked.clone()).await?;
    let due = "confirmed, because CreateVolume with this capability was OK";
    ctx.check(&asked, answer.confirmed.is_some(), due, || format!("not confirmed: {}", answer.message))
}

/// Two ways of use that differ, if there are such. SINGLE_NODE_WRITER is what a caller sends in place of the two newer
/// modes to a driver without them, so that after an update the same volume is asked for with one of these.
fn two_uses(ctx: &TestContext) -> Option<(Way, Way)> {
    let is_update =
        |one: Mode, other: Mode| one == Mode::SingleNodeWriter && other.needs_single_node_multi_writer();
    let differ = |(one, other): &(Way, Way)| {
        one.0 != other.0 || one.1 != other.1 && !is_update(one.1, other.1) && !is_update(other.1, one.1)
    };
    let pairs = ctx.modes.iter().flat_map(|one| ctx.modes.iter().map(move |other| (*one, *other)));
    pairs.clone().find(differ).or(pairs.last())
}

async fn oldest_mode_stays(ctx: &TestContext) -> Outcome {
    for (kind, _) in ctx.modes.iter().filter(|(_, mode)| mode.needs_single_node_multi_writer()) {
        let volume_capabilities = vec![ctx.capability_in(*kind, Mode::SingleNodeWriter)];
        ctx.created(v1::CreateVolumeRequest { volume_capabilities, ..ctx.create(&ctx.name()) }).await?;
    }
    Ok(())
}

async fn places_need_capability(ctx: &TestContext) -> Outcome {
    let request = ctx.create(&ctx.name());
    let volume = ctx.created(request.clone()).await?;
    let places = volume.accessible_topology;
    let is_allowed = places.is_empty() || ctx.offers.plugin(VolumeAccessibilityConstraints);
    let due = "no accessible_topology: the driver does not offer VOLUME_ACCESSIBILITY_CONSTRAINTS";
    ctx.check(&request, is_allowed, due, || format!("{places:?}"))
}
