//! Faults in making, deleting and listing volumes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use csi_proto::v1;

use super::*;

fn other_name(bytes: &[u8], number: u32) -> Vec<u8> {
    changed(bytes, |request: &mut v1::CreateVolumeRequest| {
        if !request.name.is_empty() && request.name.len() < 120 {
            request.name.push_str(&format!("~{number}"));
        }
    })
}

fn not_idempotent() -> Fault {
    let count = Arc::new(AtomicU32::new(0));
    fault(move |rpc, bytes, behind| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        async move {
            let bytes = if rpc == Rpc::CreateVolume { other_name(&bytes, number) } else { bytes };
            behind.call(rpc, bytes).await
        }
    })
}

/// Looks whether the name is there, does something slow, and makes it then: two at once each make one.
fn doubles_in_parallel() -> Fault {
    let (made, count) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicU32::new(0)));
    fault(move |rpc, bytes, behind| {
        let (made, number) = (made.clone(), count.fetch_add(1, Ordering::SeqCst));
        async move {
            if rpc != Rpc::CreateVolume {
                return behind.call(rpc, bytes).await;
            }
            let name = v1::CreateVolumeRequest::decode(&*bytes).unwrap().name;
            let is_there = made.lock().unwrap().contains(&name);
            tokio::time::sleep(Duration::from_millis(5)).await;
            let first = made.lock().unwrap().insert(name);
            behind.call(rpc, if is_there || first { bytes } else { other_name(&bytes, number) }).await
        }
    })
}

/// One at a time by a lock that the caller's future holds, and what was made is noted by that future too; the work
/// itself goes on without either.
fn drops_the_lock_on_cancel() -> Fault {
    let done = Arc::new(tokio::sync::Mutex::new(BTreeMap::<String, u32>::new()));
    let count = Arc::new(AtomicU32::new(0));
    fault(move |rpc, bytes, behind| {
        let (done, number) = (done.clone(), count.fetch_add(1, Ordering::SeqCst));
        async move {
            if rpc != Rpc::CreateVolume {
                return behind.call(rpc, bytes).await;
            }
            let name = v1::CreateVolumeRequest::decode(&*bytes).unwrap().name;
            let mut done = done.lock().await;
            let number = done.get(&name).copied().unwrap_or(number);
            let work = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(40)).await;
                behind.call(rpc, other_name(&bytes, number)).await
            });
            let answer = work.await.unwrap()?;
            done.insert(name, number);
            Ok(answer)
        }
    })
}

fn unstable_paging() -> Fault {
    fault(|rpc, bytes, behind| async move {
        if rpc != Rpc::ListVolumes {
            return behind.call(rpc, bytes).await;
        }
        // A token that is a position.
        let asked = v1::ListVolumesRequest::decode(&*bytes).unwrap();
        let from = match asked.starting_token.as_str() {
            "" => 0,
            token => token.parse::<usize>().map_err(|_| Status::aborted("no such token"))?,
        };
        let all = behind.call(rpc, v1::ListVolumesRequest::default().encode_to_vec()).await?;
        let most = if asked.max_entries > 0 { asked.max_entries as usize } else { usize::MAX };
        Ok(changed(&all, |all: &mut v1::ListVolumesResponse| {
            let total = all.entries.len();
            let rest: Vec<_> = std::mem::take(&mut all.entries).into_iter().skip(from).take(most).collect();
            let end = from + rest.len();
            all.entries = rest;
            all.next_token = if end < total { end.to_string() } else { String::new() };
        }))
    })
}

/// Makes a new volume where a copy is asked for, and tells that it is one.
fn empty_clones() -> Fault {
    fault(|rpc, bytes, behind| async move {
        if rpc != Rpc::CreateVolume {
            return behind.call(rpc, bytes).await;
        }
        let mut source = None;
        let bytes = changed(&bytes, |request: &mut v1::CreateVolumeRequest| {
            source = request.volume_content_source.take();
        });
        let answer = behind.call(rpc, bytes).await?;
        Ok(changed(&answer, |answer: &mut v1::CreateVolumeResponse| {
            answer.volume.as_mut().unwrap().content_source = source;
        }))
    })
}

