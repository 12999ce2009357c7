//! Faults in handling the fields that sidecars add to their calls.

use csi_proto::v1;

use super::*;

/// Fails on keys of Kubernetes, which the driver does not use.
fn chokes_on<M: Message + Default + 'static>(
    of: Rpc,
    keys: fn(M) -> std::collections::BTreeMap<String, String>,
) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        if rpc == of
            && keys(M::decode(&*bytes).unwrap())
                .keys()
                .any(|key| key.contains("k8s.io/") || key.contains("kubernetes.io/"))
        {
            return Err(Status::internal("what is this key"));
        }
        behind.call(rpc, bytes).await
    })
}

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
        "the claim's name makes the driver fail", "sequences.provisioner":
            chokes_on(Rpc::CreateVolume, |r: v1::CreateVolumeRequest| r.parameters);
        "the provisioner's identity makes the driver fail", "sequences.attacher":
            chokes_on(Rpc::ControllerPublishVolume, |r: v1::ControllerPublishVolumeRequest| r.volume_context);
        "expanding again is an error", "sequences.resizer":
            not_again(Rpc::ControllerExpandVolume, Code::InvalidArgument);
        "the condition has no message", "sequences.health-monitor":
            answer(Rpc::ListVolumes, |a: &mut v1::ListVolumesResponse| {
                for status in a.entries.iter_mut().filter_map(|entry| entry.status.as_mut()) {
                    #[allow(deprecated, reason = "external-health-monitor reads it")]
                    status.volume_condition.iter_mut().for_each(|condition| condition.message.clear());
                }
            });
        "the health of one volume is told once", "sequences.health-monitor-of-1-13":
            not_again(Rpc::ControllerGetVolumeHealth, Code::Unavailable);
        "the snapshot's name makes the driver fail", "sequences.snapshotter":
            chokes_on(Rpc::CreateSnapshot, |r: v1::CreateSnapshotRequest| r.parameters);
    }
}
