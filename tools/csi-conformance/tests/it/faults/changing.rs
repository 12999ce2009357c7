//! Faults in growing and changing volumes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use csi_proto::v1;

use super::*;

/// Forgets the keys that a change does not name, so the request that created the volume no longer matches it.
fn forgets_absent_keys() -> Fault {
    with_state(Mutex::new(BTreeSet::new()), move |ids, rpc, bytes, behind| async move {
        let answer = behind.call(rpc, bytes.clone()).await?;
        if let Some(change) = asked::<v1::ControllerModifyVolumeRequest>(rpc, &bytes)
            && change.mutable_parameters.len() == 1
        {
            ids.lock().unwrap().insert(change.volume_id);
        }
        if rpc == Rpc::CreateVolume {
            let id = v1::CreateVolumeResponse::decode(&*answer).unwrap().volume.unwrap().volume_id;
            if ids.lock().unwrap().contains(&id) {
                return Err(Status::already_exists("mutable_parameters differ"));
            }
        }
        Ok(answer)
    })
}

/// Reports the requested size, and does not grow the volume.
fn tells_growth() -> Fault {
    fault(|rpc, bytes, behind| async move {
        if let Some(expand) = asked::<v1::ControllerExpandVolumeRequest>(rpc, &bytes) {
            let capacity_bytes = expand.capacity_range.unwrap_or_default().required_bytes;
            let answer = v1::ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: true };
            return Ok(answer.encode_to_vec());
        }
        if rpc == Rpc::NodeExpandVolume { Ok(vec![]) } else { behind.call(rpc, bytes).await }
    })
}

/// Refuses a size below the volume's.
fn no_less() -> Fault {
    with_state(Mutex::new(BTreeMap::new()), move |sizes, rpc, bytes, behind| async move {
        if let Some(expand) = asked::<v1::ControllerExpandVolumeRequest>(rpc, &bytes) {
            let wanted = expand.capacity_range.unwrap_or_default().required_bytes;
            let mut sizes = sizes.lock().unwrap();
            let size = sizes.entry(expand.volume_id).or_insert(wanted);
            if wanted < *size {
                return Err(Status::out_of_range("a volume does not shrink"));
            }
            *size = wanted;
        }
        behind.call(rpc, bytes).await
    })
}

pub(super) fn all() -> Vec<Mutant> {
    type Expand = v1::ControllerExpandVolumeRequest;
    mutants! {
        "expand loses capacity", "controller-expand.grows":
            answer::<v1::ControllerExpandVolumeRequest>(|a| a.capacity_bytes /= 2);
        "expansion to less than the size is an error", "controller-expand.large-enough": no_less();
        "the limit of a new size is passed over", "controller-expand.limit-below-required":
            request(|r: &mut Expand| r.capacity_range.iter_mut().for_each(|range| range.limit_bytes = 0));
        "growing what is not there is INTERNAL", "controller-expand.not-found":
            code(Rpc::ControllerExpandVolume, Code::NotFound, Code::Internal);
        "a volume in use is said to have grown", "controller-expand.offline":
            accepted(Rpc::ControllerExpandVolume, Code::FailedPrecondition), of_filesystems;
        "growth is told, and nothing has grown", "node-use.grows": tells_growth(), of_filesystems;
        "the node does not look at the new size of a device", "node-use.device-grows":
            nothing(Rpc::NodeExpandVolume), of_images;
        "a change forgets the keys that it does not name", "modify.absent-keys-stay": forgets_absent_keys();
        "unknown parameters are passed over", "modify.unknown-key":
            accepted(Rpc::ControllerModifyVolume, Code::InvalidArgument);
        "a change that is not possible is INTERNAL", "modify.refused-change":
            code(Rpc::ControllerModifyVolume, Code::InvalidArgument, Code::Internal);
        "a change of nothing is OK", "modify.nothing":
            skips(|r: &v1::ControllerModifyVolumeRequest| r.mutable_parameters.is_empty());
        "changing what is not there is INTERNAL", "modify.not-found":
            code(Rpc::ControllerModifyVolume, Code::NotFound, Code::Internal);
        "a parameter that a mutable one covers is refused", "modify.taken-at-creation":
            refuses(Code::InvalidArgument, |r: &v1::CreateVolumeRequest| {
                r.mutable_parameters.keys().any(|key| r.parameters.contains_key(key))
            });
        "a change to what is there already is an error", "modify.takes":
            not_again(Rpc::ControllerModifyVolume, Code::AlreadyExists);
    }
}
