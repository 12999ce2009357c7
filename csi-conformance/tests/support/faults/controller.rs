//! Faults in attaching, growing, changing, and where volumes are.

use std::collections::BTreeSet;
use std::sync::Mutex;

use csi_proto::v1;

use super::*;

/// Forgets the keys that a change does not name, so that the request that made the volume no longer fits it.
fn forgets_absent_keys() -> Fault {
    let changed_ids = Arc::new(Mutex::new(BTreeSet::new()));
    fault(move |rpc, bytes, behind| {
        let ids = changed_ids.clone();
        async move {
            let answer = behind.call(rpc, bytes.clone()).await?;
            if rpc == Rpc::ControllerModifyVolume {
                let request = v1::ControllerModifyVolumeRequest::decode(&*bytes).unwrap();
                if request.mutable_parameters.len() == 1 {
                    ids.lock().unwrap().insert(request.volume_id);
                }
            } else if rpc == Rpc::CreateVolume {
                let id = v1::CreateVolumeResponse::decode(&*answer).unwrap().volume.unwrap().volume_id;
                if ids.lock().unwrap().contains(&id) {
                    return Err(Status::already_exists("mutable_parameters differ"));
                }
            }
            Ok(answer)
        }
    })
}

/// Makes volumes of any size, whatever GetCapacity tells of the largest.
fn any_size() -> Fault {
    fault(|rpc, bytes, behind| async move {
        match behind.call(rpc, bytes.clone()).await {
            Err(status) if rpc == Rpc::CreateVolume && status.code() == Code::OutOfRange => {
                let any = |request: &mut v1::CreateVolumeRequest| request.capacity_range = None;
                behind.call(rpc, changed(&bytes, any)).await
            }
            answer => answer,
        }
    })
}

pub(super) fn all() -> Vec<Mutant> {
    type Attach = v1::ControllerPublishVolumeRequest;
    vec![
        mutant(
            "expand loses capacity",
            "controller-expand.grows",
            answer(Rpc::ControllerExpandVolume, |a: &mut v1::ControllerExpandVolumeResponse| {
                a.capacity_bytes /= 2;
            }),
        ),
        mutant(
            "a volume is attached to a second node",
            "controller-publish.moves",
            accepted(Rpc::ControllerPublishVolume, Code::FailedPrecondition),
        ),
        mutant(
            "a refused attachment does not name the other node",
            "controller-publish.moves",
            status(|_, _, status| {
                let is_it = status.code() == Code::FailedPrecondition;
                Err(Status::new(status.code(), if is_it { "it is elsewhere" } else { status.message() }))
            }),
        ),
        mutant(
            "published nodes are not listed",
            "controller-publish.listed-with-node",
            answer(Rpc::ListVolumes, |a: &mut v1::ListVolumesResponse| {
                for status in a.entries.iter_mut().filter_map(|entry| entry.status.as_mut()) {
                    status.published_node_ids.clear();
                }
            }),
        ),
        mutant(
            "one volume's nodes are not told",
            "controller-publish.told-with-node",
            answer(Rpc::ControllerGetVolume, |a: &mut v1::ControllerGetVolumeResponse| {
                a.status.as_mut().unwrap().published_node_ids.clear();
            }),
        ),
        mutant(
            "a node takes more volumes than it tells",
            "controller-publish.limit",
            accepted(Rpc::ControllerPublishVolume, Code::ResourceExhausted),
        ),
        mutant(
            "attached to read only, and written to",
            "controller-publish.device-read-only",
            request(Rpc::ControllerPublishVolume, |r: &mut Attach| r.readonly = false),
        )
        .of_images(),
        mutant(
            "places that are asked for are passed over",
            "topology.unmet",
            request(Rpc::CreateVolume, |r: &mut v1::CreateVolumeRequest| r.accessibility_requirements = None),
        ),
        mutant(
            "a volume that is asked for here is told to be elsewhere",
            "topology.met",
            answer(Rpc::CreateVolume, |a: &mut v1::CreateVolumeResponse| {
                for place in &mut a.volume.as_mut().unwrap().accessible_topology {
                    place.segments.values_mut().for_each(|zone| *zone = "z9".into());
                }
            }),
        ),
        mutant(
            "room is told for places that there are not",
            "topology.no-room-elsewhere",
            request(Rpc::GetCapacity, |r: &mut v1::GetCapacityRequest| r.accessible_topology = None),
        ),
        mutant(
            "room is told for ways of use that there are not",
            "get-capacity.no-room-for-unsupported",
            request(Rpc::GetCapacity, |r: &mut v1::GetCapacityRequest| r.volume_capabilities.clear()),
        ),
        mutant("the largest volume that is told is not the largest", "get-capacity.sizes", any_size()),
        mutant(
            "a change forgets the keys that it does not name",
            "modify.absent-keys-stay",
            forgets_absent_keys(),
        ),
        mutant(
            "unknown parameters are passed over",
            "modify.unknown-key",
            accepted(Rpc::ControllerModifyVolume, Code::InvalidArgument),
        ),
    ]
}
