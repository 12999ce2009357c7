//! CreateVolume, DeleteVolume, ValidateVolumeCapabilities.

use csi_proto::ControllerCapability::{CloneVolume, CreateDeleteSnapshot, CreateDeleteVolume};
use csi_proto::v1;
use tonic::Code;

use super::paging::listed_volume;
use super::snapshots::snapshot;
use crate::context::TestContext;
use crate::failure::{Outcome, check, or_nothing};
use crate::sources::{of_snapshot, of_volume};

crate::test::tests! { "create-volume", "Controller Service RPC: CreateVolume, DeleteVolume";
    Must "The same name and arguments again return the same volume", same_name_same_volume, ["create-volume.same-name-same-volume"], [Controller(CreateDeleteVolume)];
    Must "The same name with an incompatible size is ALREADY_EXISTS", same_name_other_size, ["create-volume.differs-is-already-exists"], [Controller(CreateDeleteVolume)];
    Must "Two names result in two volumes", two_names_two_volumes, ["create-volume.id-is-unique"], [Controller(CreateDeleteVolume)];
    Must "The size is at least the requested size", at_least_the_size, ["create-volume.capacity-range"], [Controller(CreateDeleteVolume)];
    Must "A limit below the required size is refused", limit_below_required, ["create-volume.capacity-range"], [Controller(CreateDeleteVolume)];
    Should "Names of 128 bytes and of any script are accepted; names that differ in one byte are different", unusual_names, ["fields.names"], [Controller(CreateDeleteVolume)];
    Practice "A name with a control character is refused", control_characters, ["fields.names"], [Controller(CreateDeleteVolume)];
    Must "A capability without access mode or access type is refused", empty_capability, ["fields.one-of"], [Controller(CreateDeleteVolume)];
    Must "A source that does not exist is NOT_FOUND", missing_source, ["create-volume.source-missing"], [Controller(CreateDeleteVolume), Controller(CloneVolume)];
    Must "A clone is another volume than its source, and at least as large", clone, ["create-volume.from-volume", "create-volume.id-is-unique"], [Controller(CreateDeleteVolume), Controller(CloneVolume)];
    Practice "A volume that is created from a source names it, else the provisioner deletes the volume", source_is_named, ["create-volume.source-told"], [Copies, Controller(CreateDeleteVolume)];
    Must "Deleting an object that does not exist is OK, also repeatedly", delete_is_idempotent, ["delete-volume.missing-is-ok"], [Controller(CreateDeleteVolume)];
    Must "A deleted volume no longer exists", deleted_is_gone, ["validate-volume-capabilities.missing"], [Controller(CreateDeleteVolume)];
    Must "A confirmation has the capabilities of the request", confirmed, ["validate-volume-capabilities.all-or-none", "validate-volume-capabilities.confirms-what-was-asked"], [Controller(CreateDeleteVolume)];
    Must "A capability that the driver does not support is refused, alone and together with a supported one", unsupported, ["create-volume.all-capabilities", "validate-volume-capabilities.all-or-none"], [Controller(CreateDeleteVolume), Unsupported];
    Must "A volume's context is the same in all answers, and its size where it is known", context_stays, ["create-volume.context-stays"], [Controller(CreateDeleteVolume)];
    Must "ValidateVolumeCapabilities of a volume that does not exist is NOT_FOUND", validate_missing, ["validate-volume-capabilities.missing"], [Controller(CreateDeleteVolume)];
}

/// Asks whether the volume can be used in all these ways.
pub(super) fn validate(
    volume: v1::Volume,
    volume_capabilities: Vec<v1::VolumeCapability>,
) -> v1::ValidateVolumeCapabilitiesRequest {
    v1::ValidateVolumeCapabilitiesRequest {
        volume_id: volume.volume_id,
        volume_context: volume.volume_context,
        volume_capabilities,
        ..Default::default()
    }
}

async fn same_name_same_volume(ctx: &TestContext) -> Outcome {
    let request = ctx.create(&ctx.name());
    let first = ctx.created(request.clone()).await?;
    let again = ctx.created(request.clone()).await?;
    let is_same = first.volume_id == again.volume_id && first.capacity_bytes == again.capacity_bytes;
    let due = format!("the volume that the same request created: {first:?}");
    ctx.check(&request, is_same, due, || format!("{again:?}"))
}

async fn same_name_other_size(ctx: &TestContext) -> Outcome {
    let request = ctx.create(&ctx.name());
    let volume = ctx.created(request.clone()).await?;
    if volume.capacity_bytes == 0 {
        // A driver that does not track sizes can't report a difference.
        return Ok(());
    }
    let other = other_size(volume.capacity_bytes);
    let request = v1::CreateVolumeRequest { capacity_range: Some(other), ..request };
    ctx.refused(request, &[Code::AlreadyExists], "a volume of this name exists with another size").await
}

