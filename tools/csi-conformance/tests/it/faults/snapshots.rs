//! Faults in snapshots, and in their block metadata.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use csi_proto::v1;
use v1::volume_content_source::{Type, VolumeSource};

use super::*;

/// A restore copies the source's current content instead of the snapshot.
fn restores_the_present() -> Fault {
    with_state(Mutex::new(BTreeMap::new()), move |sources, rpc, bytes, behind| async move {
        let volume_of = |source: &v1::VolumeContentSource| match source.r#type.as_ref()? {
            Type::Snapshot(source) => sources.lock().unwrap().get(&source.snapshot_id).cloned(),
            Type::Volume(_) => None,
        };
        if let Some(mut create) = asked::<v1::CreateVolumeRequest>(rpc, &bytes)
            && let Some(volume_id) = create.volume_content_source.as_ref().and_then(volume_of)
        {
            let told = create.volume_content_source.take();
            let r#type = Some(Type::Volume(VolumeSource { volume_id }));
            create.volume_content_source = Some(v1::VolumeContentSource { r#type });
            let mut answer = behind.ask(&create).await?;
            answer.volume.as_mut().unwrap().content_source = told;
            return Ok(answer.encode_to_vec());
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
    only(|delete: v1::DeleteVolumeRequest, behind| async move {
        let source_volume_id = delete.volume_id.clone();
        if !source_volume_id.is_empty() {
            let list = v1::ListSnapshotsRequest { source_volume_id, ..Default::default() };
            let all = behind.ask(&list).await.unwrap_or_default().entries.into_iter();
            for snapshot_id in all.filter_map(|entry| Some(entry.snapshot?.snapshot_id)) {
                let _ = behind.ask(&v1::DeleteSnapshotRequest { snapshot_id, ..Default::default() }).await;
            }
        }
        behind.ask(&delete).await
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
            behind.ask(&v1::DeleteVolumeRequest { volume_id, ..Default::default() }).await?;
        }
        Ok(answer)
    })
}

/// Lists snapshots whose creation failed.
fn lists_what_failed() -> Fault {
    with_state(Mutex::new(Vec::new()), move |failed, rpc, bytes, behind| async move {
        let answer = behind.call(rpc, bytes.clone()).await;
        if let Some(cut) = asked::<v1::CreateSnapshotRequest>(rpc, &bytes).filter(|_| answer.is_err()) {
            let snapshot_id = cut.name;
            let source_volume_id = cut.source_volume_id;
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
    only(|list: v1::ListSnapshotsRequest, behind| async move {
        let answer = behind.ask(&list).await?;
        if answer.entries.is_empty() { Err(Status::not_found("no snapshot matches")) } else { Ok(answer) }
    })
}

fn now() -> prost_types::Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    prost_types::Timestamp { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() as i32 }
}

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
        "a snapshot of another source", "snapshots.answer-is-whole":
            answer::<v1::CreateSnapshotRequest>(|a| {
                a.snapshot.as_mut().unwrap().source_volume_id = "another".into();
            });
        "a snapshot without its time", "every-call.answers":
            answer::<v1::GetSnapshotRequest>(|a| a.snapshot.as_mut().unwrap().creation_time = None);
        "a snapshot that failed is not ready for ever", "snapshots.becomes-ready":
            answer::<v1::CreateSnapshotRequest>(|a| a.snapshot.as_mut().unwrap().ready_to_use = false);
        "snapshots that are not ready are not listed", "snapshots.listed-as-it-is":
            answer::<v1::ListSnapshotsRequest>(|a| {
                a.entries.retain(|entry| entry.snapshot.as_ref().is_some_and(|one| one.ready_to_use));
            });
        "snapshots go with their volume", "snapshots.outlives-its-source": snapshots_go_with_their_volume();
        "what is restored is of now", "contents.restored": restores_the_present();
        "a snapshot is cut some time after the answer", "contents.cut-before-answer":
            restores_the_present(), of_images;
        "a snapshot's time is that of the call", "snapshots.same-name-same-snapshot":
            answer::<v1::CreateSnapshotRequest>(|a| a.snapshot.as_mut().unwrap().creation_time = Some(now()));
        "a name that another source's snapshot has is INTERNAL", "snapshots.same-name-other-source":
            code(Rpc::CreateSnapshot, Code::AlreadyExists, Code::Internal);
        "a snapshot of what is not there is OK", "snapshots.missing-source":
            accepted(Rpc::CreateSnapshot, Code::NotFound);
        "a volume has one snapshot", "snapshots.ids-differ":
            request(|r: &mut v1::CreateSnapshotRequest| {
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
            refuses(Code::InvalidArgument, |r: &v1::CreateVolumeRequest| {
                let source = r.volume_content_source.as_ref().and_then(|source| source.r#type.as_ref());
                matches!(source, Some(Type::Snapshot(_)))
            });
        "what is restored does not tell its snapshot", "create-volume.source-is-named":
            answer::<v1::CreateVolumeRequest>(|a| a.volume.as_mut().unwrap().content_source = None);
        "the filters of the list are passed over", "snapshots.listed":
            request(|r: &mut v1::ListSnapshotsRequest| {
                r.source_volume_id.clear();
                r.snapshot_id.clear();
            });
        "a filter that matches nothing is NOT_FOUND", "snapshots.unknown-filter": nothing_is_not_found();
        "all snapshots are on the first page", "snapshots.pages":
            request(|r: &mut v1::ListSnapshotsRequest| r.max_entries = 0);
        "a token that is not known ends the list", "snapshots.bad-token":
            accepted(Rpc::ListSnapshots, Code::Aborted);
        "what could not be cut is listed", "snapshots.uncut-is-not-listed": lists_what_failed();
        "a snapshot that is not there is told empty", "snapshots.get":
            accepted(Rpc::GetSnapshot, Code::NotFound);
        "a snapshot is told ready before it is", "snapshots.told-as-it-is":
            answer::<v1::GetSnapshotRequest>(|a| a.snapshot.as_mut().unwrap().ready_to_use = true);
        "more ranges in a message than were asked for", "metadata.all-data":
            request(|r: &mut v1::GetMetadataAllocatedRequest| r.max_results = 0), of_images;
        "ranges are in no order", "metadata.all-data":
            stream::<v1::GetMetadataAllocatedRequest>(|messages| messages.reverse()), of_images;
        "a range is told twice", "metadata.all-data":
            stream::<v1::GetMetadataAllocatedRequest>(|messages| {
                messages.extend(messages.last().cloned());
            }), of_images;
        "the last changes are left out", "metadata.all-changes":
            stream::<v1::GetMetadataDeltaRequest>(|messages| {
                messages.pop();
            }), of_images;
        "a stream begins at the beginning", "metadata.from-offset":
            request(|r: &mut v1::GetMetadataAllocatedRequest| r.starting_offset = 0), of_images;
        "snapshots of two volumes are compared", "metadata.of-two-volumes":
            accepted(Rpc::GetMetadataDelta, Code::InvalidArgument), of_images;
        "the volume's capacity is not told with its blocks", "metadata.allocated":
            stream::<v1::GetMetadataAllocatedRequest>(|messages| {
                messages.iter_mut().for_each(|one| one.volume_capacity_bytes = 0);
            }), of_images;
        "changed ranges are in no order", "metadata.delta":
            stream::<v1::GetMetadataDeltaRequest>(|messages| {
                messages.iter_mut().for_each(|one| one.block_metadata.reverse());
            }), of_images;
        "a snapshot that is not there has no blocks", "metadata.not-found":
            accepted(Rpc::GetMetadataAllocated, Code::NotFound), of_images;
        "nothing has changed since a snapshot that is not there", "metadata.delta-not-found":
            accepted(Rpc::GetMetadataDelta, Code::NotFound), of_images;
    }
}
