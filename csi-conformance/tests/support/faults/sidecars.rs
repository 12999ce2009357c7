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
    vec![
        mutant(
            "the claim's name makes the driver fail",
            "sequences.provisioner",
            chokes_on(Rpc::CreateVolume, |r: v1::CreateVolumeRequest| r.parameters),
        ),
        mutant(
            "the provisioner's identity makes the driver fail",
            "sequences.attacher",
            chokes_on(Rpc::ControllerPublishVolume, |r: v1::ControllerPublishVolumeRequest| r.volume_context),
        ),
        mutant(
            "the snapshot's name makes the driver fail",
            "sequences.snapshotter",
            chokes_on(Rpc::CreateSnapshot, |r: v1::CreateSnapshotRequest| r.parameters),
        ),
    ]
}
