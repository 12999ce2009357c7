//! The faults, and the test of the kit that is about each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_core::Rpc;
use csi_proto::v1;
use prost::Message;
use tonic::{Code, Status};

use crate::proxy::{Answer, Behind, Fault, changed};

fn fault<F: Future<Output = Answer> + Send + 'static>(
    on: impl Fn(Rpc, Vec<u8>, Behind) -> F + Send + Sync + 'static,
) -> Fault {
    Arc::new(move |rpc, bytes, behind| Box::pin(on(rpc, bytes, behind)))
}

pub(crate) fn none() -> Fault {
    fault(|rpc, bytes, behind| async move { behind.call(rpc, bytes).await })
}

/// Another request than the caller's goes through.
fn request<M: Message + Default + 'static>(of: Rpc, change: fn(&mut M)) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        let bytes = if rpc == of { changed(&bytes, change) } else { bytes };
        behind.call(rpc, bytes).await
    })
}

/// Another answer than the driver's comes back.
fn answer<M: Message + Default + 'static>(of: Rpc, change: fn(&mut M)) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        let answer = behind.call(rpc, bytes).await?;
        Ok(if rpc == of { changed(&answer, change) } else { answer })
    })
}

/// The RPC says OK and does nothing.
fn nothing(of: Rpc) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        if rpc == of { Ok(vec![]) } else { behind.call(rpc, bytes).await }
    })
}

/// Another status than the driver's.
fn status(change: fn(Rpc, &[u8], Status) -> Answer) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        match behind.call(rpc, bytes.clone()).await {
            Err(status) => change(rpc, &bytes, status),
            answer => answer,
        }
    })
}

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

/// The name of each, the test that is about it, and what it does.
pub(crate) fn all() -> Vec<(&'static str, &'static str, Fault)> {
    type Create = v1::CreateVolumeResponse;
    vec![
        ("create is not idempotent", "create-volume.same-name-same-volume", not_idempotent()),
        ("parallel creates double a volume", "concurrency.same-create-at-once", doubles_in_parallel()),
        ("a caller that hangs up drops the lock", "concurrency.given-up", drops_the_lock_on_cancel()),
        (
            "the wrong code for a name that is taken",
            "create-volume.same-name-other-size",
            status(|rpc, _, status| match (rpc, status.code()) {
                (Rpc::CreateVolume, Code::AlreadyExists) => Err(Status::internal(status.message())),
                _ => Err(status),
            }),
        ),
        (
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
        ("delete says OK and does nothing", "create-volume.again-after-delete", nothing(Rpc::DeleteVolume)),
        ("deleted volumes are listed", "list-volumes.lists-what-is", lists_the_dead()),
        ("pages by position", "list-volumes.pages-under-change", unstable_paging()),
        (
            "more entries than were asked for",
            "list-volumes.pages",
            request(Rpc::ListVolumes, |r: &mut v1::ListVolumesRequest| {
                r.max_entries = r.max_entries.min(1) * 3;
            }),
        ),
        (
            "empty ids are taken",
            "fields.controller-required",
            status(|rpc, _, status| match (rpc, status.code()) {
                (Rpc::DeleteVolume, Code::InvalidArgument) => Ok(vec![]),
                _ => Err(status),
            }),
        ),
        (
            "a volume smaller than was asked for",
            "create-volume.at-least-the-size",
            answer(Rpc::CreateVolume, |a: &mut Create| a.volume.as_mut().unwrap().capacity_bytes /= 2),
        ),
        (
            "a clone does not tell its source",
            "create-volume.clone",
            answer(Rpc::CreateVolume, |a: &mut Create| a.volume.as_mut().unwrap().content_source = None),
        ),
        (
            "expand loses capacity",
            "controller-expand.grows",
            answer(Rpc::ControllerExpandVolume, |a: &mut v1::ControllerExpandVolumeResponse| {
                a.capacity_bytes /= 2;
            }),
        ),
        (
            "a capability that is not supported is confirmed, without naming it",
            "create-volume.confirmed",
            answer(Rpc::ValidateVolumeCapabilities, |a: &mut v1::ValidateVolumeCapabilitiesResponse| {
                a.confirmed = Some(Default::default());
            }),
        ),
        (
            "a volume is attached to a second node",
            "controller-publish.second-node",
            status(|rpc, _, status| match (rpc, status.code()) {
                (Rpc::ControllerPublishVolume, Code::FailedPrecondition) => Ok(vec![]),
                _ => Err(status),
            }),
        ),
        (
            "published nodes are not listed",
            "controller-publish.listed-with-node",
            answer(Rpc::ListVolumes, |a: &mut v1::ListVolumesResponse| {
                for status in a.entries.iter_mut().filter_map(|entry| entry.status.as_mut()) {
                    status.published_node_ids.clear();
                }
            }),
        ),
        (
            "a snapshot of another source",
            "snapshots.answer-is-whole",
            answer(Rpc::CreateSnapshot, |a: &mut v1::CreateSnapshotResponse| {
                a.snapshot.as_mut().unwrap().source_volume_id = "another".into();
            }),
        ),
        (
            "a snapshot without its time",
            "every-call.answers",
            answer(Rpc::GetSnapshot, |a: &mut v1::GetSnapshotResponse| {
                a.snapshot.as_mut().unwrap().creation_time = None;
            }),
        ),
        ("unpublish leaks the mount", "node-publish.mounts-and-unmounts", nothing(Rpc::NodeUnpublishVolume)),
        (
            "read-only is ignored",
            "node-use.read-only",
            request(Rpc::NodePublishVolume, |r: &mut v1::NodePublishVolumeRequest| r.readonly = false),
        ),
        (
            "a second publish that differs is OK",
            "node-publish.matrix",
            status(|rpc, _, status| match (rpc, status.code()) {
                (Rpc::NodePublishVolume, Code::AlreadyExists) => Ok(vec![]),
                _ => Err(status),
            }),
        ),
        ("publish says OK and does nothing", "node-use.data-stays", nothing(Rpc::NodePublishVolume)),
        (
            "the node's id is too long",
            "identity.node-info",
            answer(Rpc::NodeGetInfo, |a: &mut v1::NodeGetInfoResponse| a.node_id = "n".repeat(257)),
        ),
        (
            "the plugin's name is no domain",
            "identity.name-and-version",
            answer(Rpc::GetPluginInfo, |a: &mut v1::GetPluginInfoResponse| a.name = "-a driver-".into()),
        ),
        (
            "secrets are told in errors",
            "every-call.secrets",
            status(|_, bytes, status| {
                let text = String::from_utf8_lossy(bytes).into_owned();
                Err(Status::new(status.code(), format!("{} in {text}", status.message())))
            }),
        ),
        (
            "errors have no message",
            "every-call.message",
            status(|_, _, status| Err(Status::new(status.code(), ""))),
        ),
        (
            "errors have details",
            "every-call.details",
            status(|_, _, status| {
                Err(Status::with_details(
                    status.code(),
                    status.message(),
                    prost::bytes::Bytes::from_static(b"more"),
                ))
            }),
        ),
        (
            "what is not offered is INTERNAL",
            "fields.not-offered",
            status(|_, _, status| match status.code() {
                Code::Unimplemented => Err(Status::internal(status.message())),
                _ => Err(status),
            }),
        ),
    ]
}
