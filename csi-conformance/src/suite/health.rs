//! Health, in the form of 1.13.0 and in that of 1.12.0.

use csi_core::ControllerCapability::{CreateDeleteVolume, GetVolumeHealth, ListVolumeHealth};
use csi_core::NodeCapability as N;
use csi_proto::v1;
use tonic::Code;

use crate::cx::Cx;
use crate::failure::{Outcome, check};
use crate::life::{Life, text};
use crate::test::Kind;

crate::test::tests! { "health", "Volume health: ControllerGetVolumeHealth, ControllerListVolumeHealth, NodeGetVolumeHealth, NodeGetStorageHealth";
    "The controller says of a new volume that it is well; of one that is not there NOT_FOUND", controller, ["controller-get-volume-health.current", "controller-get-volume-health.missing"], [Controller(GetVolumeHealth), Controller(CreateDeleteVolume)];
    "Only volumes that are not well are listed", listed, ["controller-list-volume-health.only-unwell"], [Controller(ListVolumeHealth), Controller(CreateDeleteVolume)];
    "The node says of a published volume that it is well", node, ["node-get-volume-health.current"], [Node(N::GetVolumeHealth), Volume(Files)];
    "The node tells the health of its backends", storage, ["node-get-storage-health.unique"], [Node(N::GetStorageHealth)];
}

/// Kinds and causes, each pair once.
fn distinct(statuses: &[v1::volume_health::VolumeHealthEntry]) -> bool {
    let mut pairs: Vec<_> = statuses.iter().map(|one| (one.status, &one.reason)).collect();
    pairs.sort();
    pairs.windows(2).all(|two| two[0] != two[1])
}

async fn controller(cx: &Cx) -> Outcome {
    let volume_id = cx.volume().await?.volume_id;
    let request = v1::ControllerGetVolumeHealthRequest { volume_id: volume_id.clone(), ..Default::default() };
    let health = cx.ok(request.clone()).await?.volume_health.unwrap_or_default();
    if health.volume_id != volume_id || !health.health_statuses.is_empty() {
        return Err(cx.failure(&request, format!("{health:?}"), "this volume, with nothing wrong"));
    }
    let unknown = v1::ControllerGetVolumeHealthRequest { volume_id: cx.name(), ..request };
    cx.refused(unknown, &[Code::NotFound], "there is no such volume").await
}

async fn listed(cx: &Cx) -> Outcome {
    let volume = cx.volume().await?;
    let answer = cx.ok(v1::ControllerListVolumeHealthRequest::default()).await?;
    let well =
        answer.entries.iter().find(|one| one.health_statuses.is_empty() || one.volume_id == volume.volume_id);
    check(well.is_none(), "only volumes that are not well", || format!("{well:?}"))?;
    check(
        answer.entries.iter().all(|one| distinct(&one.health_statuses)),
        "each status and reason once",
        || format!("{answer:?}"),
    )
}

async fn node(cx: &Cx) -> Outcome {
    let life = Life::staged(cx, Kind::Files).await?;
    let target = life.target();
    cx.ok(life.publishing(&target)).await?;
    let request = v1::NodeGetVolumeHealthRequest {
        volume_id: life.id.clone(),
        volume_publish_path: text(&target),
        ..Default::default()
    };
    let health = cx.ok(request.clone()).await?.volume_health.unwrap_or_default();
    if health.volume_id != life.id || !health.health_statuses.is_empty() {
        return Err(cx.failure(&request, format!("{health:?}"), "this volume, with nothing wrong"));
    }
    life.end(&[&target]).await
}

async fn storage(cx: &Cx) -> Outcome {
    let answer = cx.ok(v1::NodeGetStorageHealthRequest::default()).await?;
    let whole = answer.backend_health.iter().all(|one| one.status != 0 && !one.reason.is_empty());
    check(whole, "each with a status and a reason", || format!("{answer:?}"))
}
