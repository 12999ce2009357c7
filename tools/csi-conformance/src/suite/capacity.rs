//! GetCapacity.

use std::collections::BTreeMap;

use csi_proto::ControllerCapability::{CreateDeleteVolume, GetCapacity};
use csi_proto::v1;
use tonic::Code;

use crate::context::TestContext;
use crate::failure::{Outcome, check, or_nothing};

crate::test::tests! { "get-capacity", "Controller Service RPC: GetCapacity";
    Must "The capacity and the limits of a volume's size are not negative", not_negative, ["get-capacity.not-negative"], [Controller(GetCapacity)];
    Must "No volume is smaller or larger than the reported limits", sizes, ["get-capacity.sizes", "create-volume.out-of-range"], [Controller(GetCapacity), Controller(CreateDeleteVolume)];
    Must "For a capability that the driver does not support the capacity is 0", no_room_for_unsupported, ["get-capacity.for-what-is-asked"], [Controller(GetCapacity), Unsupported];
    Practice "Raw StorageClass parameters, as the provisioner sends them, are accepted", raw_parameters, ["get-capacity.not-negative"], [Controller(GetCapacity)];
}

async fn not_negative(ctx: &TestContext) -> Outcome {
    let parameters = ctx.settings.parameters.of(csi_proto::Rpc::CreateVolume);
    let answer = ctx.ok(v1::GetCapacityRequest { parameters, ..Default::default() }).await?;
    let all = [Some(answer.available_capacity), answer.maximum_volume_size, answer.minimum_volume_size];
    check(all.iter().flatten().all(|bytes| *bytes >= 0), "sizes of 0 or more", || format!("{all:?}"))
}

async fn raw_parameters(ctx: &TestContext) -> Outcome {
    let mut parameters: BTreeMap<_, _> = ctx.settings.parameters.of(csi_proto::Rpc::CreateVolume);
    parameters.insert("csi.storage.k8s.io/fstype".into(), "ext4".into());
    parameters.insert("csi.storage.k8s.io/provisioner-secret-name".into(), "name".into());
    ctx.ok(v1::GetCapacityRequest { parameters, ..Default::default() }).await.map(drop)
}

fn asked(ctx: &TestContext) -> v1::GetCapacityRequest {
    v1::GetCapacityRequest {
        parameters: ctx.settings.parameters.of(csi_proto::Rpc::CreateVolume),
        volume_capabilities: vec![ctx.capability(ctx.any_kind())],
        ..Default::default()
    }
}

async fn sizes(ctx: &TestContext) -> Outcome {
    let answer = ctx.ok(asked(ctx)).await?;
    let range = |required_bytes, limit_bytes| v1::CreateVolumeRequest {
        capacity_range: Some(v1::CapacityRange { required_bytes, limit_bytes }),
        ..ctx.create(&ctx.name())
    };
    if let Some(most) = answer.maximum_volume_size.filter(|most| *most > 0 && *most < i64::MAX) {
        let words = format!("at most {most} bytes, the maximum_volume_size of GetCapacity");
        ctx.refused(range(most + 1, 0), &[Code::OutOfRange, Code::ResourceExhausted], &words).await?;
    }
    if let Some(least) = answer.minimum_volume_size.filter(|least| *least > 1) {
        let words = format!("at least {least} bytes, the minimum_volume_size of GetCapacity");
        ctx.refused(range(0, least - 1), &[Code::OutOfRange], &words).await?;
        let request = range(1, 0);
        let volume = ctx.created(request.clone()).await?;
        let is_less = (1..least).contains(&volume.capacity_bytes);
        ctx.check(&request, !is_less, words, || format!("a volume of {} bytes", volume.capacity_bytes))?;
    }
    Ok(())
}

async fn no_room_for_unsupported(ctx: &TestContext) -> Outcome {
    let volume_capabilities = ctx.unsupported().into_iter().collect();
    let request = v1::GetCapacityRequest { volume_capabilities, ..asked(ctx) };
    has_no_room(ctx, &request, "no capacity for such volumes").await
}

/// Checks that there is no capacity, or that the request is refused.
pub(super) async fn has_no_room(ctx: &TestContext, request: &v1::GetCapacityRequest, due: &str) -> Outcome {
    let codes = [Code::InvalidArgument];
    let answer = ctx.ok_or(request.clone(), &codes, "0 bytes, or InvalidArgument").await?;
    let bytes = answer.as_ref().map_or(0, |answer| answer.available_capacity);
    ctx.check(request, bytes == 0, due, || or_nothing(&answer))
}
