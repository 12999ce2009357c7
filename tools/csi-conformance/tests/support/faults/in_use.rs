//! Faults in deleting volumes that are in use.

use std::collections::BTreeMap;
use std::sync::Mutex;

use csi_proto::v1;

use super::*;

/// Detaches the volume that is to be deleted, as if it were not in use.
fn detaches_first() -> Fault {
    fault(|rpc, bytes, behind| async move {
        if rpc == Rpc::DeleteVolume {
            let volume_id = v1::DeleteVolumeRequest::decode(&*bytes).unwrap().volume_id;
            let detach = v1::ControllerUnpublishVolumeRequest { volume_id, ..Default::default() };
            let _ = behind.call(Rpc::ControllerUnpublishVolume, detach.encode_to_vec()).await;
        }
        behind.call(rpc, bytes).await
    })
}

/// Notices that a volume is in use after its content is deleted.
fn refuses_too_late() -> Fault {
    with_state(Mutex::new(BTreeMap::new()), move |targets, rpc, bytes, behind| async move {
        if rpc == Rpc::NodePublishVolume {
            let asked = v1::NodePublishVolumeRequest::decode(&*bytes).unwrap();
            targets.lock().unwrap().insert(asked.volume_id, asked.target_path);
        }
        let answer = behind.call(rpc, bytes.clone()).await;
        if rpc == Rpc::DeleteVolume
            && answer.is_err()
            && let Some(target) = targets.lock().unwrap().get(&id_of(&bytes))
        {
            let _ = std::fs::write(format!("{target}/file"), "");
        }
        answer
    })
}

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
        "an attached volume is deleted", "sequences.delete-in-use": detaches_first();
        "a delete that is refused empties the volume", "sequences.delete-in-use": refuses_too_late();
    }
}
