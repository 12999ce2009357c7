//! Snapshots as members of a group: reported as members, deleted with the group and not alone, restored like
//! other snapshots.

use std::collections::BTreeSet;

use csi_proto::ControllerCapability::{CreateDeleteSnapshot, CreateDeleteVolume, GetSnapshot, ListSnapshots};
use csi_proto::v1;
use tonic::Code;

use super::groups::{deleting, getting, group, member_ids, request};
use super::paging::listed_snapshots;
use super::snapshot_states::{get_snapshot, listed, restoring};
use super::snapshots::snapshot;
use crate::context::TestContext;
use crate::failure::{Outcome, check, or_nothing};

crate::test::tests! { "groups", "GroupController Service RPC; CreateSnapshot: group_snapshot_id";
    Must "GetSnapshot returns a member with its group", told_with_group, ["create-snapshot.group-told", "get-snapshot.with-groups"], [Groups, Controller(GetSnapshot), Controller(CreateDeleteVolume)];
    Must "ListSnapshots returns a member with its group", listed_with_group, ["create-snapshot.group-told", "list-snapshots.all"], [Groups, Controller(ListSnapshots), Controller(CreateDeleteVolume)];
    Must "Deleting a single member is OK, or INVALID_ARGUMENT and the group stays complete", not_deleted_alone, ["delete-snapshot.group-member"], [Groups, Controller(CreateDeleteSnapshot), Controller(CreateDeleteVolume)];
    Must "Deleting a group deletes its members", deleted_together, ["delete-volume-group-snapshot.members-too"], [Groups, Controller(CreateDeleteSnapshot), Controller(CreateDeleteVolume)];
    Must "A volume can be restored from a member", restored, ["create-volume.from-snapshot"], [Groups, Controller(CreateDeleteVolume), Controller(CreateDeleteSnapshot)];
    Should "A group that could not be created leaves no snapshot", failure_leaves_nothing, ["create-volume-group-snapshot.failure-leaves-nothing"], [Groups, Controller(ListSnapshots), Controller(CreateDeleteVolume)];
    Must "Deleting a group with the id of another snapshot does not delete that snapshot", others_stay, ["delete-volume-group-snapshot.mismatch"], [Groups, Controller(CreateDeleteSnapshot), Controller(CreateDeleteVolume)];
}

async fn made(ctx: &TestContext) -> Outcome<v1::VolumeGroupSnapshot> {
    group(ctx, request(ctx).await?).await
}

/// Checks that each member, as other RPCs than the group controller's report it, names the group.
fn names_the_group(
    group: &v1::VolumeGroupSnapshot,
    member: &v1::Snapshot,
    found: Option<v1::Snapshot>,
) -> Outcome {
    let good = |found: &v1::Snapshot| {
        found.group_snapshot_id == group.group_snapshot_id
            && found.source_volume_id == member.source_volume_id
    };
    let due = format!("{} with its group {}", member.snapshot_id, group.group_snapshot_id);
    check(found.as_ref().is_some_and(good), &due, || or_nothing(&found))
}

async fn told_with_group(ctx: &TestContext) -> Outcome {
    let group = made(ctx).await?;
    for member in &group.snapshots {
        names_the_group(&group, member, get_snapshot(ctx, &member.snapshot_id).await?)?;
    }
    Ok(())
}

async fn listed_with_group(ctx: &TestContext) -> Outcome {
    let group = made(ctx).await?;
    for member in &group.snapshots {
        names_the_group(&group, member, listed(ctx, &member.snapshot_id).await?)?;
    }
    Ok(())
}

async fn not_deleted_alone(ctx: &TestContext) -> Outcome {
    let group = made(ctx).await?;
    let snapshot_id = group.snapshots.first().map(|one| one.snapshot_id.clone()).unwrap_or_default();
    let alone = v1::DeleteSnapshotRequest { snapshot_id, ..Default::default() };
    let answer = ctx.ok_or(alone, &[Code::InvalidArgument], "OK, or InvalidArgument").await?;
    if answer.is_some() {
        return Ok(());
    }
    let whole = ctx.ok(getting(&group)).await?.group_snapshot.unwrap_or_default();
    check(member_ids(&whole) == member_ids(&group), "all members in the group", || format!("{whole:?}"))
}

async fn deleted_together(ctx: &TestContext) -> Outcome {
    let group = made(ctx).await?;
    ctx.ok(deleting(&group)).await?;
    for id in member_ids(&group) {
        if ctx.offers.controller(GetSnapshot) {
            let found = get_snapshot(ctx, &id).await?;
            check(found.is_none(), "NotFound for a member of a deleted group", || or_nothing(&found))?;
        }
        if ctx.offers.controller(ListSnapshots) {
            let found = listed(ctx, &id).await?;
            check(found.is_none(), "no member of a deleted group in the list", || or_nothing(&found))?;
        }
        ctx.refused(restoring(ctx, &id), &[Code::NotFound], "the snapshot was deleted with its group")
            .await?;
    }
    Ok(())
}

async fn restored(ctx: &TestContext) -> Outcome {
    let group = made(ctx).await?;
    for id in member_ids(&group) {
        ctx.created(restoring(ctx, &id)).await?;
    }
    Ok(())
}

async fn failure_leaves_nothing(ctx: &TestContext) -> Outcome {
    let mut request = request(ctx).await?;
    let there = request.source_volume_ids.clone();
    request.source_volume_ids.push(ctx.name());
    ctx.fails(request.clone(), "one of the volumes does not exist").await?;
    for source_volume_id in there {
        let list = v1::ListSnapshotsRequest { source_volume_id, ..Default::default() };
        let left = listed_snapshots(ctx, list).await?;
        let due = "no snapshot is left of the group";
        ctx.check(&request, left.is_empty(), due, || format!("afterwards {left:?}"))?;
    }
    Ok(())
}

/// A driver is allowed to ignore the ids, but must not delete snapshots outside the group.
async fn others_stay(ctx: &TestContext) -> Outcome {
    let group = made(ctx).await?;
    let other = snapshot(ctx).await?;
    let mut ids: BTreeSet<String> = member_ids(&group);
    ids.insert(other.snapshot_id.clone());
    let delete =
        v1::DeleteVolumeGroupSnapshotRequest { snapshot_ids: ids.into_iter().collect(), ..deleting(&group) };
    ctx.ok_or(delete, &[Code::InvalidArgument], "InvalidArgument, or OK").await?;
    ctx.created(restoring(ctx, &other.snapshot_id)).await.map(drop)
}