/// Lists volumes that were deleted.
fn lists_the_dead() -> Fault {
    let dead = Arc::new(Mutex::new(Vec::new()));
    fault(move |rpc, bytes, behind| {
        let dead = dead.clone();
        async move {
            let answer = behind.call(rpc, bytes.clone()).await?;
            if rpc == Rpc::DeleteVolume {
                dead.lock().unwrap().push(v1::DeleteVolumeRequest::decode(&*bytes).unwrap().volume_id);
            }
            let token = |bytes: &[u8]| v1::ListVolumesRequest::decode(bytes).unwrap().starting_token;
            if rpc != Rpc::ListVolumes || !token(&bytes).is_empty() {
                return Ok(answer);
            }
            Ok(changed(&answer, |list: &mut v1::ListVolumesResponse| {
                for volume_id in dead.lock().unwrap().iter().cloned() {
                    let volume = Some(v1::Volume { volume_id, ..Default::default() });
                    let status = Some(Default::default());
                    list.entries.push(v1::list_volumes_response::Entry { volume, status });
                }
            }))
        }
    })
}

pub(super) fn all() -> Vec<Mutant> {
    type Create = v1::CreateVolumeResponse;
    vec![
        mutant("create is not idempotent", "create-volume.same-name-same-volume", not_idempotent())
            .leaves_something(),
        mutant("parallel creates double a volume", "concurrency.same-create-at-once", doubles_in_parallel()),
        mutant("a caller that hangs up drops the lock", "concurrency.given-up", drops_the_lock_on_cancel())
            .leaves_something(),
        mutant(
            "the wrong code for a name that is taken",
            "create-volume.same-name-other-size",
            status(|rpc, _, status| match (rpc, status.code()) {
                (Rpc::CreateVolume, Code::AlreadyExists) => Err(Status::internal(status.message())),
                _ => Err(status),
            }),
        ),
        mutant(
            "deleting what is gone is an error",
            "create-volume.delete-is-idempotent",
            fault(|rpc, bytes, behind| async move {
                if rpc == Rpc::DeleteVolume {
                    let volume_id = v1::DeleteVolumeRequest::decode(&*bytes).unwrap().volume_id;
                    let get = v1::ControllerGetVolumeRequest { volume_id }.encode_to_vec();
                    behind.call(Rpc::ControllerGetVolume, get).await?;
                }
                behind.call(rpc, bytes).await
            }),
        ),
        mutant(
            "delete says OK and does nothing",
            "create-volume.again-after-delete",
            nothing(Rpc::DeleteVolume),
        )
        .leaves_something(),
        mutant("deleted volumes are listed", "list-volumes.lists-what-is", lists_the_dead()),
        mutant("pages by position", "list-volumes.pages-under-change", unstable_paging()),
        mutant(
            "more entries than were asked for",
            "list-volumes.pages",
            request(Rpc::ListVolumes, |r: &mut v1::ListVolumesRequest| {
                r.max_entries = r.max_entries.min(1) * 3;
            }),
        ),
        mutant(
            "empty ids are taken",
            "fields.controller-required",
            status(|rpc, _, status| match (rpc, status.code()) {
                (Rpc::DeleteVolume, Code::InvalidArgument) => Ok(vec![]),
                _ => Err(status),
            }),
        ),
        mutant(
            "a volume smaller than was asked for",
            "create-volume.at-least-the-size",
            answer(Rpc::CreateVolume, |a: &mut Create| a.volume.as_mut().unwrap().capacity_bytes /= 2),
        ),
        mutant(
            "a clone does not tell its source",
            "create-volume.clone",
            answer(Rpc::CreateVolume, |a: &mut Create| a.volume.as_mut().unwrap().content_source = None),
        ),
        mutant(
            "a capability that is not supported is confirmed, without naming it",
            "create-volume.confirmed",
            answer(Rpc::ValidateVolumeCapabilities, |a: &mut v1::ValidateVolumeCapabilitiesResponse| {
                a.confirmed = Some(Default::default());
            }),
        ),
        mutant("a clone is empty", "contents.clone", empty_clones()),
        mutant(
            "a volume's context changes",
            "create-volume.context-stays",
            answer(Rpc::ListVolumes, |a: &mut v1::ListVolumesResponse| {
                for volume in a.entries.iter_mut().filter_map(|entry| entry.volume.as_mut()) {
                    volume.volume_context.clear();
                }
            }),
        ),
        mutant(
            "a capability that is not supported is passed over",
            "create-volume.unsupported",
            request(Rpc::CreateVolume, |r: &mut v1::CreateVolumeRequest| {
                if r.volume_capabilities.len() == 2 {
                    r.volume_capabilities.pop();
                }
            }),
        ),
    ]
}
