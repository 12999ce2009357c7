//! Faults that show when calls run at the same time, or when callers give up.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_proto::v1;

use super::*;

const TAKES: Duration = Duration::from_millis(30);

/// Accepts one call of this RPC at a time, and answers a second one with an error.
fn one_at_a_time(of: Rpc) -> Fault {
    shapes::one_at_a_time(of, Code::Internal, TAKES)
}

/// Sets its flag if a call is dropped before it was answered.
struct Broken(Arc<AtomicBool>, bool);

impl Drop for Broken {
    fn drop(&mut self) {
        if !self.1 {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}

/// Works inside the caller's future: when that is dropped, half of the work is done, and it cannot
/// be continued.
fn broken_by_giving_up(of: Rpc) -> Fault {
    with_state(AtomicBool::new(false), move |broken, rpc, bytes, behind| async move {
        if rpc != of {
            return behind.call(rpc, bytes).await;
        }
        if broken.load(Ordering::SeqCst) {
            return Err(Status::internal("it is half done"));
        }
        let mut guard = Broken(broken, false);
        shapes::pause(Duration::from_millis(40)).await;
        let answer = behind.call(rpc, bytes).await;
        guard.1 = true;
        answer
    })
}

/// Fails if the volume has another operation of the controller or the node running.
fn one_operation_at_a_time() -> Fault {
    with_state(Mutex::new(BTreeSet::new()), move |running, rpc, bytes, behind| async move {
        let id = id_of(&bytes);
        if !matches!(rpc, Rpc::NodePublishVolume | Rpc::NodeGetVolumeStats | Rpc::ControllerExpandVolume) {
            return behind.call(rpc, bytes).await;
        }
        if !running.lock().unwrap().insert(id.clone()) {
            return Err(Status::internal("database is locked"));
        }
        shapes::pause(TAKES).await;
        let answer = behind.call(rpc, bytes).await;
        running.lock().unwrap().remove(&id);
        answer
    })
}

fn is_copy(bytes: &[u8]) -> bool {
    v1::CreateVolumeRequest::decode(bytes).unwrap().volume_content_source.is_some()
}

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
        "one attachment at a time", "concurrency.same-attach-at-once":
            one_at_a_time(Rpc::ControllerPublishVolume);
        "one stage at a time", "concurrency.same-stage-at-once":
            one_at_a_time(Rpc::NodeStageVolume), of_filesystems;
        "one snapshot at a time", "concurrency.same-snapshot-at-once": one_at_a_time(Rpc::CreateSnapshot);
        "one snapshot at a time of a published volume", "concurrency.snapshots-of-one-volume":
            one_at_a_time(Rpc::CreateSnapshot);
        "one clone at a time of a published volume", "concurrency.clones-of-one-volume":
            one_at_a_time_if(Rpc::CreateVolume, is_copy, Code::Internal, TAKES);
        "one group at a time", "concurrency.same-group-at-once":
            one_at_a_time(Rpc::CreateVolumeGroupSnapshot);
        "one expansion at a time", "concurrency.same-expand-at-once":
            one_at_a_time(Rpc::ControllerExpandVolume);
        "one operation of any kind at a time", "concurrency.different-at-once": one_operation_at_a_time();
        "one stream at a time", "concurrency.streams-at-once":
            one_at_a_time(Rpc::GetMetadataAllocated), of_images;
        "a snapshot that was given up is half cut", "concurrency.given-up-snapshot":
            broken_by_giving_up(Rpc::CreateSnapshot);
        "an attachment that was given up is half done", "concurrency.given-up-attach":
            broken_by_giving_up(Rpc::ControllerPublishVolume);
    }
}
