//! Not faults: drivers that are right, and unusual.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use csi_proto::v1;

use super::*;

/// Runs one call at a time, and answers ABORTED to others. A call that its caller abandons continues.
pub(crate) fn one_call_at_a_time() -> Fault {
    with_state(AtomicBool::new(false), |running, rpc, bytes, behind| async move {
        if rpc.service() == csi_core::Service::Identity {
            return behind.call(rpc, bytes).await;
        }
        if running.swap(true, Ordering::SeqCst) {
            return Err(Status::aborted("another operation is running"));
        }
        let work = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let answer = behind.call(rpc, bytes).await;
            running.store(false, Ordering::SeqCst);
            answer
        });
        work.await.unwrap()
    })
}

/// Creates a volume in the background: until it exists, CreateVolume is ABORTED.
pub(crate) fn creates_in_background() -> Fault {
    with_state(Mutex::new(BTreeMap::new()), |begun, rpc, bytes, behind| async move {
        let answer = behind.call(rpc, bytes.clone()).await?;
        if let Some(create) = asked::<v1::CreateVolumeRequest>(rpc, &bytes) {
            let since = *begun.lock().unwrap().entry(create.name).or_insert_with(Instant::now);
            if since.elapsed() < Duration::from_millis(20) {
                return Err(Status::aborted("the volume is being created"));
            }
        }
        Ok(answer)
    })
}

/// Needs to know where a volume will be used.
pub(crate) fn needs_a_place() -> Fault {
    refuses(Code::InvalidArgument, |request: &v1::CreateVolumeRequest| {
        request.accessibility_requirements.is_none()
    })
}

