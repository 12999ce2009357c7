//! Faults in snapshots, in groups of them, and in what is told of their blocks.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use csi_proto::v1;
use v1::volume_content_source::{Type, VolumeSource};

use super::*;

/// Cuts nothing: what is restored is what the source holds by then.
fn restores_the_present() -> Fault {
    let sources = Arc::new(Mutex::new(BTreeMap::new()));
    fault(move |rpc, bytes, behind| {
        let sources = sources.clone();
        async move {
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
        }
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

/// Cuts a group anew for each call: the second answer has another id.
fn group_is_cut_twice() -> Fault {
    let count = Arc::new(AtomicU32::new(0));
    fault(move |rpc, bytes, behind| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        async move {
            let bytes = match rpc {
                Rpc::CreateVolumeGroupSnapshot => {
                    changed(&bytes, |request: &mut v1::CreateVolumeGroupSnapshotRequest| {
                        if !request.name.is_empty() && request.name.len() < 120 {
                            request.name.push_str(&format!("~{number}"));
                        }
                    })
                }
                _ => bytes,
            };
            behind.call(rpc, bytes).await
        }
    })
}

/// A group with a volume that is not there is refused when the first was cut.
fn half_a_group_is_left() -> Fault {
    fault(|rpc, bytes, behind| async move {
        let answer = behind.call(rpc, bytes.clone()).await;
        if rpc == Rpc::CreateVolumeGroupSnapshot
            && let Err(status) = &answer
            && status.code() == Code::NotFound
        {
            let request = v1::CreateVolumeGroupSnapshotRequest::decode(&*bytes).unwrap();
            let source_volume_id = request.source_volume_ids[0].clone();
            let cut =
                v1::CreateSnapshotRequest { source_volume_id, name: request.name, ..Default::default() };
            let _ = behind.call(Rpc::CreateSnapshot, cut.encode_to_vec()).await;
        }
        answer
    })
}

/// Tells members of groups that were deleted.
fn members_live_on() -> Fault {
    let members = Arc::new(Mutex::new(BTreeMap::new()));
    fault(move |rpc, bytes, behind| {
        let members = members.clone();
        async move {
            let answer = behind.call(rpc, bytes.clone()).await;
            if rpc == Rpc::CreateVolumeGroupSnapshot
                && let Ok(answer) = &answer
            {
                let group = v1::CreateVolumeGroupSnapshotResponse::decode(&**answer).unwrap().group_snapshot;
                let all = group.unwrap().snapshots.into_iter().map(|one| (one.snapshot_id.clone(), one));
                members.lock().unwrap().extend(all);
            }
            if rpc == Rpc::GetSnapshot && answer.is_err() {
                let id = v1::GetSnapshotRequest::decode(&*bytes).unwrap().snapshot_id;
                if let Some(snapshot) = members.lock().unwrap().get(&id).cloned() {
                    return Ok(v1::GetSnapshotResponse { snapshot: Some(snapshot) }.encode_to_vec());
                }
            }
            answer
        }
    })
}

pub(super) fn all() -> Vec<Mutant> {
    type Cut = v1::CreateSnapshotResponse;
    type Allocated = v1::GetMetadataAllocatedResponse;
    vec![
        mutant(
            "a snapshot of another source",
            "snapshots.answer-is-whole",
            answer(Rpc::CreateSnapshot, |a: &mut Cut| {
                a.snapshot.as_mut().unwrap().source_volume_id = "another".into();
            }),
        ),
        mutant(
            "a snapshot without its time",
            "every-call.answers",
            answer(Rpc::GetSnapshot, |a: &mut v1::GetSnapshotResponse| {
                a.snapshot.as_mut().unwrap().creation_time = None;
            }),
        ),
        mutant(
            "a snapshot that failed is not ready for ever",
            "snapshots.becomes-ready",
            answer(Rpc::CreateSnapshot, |a: &mut Cut| a.snapshot.as_mut().unwrap().ready_to_use = false),
        ),
        mutant(
            "snapshots that are not ready are not listed",
            "snapshots.listed-as-it-is",
            answer(Rpc::ListSnapshots, |a: &mut v1::ListSnapshotsResponse| {
                a.entries.retain(|entry| entry.snapshot.as_ref().is_some_and(|one| one.ready_to_use));
            }),
        ),
        mutant(
            "snapshots go with their volume",
            "snapshots.outlives-its-source",
            snapshots_go_with_their_volume(),
        ),
        mutant("what is restored is of now", "contents.restored", restores_the_present()),
        mutant(
            "a snapshot is cut some time after the answer",
            "contents.cut-before-answer",
            restores_the_present(),
        )
        .of_images(),
        mutant("a group is cut twice", "groups.same-name-same-group", group_is_cut_twice()),
        mutant(
            "a group of other sources is answered",
            "groups.same-name-other-sources",
            fault(|rpc, bytes, behind| async move {
                match behind.call(rpc, bytes).await {
                    Err(status)
                        if rpc == Rpc::CreateVolumeGroupSnapshot && status.code() == Code::AlreadyExists =>
                    {
                        Err(Status::internal(status.message()))
                    }
                    answer => answer,
                }
            }),
        ),
        mutant(
            "a member is deleted alone",
            "groups.not-deleted-alone",
            accepted(Rpc::DeleteSnapshot, Code::InvalidArgument),
        ),
        mutant("half a group is left", "groups.failure-leaves-nothing", half_a_group_is_left())
            .leaves_something(),
        mutant("members are told after their group is gone", "groups.deleted-together", members_live_on()),
        mutant(
            "a member does not name its group",
            "groups.told-with-group",
            answer(Rpc::GetSnapshot, |a: &mut v1::GetSnapshotResponse| {
                a.snapshot.as_mut().unwrap().group_snapshot_id.clear();
            }),
        ),
        mutant(
            "more ranges in a message than were asked for",
            "metadata.all-data",
            request(Rpc::GetMetadataAllocated, |r: &mut v1::GetMetadataAllocatedRequest| r.max_results = 0),
        )
        .of_images(),
        mutant(
            "ranges are in no order",
            "metadata.all-data",
            stream(Rpc::GetMetadataAllocated, |messages: &mut Vec<Allocated>| messages.reverse()),
        )
        .of_images(),
        mutant(
            "a range is told twice",
            "metadata.all-data",
            stream(Rpc::GetMetadataAllocated, |messages: &mut Vec<Allocated>| {
                messages.extend(messages.last().cloned());
            }),
        )
        .of_images(),
        mutant(
            "the last changes are left out",
            "metadata.all-changes",
            stream(Rpc::GetMetadataDelta, |messages: &mut Vec<v1::GetMetadataDeltaResponse>| {
                messages.pop();
            }),
        )
        .of_images(),
        mutant(
            "a stream begins at the beginning",
            "metadata.from-offset",
            request(Rpc::GetMetadataAllocated, |r: &mut v1::GetMetadataAllocatedRequest| {
                r.starting_offset = 0;
            }),
        )
        .of_images(),
        mutant(
            "snapshots of two volumes are compared",
            "metadata.of-two-volumes",
            accepted(Rpc::GetMetadataDelta, Code::InvalidArgument),
        )
        .of_images(),
    ]
}
