//! Where volumes can be used: the topologies that callers ask for, and those that the driver reports.

use csi_proto::ControllerCapability::{CreateDeleteVolume, GetCapacity};
use csi_proto::v1;
use tonic::Code;

use super::capacity::has_no_room;
use crate::context::TestContext;
use crate::failure::{Outcome, check};

crate::test::tests! { "topology", "CreateVolume: accessibility_requirements; GetCapacity";
    Must "A volume for this node's topology is accessible there, and repeating the request returns the same volume", met, ["create-volume.topology-met", "create-volume.same-name-same-volume"], [Place, Controller(CreateDeleteVolume)];
    Must "An unknown topology is RESOURCE_EXHAUSTED, or INVALID_ARGUMENT", unmet, ["create-volume.topology-unmet"], [Place, Controller(CreateDeleteVolume)];
    Practice "Preferred topologies that are not requisite are INVALID_ARGUMENT", preferred_elsewhere, ["topology.preferred-is-requisite"], [Place, Controller(CreateDeleteVolume)];
    Practice "A requirement without topologies is INVALID_ARGUMENT", no_places, ["topology.one-list-is-given"], [Place, Controller(CreateDeleteVolume)];
    Practice "Two keys that differ only in case are INVALID_ARGUMENT", two_cases, ["topology.keys-without-case"], [Place, Controller(CreateDeleteVolume)];
    Must "An unknown topology has no capacity", no_room_elsewhere, ["get-capacity.for-what-is-asked"], [Place, Controller(GetCapacity)];
}

fn here(ctx: &TestContext) -> v1::Topology {
    ctx.offers.place.clone().unwrap_or_default()
}

/// The same keys with values that do not exist.
fn elsewhere(ctx: &TestContext) -> v1::Topology {
    let segments = here(ctx).segments.into_keys().map(|key| (key, "csi-conformance-nowhere".to_owned()));
    v1::Topology { segments: segments.collect() }
}

fn create(
    ctx: &TestContext,
    requisite: Vec<v1::Topology>,
    preferred: Vec<v1::Topology>,
) -> v1::CreateVolumeRequest {
    let accessibility_requirements = Some(v1::TopologyRequirement { requisite, preferred });
    v1::CreateVolumeRequest { accessibility_requirements, ..ctx.create(&ctx.name()) }
}

/// Whether a volume usable at `place` is usable at `node`: `node` has every segment of `place`.
fn usable_from(place: &v1::Topology, node: &v1::Topology) -> bool {
    place.segments.iter().all(|(key, value)| node.segments.get(key).is_some_and(|mine| mine == value))
}

async fn met(ctx: &TestContext) -> Outcome {
    let request = create(ctx, vec![here(ctx)], vec![here(ctx)]);
    let volume = ctx.created(request.clone()).await?;
    let places = &volume.accessible_topology;
    let is_here = places.is_empty() || places.iter().any(|place| usable_from(place, &here(ctx)));
    let due = format!("a volume that is accessible from {:?}", here(ctx).segments);
    ctx.check(&request, is_here, due, || format!("a volume that is accessible from {places:?}"))?;
    let again = ctx.created(request).await?;
    check(again.volume_id == volume.volume_id, "the same volume", || again.volume_id.clone())?;
    check(again.accessible_topology == *places, "the same topology", || format!("{again:?}"))
}

async fn unmet(ctx: &TestContext) -> Outcome {
    let request = create(ctx, vec![elsewhere(ctx)], vec![]);
    let due = [Code::ResourceExhausted, Code::InvalidArgument];
    ctx.refused(request, &due, "no volume can be created there").await
}

async fn preferred_elsewhere(ctx: &TestContext) -> Outcome {
    let request = create(ctx, vec![here(ctx)], vec![elsewhere(ctx)]);
    ctx.refused(request, &[Code::InvalidArgument], "each preferred topology is also requisite").await
}

async fn no_places(ctx: &TestContext) -> Outcome {
    let request = create(ctx, vec![], vec![]);
    ctx.refused(request, &[Code::InvalidArgument], "requisite or preferred topologies are required").await
}

async fn two_cases(ctx: &TestContext) -> Outcome {
    let mut place = here(ctx);
    let cased = |key: &str| match key.rsplit_once('/') {
        Some((prefix, name)) => format!("{prefix}/{}", name.to_ascii_uppercase()),
        None => key.to_ascii_uppercase(),
    };
    let Some((key, value)) = place.segments.iter().find(|(key, _)| cased(key) != **key) else {
        return Ok(());
    };
    let key = cased(key);
    let value = value.clone();
    place.segments.insert(key, value);
    let request = create(ctx, vec![place], vec![]);
    ctx.refused(request, &[Code::InvalidArgument], "keys are not case-sensitive").await
}

async fn no_room_elsewhere(ctx: &TestContext) -> Outcome {
    let parameters = ctx.settings.parameters.of(csi_proto::Rpc::CreateVolume);
    let request = v1::GetCapacityRequest {
        parameters,
        accessible_topology: Some(elsewhere(ctx)),
        ..Default::default()
    };
    has_no_room(ctx, &request, "no capacity for an unknown topology").await?;
    let here = v1::GetCapacityRequest { accessible_topology: Some(here(ctx)), ..request };
    ctx.ok(here).await.map(drop)
}
