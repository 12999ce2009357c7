//! Faults that show in the sequence of calls that the orchestrator makes for a volume, or for an inline volume, in the
//! fields that sidecars add to their calls, and in deleting volumes that are in use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use csi_proto::v1;

use super::*;

/// Fails to delete a published volume.
fn deleting_in_use_fails() -> Fault {
    with_state(Mutex::new(BTreeSet::new()), |published, rpc, bytes, behind| async move {
        let id = id_of(&bytes);
        if rpc == Rpc::DeleteVolume && published.lock().unwrap().contains(&id) {
            return Err(Status::internal("device or resource busy"));
        }
        let answer = behind.call(rpc, bytes).await?;
        match rpc {
            Rpc::NodePublishVolume => drop(published.lock().unwrap().insert(id)),
            Rpc::NodeUnpublishVolume => drop(published.lock().unwrap().remove(&id)),
            _ => {}
        }
        Ok(answer)
    })
}

/// Unpublishes all inline volumes together with one.
fn unpublishes_all() -> Fault {
    with_state(Mutex::new(BTreeMap::new()), move |all, rpc, bytes, behind| async move {
        if let Some(publish) = asked::<v1::NodePublishVolumeRequest>(rpc, &bytes) {
            all.lock().unwrap().insert(publish.target_path, publish.volume_id);
        }
        let others =
            if rpc == Rpc::NodeUnpublishVolume { all.lock().unwrap().clone() } else { BTreeMap::new() };
        for (target_path, volume_id) in others {
            let _ = behind.ask(&v1::NodeUnpublishVolumeRequest { volume_id, target_path }).await;
        }
        behind.call(rpc, bytes).await
    })
}

/// Compares the whole request with the one that published the volume.
fn republishing_must_be_the_same() -> Fault {
    with_state(Mutex::new(BTreeMap::new()), move |first, rpc, bytes, behind| async move {
        if let Some(publish) = asked::<v1::NodePublishVolumeRequest>(rpc, &bytes)
            && *first.lock().unwrap().entry(publish.target_path.clone()).or_insert(publish.clone()) != publish
        {
            return Err(Status::already_exists("it is published with another volume_context"));
        }
        behind.call(rpc, bytes).await
    })
}

/// Detaches the volume that is to be deleted, as if it were not in use.
fn detaches_first() -> Fault {
    only(|delete: v1::DeleteVolumeRequest, behind| async move {
        let volume_id = delete.volume_id.clone();
        let detach = v1::ControllerUnpublishVolumeRequest { volume_id, ..Default::default() };
        let _ = behind.ask(&detach).await;
        behind.ask(&delete).await
    })
}

/// Notices that a volume is in use after its content is deleted.
fn refuses_too_late() -> Fault {
    with_state(Mutex::new(BTreeMap::new()), move |targets, rpc, bytes, behind| async move {
        if let Some(publish) = asked::<v1::NodePublishVolumeRequest>(rpc, &bytes) {
            targets.lock().unwrap().insert(publish.volume_id, publish.target_path);
        }
        let answer = behind.call(rpc, bytes.clone()).await;
        if rpc == Rpc::DeleteVolume
            && answer.is_err()
            && let Some(target) = targets.lock().unwrap().get(&id_of(&bytes))
        {
            let _ = std::fs::write(format!("{target}/file"), "");
        }
        answer
    })
}

/// Fails on keys of Kubernetes, which the driver does not use.
fn chokes_on<R: RpcRequest>(keys: fn(&R) -> &BTreeMap<String, String>) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        let is_odd = |key: &String| key.contains("k8s.io/") || key.contains("kubernetes.io/");
        if asked(rpc, &bytes).is_some_and(|request| keys(&request).keys().any(is_odd)) {
            return Err(Status::internal("what is this key"));
        }
        behind.call(rpc, bytes).await
    })
}

pub(super) fn all() -> Vec<Mutant> {
    type Stats = v1::NodeGetVolumeStatsRequest;
    mutants! {
        "Probe fails once its session has run out", "sequences.sidecar":
            not_again(Rpc::Probe, Code::FailedPrecondition);
        "usage is told only to who names the staging path", "sequences.whole-life":
            refuses(Code::InvalidArgument, |r: &Stats| r.staging_target_path.is_empty());
        "a raw device has no usage", "sequences.whole-life-of-device":
            refuses(Code::Internal, |r: &Stats| !std::path::Path::new(&r.volume_path).is_dir()), of_images;
        "unpublishing what was never published fails", "sequences.undo-nothing":
            undoes_once(Rpc::NodePublishVolume, Rpc::NodeUnpublishVolume, Code::Internal);
        "deleting what is published is INTERNAL", "sequences.delete-in-use": deleting_in_use_fails();
        "keys of the kubelet's own are refused", "sequences.added-context":
            refuses(Code::InvalidArgument, |r: &v1::NodePublishVolumeRequest| {
                r.volume_context.keys().any(|key| key.starts_with("csi.storage.k8s.io/"))
            });
        "an inline volume stays when it is unpublished", "ephemeral.leaves-nothing":
            nothing(Rpc::NodeUnpublishVolume), of_inline, leaves_something;
        "an inline volume is wanted to be staged", "ephemeral.comes-and-goes":
            refuses(Code::FailedPrecondition, |r: &v1::NodePublishVolumeRequest| {
                r.staging_target_path.is_empty()
            }), of_inline;
        "one inline volume goes, and all do", "ephemeral.two-are-two": unpublishes_all(), of_inline;
        "inline volumes have no usage", "ephemeral.stats":
            answer::<v1::NodeGetVolumeStatsRequest>(|a| a.usage.clear()), of_inline;
        "an inline volume with a new token is ALREADY_EXISTS", "ephemeral.republished":
            republishing_must_be_the_same(), of_inline;
        "an attached volume is deleted", "sequences.delete-in-use": detaches_first();
        "a delete that is refused empties the volume", "sequences.delete-in-use": refuses_too_late();
        "the claim's name makes the driver fail", "sequences.provisioner":
            chokes_on(|r: &v1::CreateVolumeRequest| &r.parameters);
        "the provisioner's identity makes the driver fail", "sequences.attacher":
            chokes_on(|r: &v1::ControllerPublishVolumeRequest| &r.volume_context);
        "expanding again is an error", "sequences.resizer":
            not_again(Rpc::ControllerExpandVolume, Code::InvalidArgument);
        "the condition has no message", "sequences.health-monitor":
            answer::<v1::ListVolumesRequest>(|a| {
                for status in a.entries.iter_mut().filter_map(|entry| entry.status.as_mut()) {
                    #[allow(deprecated, reason = "external-health-monitor reads it")]
                    status.volume_condition.iter_mut().for_each(|condition| condition.message.clear());
                }
            });
        "the health of one volume is told once", "sequences.health-monitor-of-1-13":
            not_again(Rpc::ControllerGetVolumeHealth, Code::Unavailable);
        "the snapshot's name makes the driver fail", "sequences.snapshotter":
            chokes_on(|r: &v1::CreateSnapshotRequest| &r.parameters);
    }
}
