//! What CreateVolume promises next to the volume: no more than the limit, a restored volume that is not cut off,
//! the same places in each answer, and nothing after a refusal.

use csi_proto::ControllerCapability::{CloneVolume, CreateDeleteSnapshot, CreateDeleteVolume, ListVolumes};
use csi_proto::v1;
use tonic::Code;

use super::concurrency::new_volumes;
use super::create_volume::reported;
use super::list::volume_ids;
use super::snapshots::{cut, request as snapshot_request};
use crate::context::TestContext;
use crate::failure::{Outcome, check, or_nothing};
use crate::sources::{of_snapshot, of_volume};

crate::test::tests! { "create-volume", "Controller Service RPC: CreateVolume";
    Must "A volume is not larger than the limit, or the size is OUT_OF_RANGE", within_the_limit, ["create-volume.capacity-range", "create-volume.out-of-range"], [Controller(CreateDeleteVolume)];
    Must "A volume that is requested smaller than its snapshot is as large as the snapshot says, or OUT_OF_RANGE", smaller_restore, ["create-volume.capacity-range", "create-volume.out-of-range"], [Controller(CreateDeleteSnapshot), Controller(CreateDeleteVolume)];
    Should "Without a requested size the driver chooses one", without_size, ["create-volume.capacity-range"], [Controller(CreateDeleteVolume)];
    Practice "ListVolumes and ControllerGetVolume return the accessible topology of a volume", place_stays, ["create-volume.topology-met"], [Place, Controller(CreateDeleteVolume)];
    Practice "A CreateVolume that was refused leaves no volume: the provisioner forgets it", refusal_leaves_nothing, ["list-volumes.all"], [Controller(ListVolumes), Controller(CreateDeleteVolume)];
}

async fn within_the_limit(ctx: &TestContext) -> Outcome {
    let bytes = ctx.settings.size;
    let range = v1::CapacityRange { required_bytes: bytes, limit_bytes: bytes };
    let request = v1::CreateVolumeRequest { capacity_range: Some(range), ..ctx.create(&ctx.name()) };
    let answer = ctx.ok_or(request.clone(), &[Code::OutOfRange], "OK or OutOfRange").await?;
    let size = answer.and_then(|answer| answer.volume).unwrap_or_default().capacity_bytes;
    ctx.check(&request, size <= bytes, format!("at most {bytes} bytes"), || format!("{size} bytes"))
}

async fn without_size(ctx: &TestContext) -> Outcome {
    let request = v1::CreateVolumeRequest { capacity_range: None, ..ctx.create(&ctx.name()) };
    ctx.created(request).await.map(drop)
}

async fn smaller_restore(ctx: &TestContext) -> Outcome {
    let large = v1::CapacityRange { required_bytes: ctx.settings.size.saturating_mul(2), limit_bytes: 0 };
    let source = v1::CreateVolumeRequest { capacity_range: Some(large), ..ctx.create(&ctx.name()) };
    let source_id = ctx.created(source).await?.volume_id;
    let snapshot = cut(ctx, snapshot_request(ctx, &source_id)).await?;
    let small = ctx.create("").capacity_range;
    let restore = ctx.create_from(of_snapshot(&snapshot.snapshot_id));
    let request = v1::CreateVolumeRequest { capacity_range: small, ..restore };
    let answer = ctx.ok_or(request.clone(), &[Code::OutOfRange], "OK or OutOfRange").await?;
    let size = answer.and_then(|answer| answer.volume).unwrap_or_default().capacity_bytes;
    // 0 is an unknown size, of both.
    let least = snapshot.size_bytes;
    let due = format!("at least {least} bytes, the size of the snapshot");
    ctx.check(&request, size == 0 || size >= least, due, || format!("{size} bytes"))
}

async fn place_stays(ctx: &TestContext) -> Outcome {
    let first = ctx.volume().await?;
    for (rpc, volume) in reported(ctx, &first.volume_id).await? {
        let is_same = volume.as_ref().is_some_and(|one| one.accessible_topology == first.accessible_topology);
        let due = format!("from {rpc} the topology of CreateVolume: {:?}", first.accessible_topology);
        check(is_same, &due, || or_nothing(&volume))?;
    }
    Ok(())
}

async fn refusal_leaves_nothing(ctx: &TestContext) -> Outcome {
    let range = v1::CapacityRange { required_bytes: ctx.settings.size, limit_bytes: ctx.settings.size - 1 };
    let mut requests =
        vec![v1::CreateVolumeRequest { capacity_range: Some(range), ..ctx.create(&ctx.name()) }];
    if ctx.offers.controller(CloneVolume) {
        requests.push(ctx.create_from(of_volume(&ctx.name())));
    }
    if ctx.offers.controller(CreateDeleteSnapshot) {
        requests.push(ctx.create_from(of_snapshot(&ctx.name())));
    }
    for request in requests {
        let before = volume_ids(ctx).await?;
        // Whether it is refused is the subject of other tests.
        if ctx.settled(&request).await.is_ok() {
            continue;
        }
        let new = new_volumes(ctx, &before, 0).await?;
        let due = "no volume, because the call was refused";
        ctx.check(&request, new.is_empty(), due, || format!("new volumes in the list: {new:?}"))?;
    }
    Ok(())
}