/// Rounds sizes up to this one, and refuses a copy that is smaller than its source.
pub(crate) fn has_volumes_of(smallest: i64) -> Fault {
    with_state(Mutex::new(BTreeMap::new()), move |sizes, rpc, bytes, behind| async move {
        use v1::volume_content_source::Type;
        if let Some(cut) = asked::<v1::CreateSnapshotRequest>(rpc, &bytes) {
            let answer = behind.ask(&cut).await?;
            let snapshot = answer.snapshot.clone().unwrap();
            sizes.lock().unwrap().insert(snapshot.snapshot_id, snapshot.size_bytes);
            return Ok(answer.encode_to_vec());
        }
        if let Some(expand) = asked::<v1::ControllerExpandVolumeRequest>(rpc, &bytes) {
            let now = sizes.lock().unwrap().get(&expand.volume_id).copied().unwrap_or_default();
            let range = expand.capacity_range.unwrap_or_default();
            if (1..=now).contains(&range.required_bytes) && range.limit_bytes == 0 {
                let answer = v1::ControllerExpandVolumeResponse { capacity_bytes: now, ..Default::default() };
                return Ok(answer.encode_to_vec());
            }
            let answer = behind.ask(&expand).await?;
            sizes.lock().unwrap().insert(expand.volume_id, answer.capacity_bytes);
            return Ok(answer.encode_to_vec());
        }
        let Some(mut create) = asked::<v1::CreateVolumeRequest>(rpc, &bytes) else {
            return behind.call(rpc, bytes).await;
        };
        let source = create.volume_content_source.as_ref().and_then(|source| source.r#type.as_ref());
        let source = source.map(|source| match source {
            Type::Snapshot(source) => source.snapshot_id.clone(),
            Type::Volume(source) => source.volume_id.clone(),
        });
        let least = source.and_then(|id| sizes.lock().unwrap().get(&id).copied()).unwrap_or_default();
        if create.capacity_range.unwrap_or_default().required_bytes < least {
            return Err(Status::out_of_range(format!("the source has {least} bytes")));
        }
        if let Some(range) = &mut create.capacity_range
            && range.limit_bytes == 0
            && range.required_bytes > 0
        {
            range.required_bytes = range.required_bytes.max(smallest);
        }
        let answer = behind.ask(&create).await?;
        let volume = answer.volume.clone().unwrap();
        sizes.lock().unwrap().insert(volume.volume_id, volume.capacity_bytes);
        Ok(answer.encode_to_vec())
    })
}

/// Has room for three volumes and snapshots.
pub(crate) fn has_little_room() -> Fault {
    with_state(Mutex::new(BTreeSet::new()), |all, rpc, bytes, behind| async move {
        let id = id_of(&bytes);
        let answer = behind.call(rpc, bytes).await?;
        let made = match rpc {
            Rpc::CreateVolume => {
                v1::CreateVolumeResponse::decode(&*answer).unwrap().volume.unwrap().volume_id
            }
            Rpc::CreateSnapshot => {
                v1::CreateSnapshotResponse::decode(&*answer).unwrap().snapshot.unwrap().snapshot_id
            }
            Rpc::DeleteVolume | Rpc::DeleteSnapshot => {
                all.lock().unwrap().remove(&id);
                return Ok(answer);
            }
            _ => return Ok(answer),
        };
        let has_room = {
            let mut all = all.lock().unwrap();
            all.contains(&made) || all.len() < 3 && all.insert(made.clone())
        };
        if has_room {
            return Ok(answer);
        }
        if rpc == Rpc::CreateVolume {
            behind.ask(&v1::DeleteVolumeRequest { volume_id: made, ..Default::default() }).await?;
        } else {
            behind.ask(&v1::DeleteSnapshotRequest { snapshot_id: made, ..Default::default() }).await?;
        }
        Err(Status::resource_exhausted("the pool is full"))
    })
}

/// Takes snapshots only of volumes that are attached to no node.
pub(crate) fn snapshots_at_rest() -> Fault {
    with_state(Mutex::new(BTreeSet::new()), |attached, rpc, bytes, behind| async move {
        let id = id_of(&bytes);
        if rpc == Rpc::CreateSnapshot && attached.lock().unwrap().contains(&id) {
            return Err(Status::failed_precondition("the volume is in use"));
        }
        let answer = behind.call(rpc, bytes).await?;
        match rpc {
            Rpc::ControllerPublishVolume => drop(attached.lock().unwrap().insert(id)),
            Rpc::ControllerUnpublishVolume => drop(attached.lock().unwrap().remove(&id)),
            _ => {}
        }
        Ok(answer)
    })
}

/// A node takes one volume at a time.
pub(crate) fn attaches_one() -> Fault {
    with_state(Mutex::new(None::<(String, String)>), |attached, rpc, bytes, behind| async move {
        if let Some(attach) = asked::<v1::ControllerPublishVolumeRequest>(rpc, &bytes) {
            let now = attached.lock().unwrap().clone();
            if let Some((volume, node)) = now
                && volume != attach.volume_id
                && node == attach.node_id
            {
                // Everything else is checked before the limit.
                behind.ask(&v1::ControllerGetVolumeRequest { volume_id: attach.volume_id }).await?;
                return Err(Status::resource_exhausted(format!("{volume} is attached")));
            }
            let answer = behind.call(rpc, bytes).await?;
            *attached.lock().unwrap() = Some((attach.volume_id, attach.node_id));
            return Ok(answer);
        }
        let answer = behind.call(rpc, bytes.clone()).await?;
        if rpc == Rpc::NodeGetInfo {
            return Ok(changed(&answer, |a: &mut v1::NodeGetInfoResponse| a.max_volumes_per_node = 1));
        }
        if rpc == Rpc::ControllerUnpublishVolume {
            let id = id_of(&bytes);
            attached.lock().unwrap().take_if(|(volume, _)| *volume == id);
        }
        Ok(answer)
    })
}

/// Has small pages, whatever page size the caller asks for.
pub(crate) fn small_pages() -> Fault {
    fault(|rpc, bytes, behind| async move {
        let bytes = match rpc {
            Rpc::ListVolumes => changed(&bytes, |r: &mut v1::ListVolumesRequest| small(&mut r.max_entries)),
            Rpc::ListSnapshots => {
                changed(&bytes, |r: &mut v1::ListSnapshotsRequest| small(&mut r.max_entries))
            }
            Rpc::ControllerListVolumeHealth => {
                changed(&bytes, |r: &mut v1::ControllerListVolumeHealthRequest| small(&mut r.max_entries))
            }
            _ => bytes,
        };
        behind.call(rpc, bytes).await
    })
}

/// A negative value stays negative, so that it is refused.
fn small(max_entries: &mut i32) {
    if *max_entries >= 0 {
        *max_entries = 1;
    }
}
