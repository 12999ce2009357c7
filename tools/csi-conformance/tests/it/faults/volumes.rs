//! Faults in creating and deleting volumes, and in the content of clones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use csi_proto::v1;
use v1::volume_content_source::Type;

use super::*;

fn other_name(bytes: &[u8], number: u32) -> Vec<u8> {
    changed(bytes, |request: &mut v1::CreateVolumeRequest| rename(&mut request.name, number))
}

/// Checks whether the name exists, does something slow, and then creates the volume. So two calls at the
/// same time create two volumes.
fn doubles_in_parallel() -> Fault {
    let state = (Mutex::new(BTreeSet::new()), AtomicU32::new(0));
    with_state(state, |state, rpc, bytes, behind| async move {
        let (made, count) = &*state;
        if rpc != Rpc::CreateVolume {
            return behind.call(rpc, bytes).await;
        }
        let name = v1::CreateVolumeRequest::decode(&*bytes).unwrap().name;
        let is_there = made.lock().unwrap().contains(&name);
        shapes::pause(Duration::from_millis(5)).await;
        let first = made.lock().unwrap().insert(name);
        let number = count.fetch_add(1, Ordering::SeqCst);
        behind.call(rpc, if is_there || first { bytes } else { other_name(&bytes, number) }).await
    })
}

/// The caller's future holds the lock and records the created volume. The work itself continues without
/// that future, so a caller that gives up releases the lock early and nothing is recorded.
fn drops_the_lock_on_cancel() -> Fault {
    let state = (tokio::sync::Mutex::new(BTreeMap::<String, u32>::new()), AtomicU32::new(0));
    with_state(state, |state, rpc, bytes, behind| async move {
        let (done, count) = &*state;
        if rpc != Rpc::CreateVolume {
            return behind.call(rpc, bytes).await;
        }
        let name = v1::CreateVolumeRequest::decode(&*bytes).unwrap().name;
        let mut done = done.lock().await;
        let number = count.fetch_add(1, Ordering::SeqCst);
        let number = done.get(&name).copied().unwrap_or(number);
        let work = tokio::spawn(async move {
            shapes::pause(Duration::from_millis(40)).await;
            behind.call(rpc, other_name(&bytes, number)).await
        });
        let answer = work.await.unwrap()?;
        done.insert(name, number);
        Ok(answer)
    })
}

/// Creates an empty volume for a clone request, and reports it as a clone.
fn empty_clones() -> Fault {
    only(|mut create: v1::CreateVolumeRequest, behind| async move {
        let source = create.volume_content_source.take();
        let mut answer = behind.ask(&create).await?;
        answer.volume.as_mut().unwrap().content_source = source;
        Ok(answer)
    })
}

fn as_large_as_its_source(request: &mut v1::CreateVolumeRequest) {
    if request.volume_content_source.is_some() {
        request.capacity_range = None;
    }
}

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
        "create is not idempotent", "create-volume.same-name-same-volume":
            other_names(|r: &mut v1::CreateVolumeRequest| &mut r.name), leaves_something;
        "parallel creates double a volume", "concurrency.same-create-at-once": doubles_in_parallel();
        "a caller that hangs up drops the lock", "concurrency.given-up":
            drops_the_lock_on_cancel(), leaves_something;
        "delete says OK and does nothing", "create-volume.deleted-is-gone":
            nothing(Rpc::DeleteVolume), leaves_something;
        "a volume smaller than was asked for", "create-volume.at-least-the-size":
            answer::<v1::CreateVolumeRequest>(|a| a.volume.as_mut().unwrap().capacity_bytes /= 2);
        "a clone can't be made", "create-volume.clone":
            refuses(Code::InvalidArgument, |r: &v1::CreateVolumeRequest| {
                let source = r.volume_content_source.as_ref().and_then(|source| source.r#type.as_ref());
                matches!(source, Some(Type::Volume(_)))
            });
        "a clone does not tell its source", "create-volume.source-is-named":
            answer::<v1::CreateVolumeRequest>(|a| a.volume.as_mut().unwrap().content_source = None);
        "a capability that is not supported is confirmed, without naming it", "create-volume.confirmed":
            answer::<v1::ValidateVolumeCapabilitiesRequest>(|a| a.confirmed = Some(Default::default()));
        "the wrong code for a name that is taken", "create-volume.same-name-other-size":
            code(Rpc::CreateVolume, Code::AlreadyExists, Code::Internal);
        "deleting what is gone is an error", "create-volume.delete-is-idempotent":
            must_exist(Rpc::DeleteVolume, Code::NotFound);
        "a clone is empty", "contents.clone": empty_clones();
        "a raw clone is empty", "contents.device-clone": empty_clones(), of_images;
        "a clone is as large as its source, whatever was asked for", "contents.larger-clone":
            request(as_large_as_its_source), of_filesystems;
        "a restored volume is as large as its snapshot, whatever was asked for", "contents.larger-restored":
            request(as_large_as_its_source), of_filesystems;
        "a source that is not there makes an empty volume", "create-volume.missing-source":
            instead(Code::NotFound, |r: &mut v1::CreateVolumeRequest| r.volume_content_source = None);
        "a volume that is not there is not confirmed", "create-volume.validate-missing":
            accepted(Rpc::ValidateVolumeCapabilities, Code::NotFound);
        "different creates at once fail", "concurrency.different-creates-at-once":
            one_at_a_time(Rpc::CreateVolume, Code::Internal, Duration::from_millis(20)), leaves_something;
        "deletes at once fail", "concurrency.same-delete-at-once":
            one_at_a_time(Rpc::DeleteVolume, Code::Internal, Duration::from_millis(20));
        "a volume's context changes", "create-volume.context-stays":
            answer::<v1::ListVolumesRequest>(|a| {
                for volume in a.entries.iter_mut().filter_map(|entry| entry.volume.as_mut()) {
                    volume.volume_context.clear();
                }
            });
        "a capability that is not supported is passed over", "create-volume.unsupported":
            request(|r: &mut v1::CreateVolumeRequest| {
                if r.volume_capabilities.len() == 2 {
                    r.volume_capabilities.pop();
                }
            });
    }
}
