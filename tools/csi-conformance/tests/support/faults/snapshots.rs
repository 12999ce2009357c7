//! Faults in snapshots.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use csi_proto::v1;
use v1::volume_content_source::{Type, VolumeSource};

use super::*;

/// A restore copies the source's current content instead of the snapshot.
fn restores_the_present() -> Fault {
    with_state(Mutex::new(BTreeMap::new()), move |sources, rpc, bytes, behind| async move {
        let snapshot_of = |request: &v1::CreateVolumeRequest| match request
            .volume_content_source
            .as_ref()?
            .r#type
            .as_ref()?
        {
            Type::Snapshot(source) => sources.lock().unwrap().get(&source.snapshot_id).cloned(),
            Type::Volume(_) => None,
        };
        let asked = (rpc == Rpc::CreateVolume).then(|| v1::CreateVolumeRequest::decode(&*bytes).unwrap());
        if let Some(mut asked) = asked
            && let Some(volume_id) = snapshot_of(&asked)
        {
            let told = asked.volume_content_source.take();
            let r#type = Some(Type::Volume(VolumeSource { volume_id }));
            asked.volume_content_source = Some(v1::VolumeContentSource { r#type });
            let answer = behind.call(rpc, asked.encode_to_vec()).await?;
            return Ok(changed(&answer, |answer: &mut v1::CreateVolumeResponse| {
                answer.volume.as_mut().unwrap().content_source = told;
            }));
        }
        let answer = behind.call(rpc, bytes).await?;
        if rpc == Rpc::CreateSnapshot {
            let snapshot = v1::CreateSnapshotResponse::decode(&*answer).unwrap().snapshot.unwrap();
            sources.lock().unwrap().insert(snapshot.snapshot_id, snapshot.source_volume_id);
        }
        Ok(answer)
    })
}

/// Deletes a volume's snapshots with it.
fn snapshots_go_with_their_volume() -> Fault {
    fault(|rpc, bytes, behind| async move {
        if rpc == Rpc::DeleteVolume {
            let source_volume_id = v1::DeleteVolumeRequest::decode(&*bytes).unwrap().volume_id;
            if !source_volume_id.is_empty() {
                let list = v1::ListSnapshotsRequest { source_volume_id, ..Default::default() };
                let all = behind.call(Rpc::ListSnapshots, list.encode_to_vec()).await.unwrap_or_default();
                let all = v1::ListSnapshotsResponse::decode(&*all).unwrap().entries.into_iter();
                for snapshot in all.filter_map(|entry| entry.snapshot) {
                    let delete =
                        v1::DeleteSnapshotRequest { snapshot_id: snapshot.snapshot_id, ..Default::default() };
                    let _ = behind.call(Rpc::DeleteSnapshot, delete.encode_to_vec()).await;
                }
            }
        }
        behind.call(rpc, bytes).await
    })
}

/// Deletes the volume that was restored from a snapshot together with the snapshot.
fn volumes_go_with_their_snapshot() -> Fault {
    with_state(Mutex::new(BTreeMap::new()), move |restored, rpc, bytes, behind| async move {
        let answer = behind.call(rpc, bytes.clone()).await?;
        if rpc == Rpc::CreateVolume {
            let volume = v1::CreateVolumeResponse::decode(&*answer).unwrap().volume.unwrap();
            if let Some(Type::Snapshot(source)) = volume.content_source.and_then(|source| source.r#type) {
                restored.lock().unwrap().insert(source.snapshot_id, volume.volume_id);
            }
        }
        let gone = (rpc == Rpc::DeleteSnapshot).then(|| restored.lock().unwrap().remove(&id_of(&bytes)));
        if let Some(volume_id) = gone.flatten() {
            let delete = v1::DeleteVolumeRequest { volume_id, ..Default::default() };
            behind.call(Rpc::DeleteVolume, delete.encode_to_vec()).await?;
        }
        Ok(answer)
    })
}

/// Lists snapshots whose creation failed.
fn lists_what_failed() -> Fault {
    with_state(Mutex::new(Vec::new()), move |failed, rpc, bytes, behind| async move {
        let answer = behind.call(rpc, bytes.clone()).await;
        if rpc == Rpc::CreateSnapshot && answer.is_err() {
            let asked = v1::CreateSnapshotRequest::decode(&*bytes).unwrap();
            let snapshot_id = asked.name;
            let source_volume_id = asked.source_volume_id;
            let snapshot = Some(v1::Snapshot { snapshot_id, source_volume_id, ..Default::default() });
            failed.lock().unwrap().push(v1::list_snapshots_response::Entry { snapshot });
        }
        if rpc != Rpc::ListSnapshots {
            return answer;
        }
        let more = failed.lock().unwrap().clone();
        Ok(changed(&answer?, |list: &mut v1::ListSnapshotsResponse| list.entries.extend(more)))
    })
}

/// Refuses a list that would be empty.
fn nothing_is_not_found() -> Fault {
    fault(|rpc, bytes, behind| async move {
        let answer = behind.call(rpc, bytes).await?;
        if rpc == Rpc::ListSnapshots
            && v1::ListSnapshotsResponse::decode(&*answer).unwrap().entries.is_empty()
        {
            return Err(Status::not_found("no snapshot matches"));
        }
        Ok(answer)
    })
}

fn now() -> prost_types::Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    prost_types::Timestamp { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() as i32 }
}

pub(super) fn all() -> Vec<Mutant> {
    type Cut = v1::CreateSnapshotResponse;
    mutants! {
        "a snapshot of another source", "snapshots.answer-is-whole":
            answer(Rpc::CreateSnapshot, |a: &mut Cut| {
                a.snapshot.as_mut().unwrap().source_volume_id = "another".into();
            });
        "a snapshot without its time", "every-call.answers":
            answer(Rpc::GetSnapshot, |a: &mut v1::GetSnapshotResponse| {
                a.snapshot.as_mut().unwrap().creation_time = None;
            });
        "a snapshot that failed is not ready for ever", "snapshots.becomes-ready":
            answer(Rpc::CreateSnapshot, |a: &mut Cut| a.snapshot.as_mut().unwrap().ready_to_use = false);
        "snapshots that are not ready are not listed", "snapshots.listed-as-it-is":
            answer(Rpc::ListSnapshots, |a: &mut v1::ListSnapshotsResponse| {
                a.entries.retain(|entry| entry.snapshot.as_ref().is_some_and(|one| one.ready_to_use));
            });
        "snapshots go with their volume", "snapshots.outlives-its-source": snapshots_go_with_their_volume();
        "what is restored is of now", "contents.restored": restores_the_present();
        "a snapshot is cut some time after the answer", "contents.cut-before-answer":
            restores_the_present(), of_images;
        "a snapshot's time is that of the call", "snapshots.same-name-same-snapshot":
            answer(Rpc::CreateSnapshot, |a: &mut Cut| {
                a.snapshot.as_mut().unwrap().creation_time = Some(now());
            });
        "a name that another source's snapshot has is INTERNAL", "snapshots.same-name-other-source":
            code(Rpc::CreateSnapshot, Code::AlreadyExists, Code::Internal);
        "a snapshot of what is not there is OK", "snapshots.missing-source":
            accepted(Rpc::CreateSnapshot, Code::NotFound);
        "a volume has one snapshot", "snapshots.ids-differ":
            request(Rpc::CreateSnapshot, |r: &mut v1::CreateSnapshotRequest| {
                if !r.name.is_empty() && !r.source_volume_id.is_empty() {
                    r.name.clone_from(&r.source_volume_id);
                }
            });
        "deleting a snapshot again is NOT_FOUND", "snapshots.delete-is-idempotent":
            not_again(Rpc::DeleteSnapshot, Code::NotFound);
        "deleting a snapshot says OK and does nothing", "snapshots.deleted-is-gone":
            nothing(Rpc::DeleteSnapshot), leaves_something;
        "what is restored goes with its snapshot", "snapshots.in-use": volumes_go_with_their_snapshot();
        "a snapshot can't be restored", "snapshots.restore":
            refuses(Rpc::CreateVolume, Code::InvalidArgument, |r: &v1::CreateVolumeRequest| {
                let source = r.volume_content_source.as_ref().and_then(|source| source.r#type.as_ref());
                matches!(source, Some(Type::Snapshot(_)))
            });
        "what is restored does not tell its snapshot", "create-volume.source-is-named":
            answer(Rpc::CreateVolume, |a: &mut v1::CreateVolumeResponse| {
                a.volume.as_mut().unwrap().content_source = None;
            });
        "the filters of the list are passed over", "snapshots.listed":
            request(Rpc::ListSnapshots, |r: &mut v1::ListSnapshotsRequest| {
                r.source_volume_id.clear();
                r.snapshot_id.clear();
            });
        "a filter that matches nothing is NOT_FOUND", "snapshots.unknown-filter": nothing_is_not_found();
        "all snapshots are on the first page", "snapshots.pages":
            request(Rpc::ListSnapshots, |r: &mut v1::ListSnapshotsRequest| r.max_entries = 0);
        "a token that is not known ends the list", "snapshots.bad-token":
            accepted(Rpc::ListSnapshots, Code::Aborted);
        "what could not be cut is listed", "snapshots.uncut-is-not-listed": lists_what_failed();
        "a snapshot that is not there is told empty", "snapshots.get":
            accepted(Rpc::GetSnapshot, Code::NotFound);
        "a snapshot is told ready before it is", "snapshots.told-as-it-is":
            answer(Rpc::GetSnapshot, |a: &mut v1::GetSnapshotResponse| {
                a.snapshot.as_mut().unwrap().ready_to_use = true;
            });
    }
}
