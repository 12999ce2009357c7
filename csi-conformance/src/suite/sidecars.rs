//! The calls of each sidecar, with the fields that it adds, and its repetitions.

use std::collections::BTreeMap;

use csi_core::ControllerCapability::{
    CreateDeleteSnapshot, CreateDeleteVolume, ListSnapshots, ListVolumes, ListVolumesPublishedNodes,
    PublishUnpublishVolume,
};
use csi_proto::v1;
use tonic::Code;

use super::paging::{listed_snapshots, listed_volume};
use super::snapshots::{cut, request};
use crate::cx::Cx;
use crate::failure::{Outcome, check, or_nothing};
use crate::life::Life;
use crate::wire::Call;

crate::test::tests! { "sequences", "Volume Lifecycle";
    "The provisioner creates a volume, with the claim's name in the parameters, and deletes it, each twice", provisioner, ["create-volume.same-name-same-volume", "delete-volume.missing-is-ok"], [Controller(CreateDeleteVolume)];
    "The attacher attaches and detaches, each twice, with the provisioner's identity in the context, and checks the list", attacher, ["controller-publish-volume.repeated-is-ok", "controller-unpublish-volume.not-attached-is-ok"], [Controller(PublishUnpublishVolume), Controller(CreateDeleteVolume), NodeService];
    "The snapshotter creates a snapshot, waits until it is ready, and deletes it twice", snapshotter, ["create-snapshot.same-name-same-snapshot", "delete-snapshot.missing-is-ok"], [Controller(CreateDeleteSnapshot)];
}

fn named(keys: &[&str]) -> BTreeMap<String, String> {
    keys.iter().map(|key| (format!("csi.storage.k8s.io/{key}"), "conformance".to_owned())).collect()
}

/// Whether the call with additional parameters is OK. A driver that accepts only its own parameters refuses
/// it; its sidecar must then run without `--extra-create-metadata`.
async fn takes_metadata<C: Call>(cx: &Cx, request: &C) -> Outcome<bool> {
    match cx.call(request.clone()).await {
        Ok(_) => Ok(true),
        Err(refusal) if refusal.code == Code::InvalidArgument => Ok(false),
        Err(refusal) => {
            let due = "OK, or InvalidArgument for unknown parameters";
            Err(cx.failure(request, cx.told(&refusal), due))
        }
    }
}

async fn provisioner(cx: &Cx) -> Outcome {
    let mut request = cx.create(&cx.name());
    let plain = request.clone();
    request.parameters.extend(named(&["pvc/name", "pvc/namespace", "pv/name"]));
    if !takes_metadata(cx, &request).await? {
        request = plain;
    }
    let volume = cx.created(request.clone()).await?;
    let again = cx.created(request).await?;
    check(again.volume_id == volume.volume_id, "the same volume", || format!("{again:?}"))?;
    for _ in 0..2 {
        cx.ok(v1::DeleteVolumeRequest { volume_id: volume.volume_id.clone(), ..Default::default() }).await?;
    }
    Ok(())
}

async fn attacher(cx: &Cx) -> Outcome {
    let mut life = Life::new(cx, cx.any_kind()).await?;
    life.context.insert(
        "storage.kubernetes.io/csiProvisionerIdentity".into(),
        "1700000000000-8081-conformance".into(),
    );
    let compares = [ListVolumes, ListVolumesPublishedNodes].into_iter().all(|one| cx.offers.controller(one));
    for due in [vec![cx.offers.node_id.clone()], vec![]] {
        for _ in 0..2 {
            match due.is_empty() {
                false => drop(cx.ok(life.attaching()).await?),
                true => drop(cx.ok(life.detaching()).await?),
            }
        }
        if compares {
            let status = listed_volume(cx, &life.id).await?.and_then(|one| one.status);
            let nodes = status.as_ref().map(|status| status.published_node_ids.clone());
            check(nodes.as_ref() == Some(&due), &format!("in the list nodes {due:?}"), || {
                or_nothing(&nodes)
            })?;
        }
    }
    cx.ok(life.deleting()).await.map(drop)
}

async fn snapshotter(cx: &Cx) -> Outcome {
    let mut request = request(cx, &cx.volume().await?);
    let plain = request.clone();
    let keys = ["volumesnapshot/name", "volumesnapshot/namespace", "volumesnapshotcontent/name"];
    request.parameters.extend(named(&keys));
    if !takes_metadata(cx, &request).await? {
        request = plain;
    }
    let snapshot_id = cut(cx, request).await?.snapshot_id;
    if cx.offers.controller(ListSnapshots) {
        let by_id = v1::ListSnapshotsRequest { snapshot_id: snapshot_id.clone(), ..Default::default() };
        let found = listed_snapshots(cx, by_id).await?;
        let is_ready = found.first().is_some_and(|one| one.ready_to_use);
        check(is_ready, "the snapshot, ready to use, in the list", || format!("{found:?}"))?;
    }
    for _ in 0..2 {
        let snapshot_id = snapshot_id.clone();
        cx.ok(v1::DeleteSnapshotRequest { snapshot_id, ..Default::default() }).await?;
    }
    Ok(())
}