/// A range without this size: larger sizes, or smaller ones if there are none.
fn other_size(bytes: i64) -> v1::CapacityRange {
    match (bytes.checked_mul(2), bytes.checked_mul(3)) {
        (Some(required_bytes), Some(limit_bytes)) => v1::CapacityRange { required_bytes, limit_bytes },
        _ => v1::CapacityRange { required_bytes: 0, limit_bytes: bytes / 2 },
    }
}

async fn two_names_two_volumes(ctx: &TestContext) -> Outcome {
    let one = ctx.volume().await?;
    let other = ctx.volume().await?;
    check(one.volume_id != other.volume_id, "two ids for two names", || format!("{:?} twice", one.volume_id))
}

async fn at_least_the_size(ctx: &TestContext) -> Outcome {
    let volume = ctx.volume().await?;
    let bytes = volume.capacity_bytes;
    check(
        bytes == 0 || bytes >= ctx.settings.size,
        "at least the required size, or 0 if it is unknown",
        || bytes.to_string(),
    )
}

async fn limit_below_required(ctx: &TestContext) -> Outcome {
    let range = v1::CapacityRange {
        required_bytes: ctx.settings.size.saturating_mul(2),
        limit_bytes: ctx.settings.size,
    };
    let request = v1::CreateVolumeRequest { capacity_range: Some(range), ..ctx.create(&ctx.name()) };
    ctx.refused(request, &[Code::InvalidArgument, Code::OutOfRange], "no size is in this range").await
}

async fn unusual_names(ctx: &TestContext) -> Outcome {
    let filled = |text: &str, with: &str| {
        let mut name = text.to_owned();
        while name.len() + with.len() <= 128 {
            name.push_str(with);
        }
        name
    };
    let run = ctx.name();
    // The last two names look the same but differ: composed and decomposed Unicode.
    let names = [
        filled(&run, "a"),
        filled(&run, "ü"),
        filled(&run, "漢"),
        filled(&run, "🦀"),
        format!("{run}/../{run}"),
        format!("{run} with 'quotes' \"and\" $(more) %s;\\"),
        format!("{run}-\u{202e}right-to-left"),
        format!("{run}-é"),
        format!("{run}-e\u{301}"),
    ];
    let mut ids = std::collections::BTreeSet::new();
    for name in &names {
        ids.insert(ctx.created(ctx.create(name)).await?.volume_id);
    }
    check(ids.len() == names.len(), "one volume for each name", || {
        format!("{} for {}", ids.len(), names.len())
    })
}

async fn control_characters(ctx: &TestContext) -> Outcome {
    for banned in ['\u{1}', '\u{8}', '\u{b}', '\u{1f}', '\u{7f}', '\u{9f}'] {
        let request = ctx.create(&format!("{}{banned}", ctx.name()));
        ctx.refused(request, &[Code::InvalidArgument], "the spec bans this character from names").await?;
    }
    Ok(())
}

async fn empty_capability(ctx: &TestContext) -> Outcome {
    let whole = ctx.capability(ctx.any_kind());
    let broken = [
        v1::VolumeCapability { access_mode: None, ..whole.clone() },
        v1::VolumeCapability { access_type: None, ..whole.clone() },
        v1::VolumeCapability { access_mode: Some(Default::default()), ..whole.clone() },
    ];
    for capability in broken {
        let volume_capabilities = vec![whole.clone(), capability];
        let request = v1::CreateVolumeRequest { volume_capabilities, ..ctx.create(&ctx.name()) };
        ctx.refused(request, &[Code::InvalidArgument], "access mode and access type are required").await?;
    }
    Ok(())
}

async fn missing_source(ctx: &TestContext) -> Outcome {
    let mut sources = vec![of_volume(&ctx.name())];
    if ctx.offers.controller(CreateDeleteSnapshot) {
        sources.push(of_snapshot(&ctx.name()));
    }
    for source in sources {
        ctx.refused(ctx.create_from(source), &[Code::NotFound], "the source does not exist").await?;
    }
    Ok(())
}

async fn source_is_named(ctx: &TestContext) -> Outcome {
    let mut sources = Vec::new();
    if ctx.offers.controller(CloneVolume) {
        sources.push(of_volume(&ctx.volume().await?.volume_id));
    }
    if ctx.offers.controller(CreateDeleteSnapshot) {
        sources.push(of_snapshot(&snapshot(ctx).await?.snapshot_id));
    }
    for source in sources {
        let request = ctx.create_from(source);
        let volume = ctx.created(request.clone()).await?;
        let is_named = volume.content_source == request.volume_content_source;
        let due = "a volume with the requested content_source";
        ctx.check(&request, is_named, due, || format!("{volume:?}"))?;
    }
    Ok(())
}

