//! Faults that show in the sequence of calls that the orchestrator makes for a volume, or for an
//! inline volume.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use csi_proto::v1;

use super::*;

/// Fails to delete a published volume.
fn deleting_in_use_fails() -> Fault {
    let published = Arc::new(Mutex::new(BTreeSet::new()));
    fault(move |rpc, bytes, behind| {
        let published = published.clone();
        let id = id_of(&bytes);
        async move {
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
        }
    })
}

/// Unpublishes all inline volumes together with one.
fn unpublishes_all() -> Fault {
    with_state(Mutex::new(BTreeMap::new()), move |all, rpc, bytes, behind| async move {
        if rpc == Rpc::NodePublishVolume {
            let asked = v1::NodePublishVolumeRequest::decode(&*bytes).unwrap();
            all.lock().unwrap().insert(asked.target_path, asked.volume_id);
        }
        let others =
            if rpc == Rpc::NodeUnpublishVolume { all.lock().unwrap().clone() } else { BTreeMap::new() };
        for (target_path, volume_id) in others {
            let undo = v1::NodeUnpublishVolumeRequest { volume_id, target_path };
            let _ = behind.call(rpc, undo.encode_to_vec()).await;
        }
        behind.call(rpc, bytes).await
    })
}

/// Compares the whole request with the one that published the volume.
fn republishing_must_be_the_same() -> Fault {
    with_state(Mutex::new(BTreeMap::new()), move |first, rpc, bytes, behind| async move {
        if rpc == Rpc::NodePublishVolume {
            let asked = v1::NodePublishVolumeRequest::decode(&*bytes).unwrap();
            let known =
                first.lock().unwrap().entry(asked.target_path.clone()).or_insert(asked.clone()).clone();
            if known != asked {
                return Err(Status::already_exists("it is published with another volume_context"));
            }
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
            refuses(Rpc::NodeGetVolumeStats, Code::InvalidArgument, |r: &Stats| {
                r.staging_target_path.is_empty()
            });
        "a raw device has no usage", "sequences.whole-life-of-device":
            refuses(Rpc::NodeGetVolumeStats, Code::Internal, |r: &Stats| {
                !std::path::Path::new(&r.volume_path).is_dir()
            }), of_images;
        "unpublishing what was never published fails", "sequences.undo-nothing":
            undoes_once(Rpc::NodePublishVolume, Rpc::NodeUnpublishVolume, Code::Internal);
        "deleting what is published is INTERNAL", "sequences.delete-in-use": deleting_in_use_fails();
        "keys of the kubelet's own are refused", "sequences.added-context":
            refuses(Rpc::NodePublishVolume, Code::InvalidArgument, |r: &v1::NodePublishVolumeRequest| {
                r.volume_context.keys().any(|key| key.starts_with("csi.storage.k8s.io/"))
            });
        "an inline volume stays when it is unpublished", "ephemeral.leaves-nothing":
            nothing(Rpc::NodeUnpublishVolume), of_inline, leaves_something;
        "an inline volume is wanted to be staged", "ephemeral.comes-and-goes":
            fault(|rpc, bytes, behind| async move {
                if rpc == Rpc::NodePublishVolume
                    && v1::NodePublishVolumeRequest::decode(&*bytes).unwrap().staging_target_path.is_empty()
                {
                    return Err(Status::failed_precondition("staging_target_path is missing"));
                }
                behind.call(rpc, bytes).await
            }), of_inline;
        "one inline volume goes, and all do", "ephemeral.two-are-two": unpublishes_all(), of_inline;
        "inline volumes have no usage", "ephemeral.stats":
            answer(Rpc::NodeGetVolumeStats, |a: &mut v1::NodeGetVolumeStatsResponse| {
                a.usage.clear();
            }), of_inline;
        "an inline volume with a new token is ALREADY_EXISTS", "ephemeral.republished":
            republishing_must_be_the_same(), of_inline;
    }
}
