//! Faults in where volumes are accessible, and in how much capacity is left.

use csi_proto::v1;

use super::*;

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
        "places that are asked for are passed over", "topology.unmet":
            request(|r: &mut v1::CreateVolumeRequest| r.accessibility_requirements = None);
        "a volume that is asked for here is told to be elsewhere", "topology.met":
            answer::<v1::CreateVolumeRequest>(|a| {
                for place in &mut a.volume.as_mut().unwrap().accessible_topology {
                    place.segments.values_mut().for_each(|zone| *zone = "z9".into());
                }
            });
        "room is told for places that there are not", "topology.no-room-elsewhere":
            request(|r: &mut v1::GetCapacityRequest| r.accessible_topology = None);
        "room is told for ways of use that there are not", "get-capacity.no-room-for-unsupported":
            request(|r: &mut v1::GetCapacityRequest| r.volume_capabilities.clear());
        "room below nothing", "get-capacity.not-negative":
            answer::<v1::GetCapacityRequest>(|a| a.available_capacity = -1);
        "the largest volume that is told is not the largest", "get-capacity.sizes":
            instead(Code::OutOfRange, |r: &mut v1::CreateVolumeRequest| r.capacity_range = None);
        "parameters of the provisioner's own are refused", "get-capacity.raw-parameters":
            refuses(Code::InvalidArgument, |r: &v1::GetCapacityRequest| {
                r.parameters.keys().any(|key| key.starts_with("csi.storage.k8s.io/"))
            });
        "preferred places that are not requisite are passed over", "topology.preferred-elsewhere":
            request(|r: &mut v1::CreateVolumeRequest| {
                r.accessibility_requirements.iter_mut().for_each(|one| one.preferred.clear());
            });
        "a requirement without places is none", "topology.no-places":
            request(|r: &mut v1::CreateVolumeRequest| {
                r.accessibility_requirements
                    .take_if(|one| one.requisite.is_empty() && one.preferred.is_empty());
            });
        "of two keys that differ in case one is dropped", "topology.two-cases":
            request(|r: &mut v1::CreateVolumeRequest| {
                for place in r.accessibility_requirements.iter_mut().flat_map(|one| &mut one.requisite) {
                    place.segments.retain(|key, _| *key == key.to_lowercase());
                }
            });
    }
}