async fn clone(ctx: &TestContext) -> Outcome {
    let origin = ctx.volume().await?;
    let clone = ctx.created(ctx.create_from(of_volume(&origin.volume_id))).await?;
    check(clone.volume_id != origin.volume_id, "a volume other than the source", || "the same id".into())?;
    check(clone.capacity_bytes >= origin.capacity_bytes, "at least the size of its source", || {
        clone.capacity_bytes.to_string()
    })
}

async fn delete_is_idempotent(ctx: &TestContext) -> Outcome {
    let volume = ctx.volume().await?;
    for volume_id in [volume.volume_id.clone(), volume.volume_id, ctx.name()] {
        ctx.ok(v1::DeleteVolumeRequest { volume_id, ..Default::default() }).await?;
    }
    Ok(())
}

async fn deleted_is_gone(ctx: &TestContext) -> Outcome {
    let request = ctx.create(&ctx.name());
    let volume = ctx.created(request.clone()).await?;
    let volume_id = volume.volume_id.clone();
    ctx.ok(v1::DeleteVolumeRequest { volume_id, ..Default::default() }).await?;
    let asked = validate(volume, request.volume_capabilities);
    ctx.refused(asked, &[Code::NotFound], "the volume was deleted").await
}

async fn confirmed(ctx: &TestContext) -> Outcome {
    let request = validate(ctx.volume().await?, ctx.create("").volume_capabilities);
    // The spec requires no confirmation: it says when there must be none.
    let Some(confirmed) = ctx.ok(request).await?.confirmed else { return Ok(()) };
    check(confirmed.volume_capabilities.len() == 1, "the requested capability", || format!("{confirmed:?}"))
}

async fn validate_missing(ctx: &TestContext) -> Outcome {
    let missing = v1::Volume { volume_id: ctx.name(), ..Default::default() };
    let request = validate(missing, ctx.create("").volume_capabilities);
    ctx.refused(request, &[Code::NotFound], "the volume does not exist").await
}

async fn unsupported(ctx: &TestContext) -> Outcome {
    let Some(other) = ctx.unsupported() else { return Ok(()) };
    let both = vec![ctx.capability(ctx.any_kind()), other];
    let request = v1::CreateVolumeRequest { volume_capabilities: both.clone(), ..ctx.create(&ctx.name()) };
    ctx.refused(request, &[Code::InvalidArgument], "the driver does not support one of the capabilities")
        .await?;
    let request = validate(ctx.volume().await?, both);
    let confirmed = ctx.ok(request.clone()).await?.confirmed;
    let due = "no confirmation, unless all capabilities are supported";
    ctx.check(&request, confirmed.is_none(), due, || or_nothing(&confirmed))
}

/// The volume as ListVolumes and ControllerGetVolume report it, where they are offered.
pub(super) async fn reported(
    ctx: &TestContext,
    volume_id: &str,
) -> Outcome<Vec<(&'static str, Option<v1::Volume>)>> {
    use csi_proto::ControllerCapability::{GetVolume, ListVolumes};
    let mut told = Vec::new();
    if ctx.offers.controller(ListVolumes) {
        let found = listed_volume(ctx, volume_id).await?;
        told.push(("ListVolumes", found.and_then(|one| one.volume)));
    }
    if ctx.offers.controller(GetVolume) {
        let get = v1::ControllerGetVolumeRequest { volume_id: volume_id.to_owned() };
        told.push(("ControllerGetVolume", ctx.ok(get).await?.volume));
    }
    Ok(told)
}

/// The volume as each RPC that returns volumes reports it.
async fn context_stays(ctx: &TestContext) -> Outcome {
    let request = ctx.create(&ctx.name());
    let first = ctx.created(request.clone()).await?;
    let mut told = vec![("CreateVolume, again", Some(ctx.created(request).await?))];
    told.extend(reported(ctx, &first.volume_id).await?);
    let is_same = |one: &v1::Volume| {
        // 0 is an unknown size.
        let sizes = [one.capacity_bytes, first.capacity_bytes];
        one.volume_context == first.volume_context && (sizes[0] == sizes[1] || sizes.contains(&0))
    };
    for (rpc, volume) in told {
        let due = format!("from {rpc} the values that CreateVolume returned: {first:?}");
        check(volume.as_ref().is_some_and(is_same), &due, || or_nothing(&volume))?;
    }
    Ok(())
}
