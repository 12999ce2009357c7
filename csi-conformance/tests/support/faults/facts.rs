//! Faults in what a driver tells of itself and of its health, and in every answer.

use std::sync::atomic::{AtomicU32, Ordering};

use csi_proto::v1;

use super::*;

/// Tells an entry the first time that it is asked about it.
fn told_once() -> Fault {
    let count = AtomicU32::new(0);
    answer(Rpc::ControllerGetVolumeHealth, move |a: &mut v1::ControllerGetVolumeHealthResponse| {
        let health = a.volume_health.as_mut().unwrap();
        if !health.health_statuses.is_empty() && count.fetch_add(1, Ordering::SeqCst) > 0 {
            health.health_statuses.truncate(1);
        }
    })
}

pub(super) fn all() -> Vec<Mutant> {
    vec![
        mutant(
            "the node's id is too long",
            "identity.node-info",
            answer(Rpc::NodeGetInfo, |a: &mut v1::NodeGetInfoResponse| a.node_id = "n".repeat(257)),
        ),
        mutant(
            "the plugin's name is no domain",
            "identity.name-and-version",
            answer(Rpc::GetPluginInfo, |a: &mut v1::GetPluginInfoResponse| a.name = "-a driver-".into()),
        ),
        mutant(
            "secrets are told in errors",
            "every-call.secrets",
            status(|_, bytes, status| {
                let text = String::from_utf8_lossy(bytes).into_owned();
                Err(Status::new(status.code(), format!("{} in {text}", status.message())))
            }),
        ),
        mutant(
            "errors have no message",
            "every-call.message",
            status(|_, _, status| Err(Status::new(status.code(), ""))),
        ),
        mutant(
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
        mutant(
            "what is not offered is INTERNAL",
            "fields.not-offered",
            status(|_, _, status| match status.code() {
                Code::Unimplemented => Err(Status::internal(status.message())),
                _ => Err(status),
            }),
        ),
        mutant(
            "two nodes have one id",
            "identity.two-nodes",
            answer(Rpc::NodeGetInfo, |a: &mut v1::NodeGetInfoResponse| a.node_id = "node-2".into()),
        ),
        mutant(
            "a place of another prefix",
            "every-call.places",
            answer(Rpc::NodeGetInfo, |a: &mut v1::NodeGetInfoResponse| {
                let place = a.accessible_topology.as_mut().unwrap();
                place.segments = [("elsewhere.example.org/zone".to_owned(), "z1".to_owned())].into();
            }),
        ),
        mutant(
            "room below nothing",
            "get-capacity.not-negative",
            answer(Rpc::GetCapacity, |a: &mut v1::GetCapacityResponse| a.available_capacity = -1),
        ),
        mutant("what is wrong with a volume is told once", "health.entry-stays", told_once()),
        mutant(
            "volumes that are not well are not listed",
            "health.unwell-is-listed",
            answer(Rpc::ControllerListVolumeHealth, |a: &mut v1::ControllerListVolumeHealthResponse| {
                a.entries.clear();
            }),
        ),
        mutant(
            "volumes that are well are listed as unwell",
            "health.listed",
            answer(Rpc::ControllerListVolumeHealth, |a: &mut v1::ControllerListVolumeHealthResponse| {
                a.entries.push(v1::VolumeHealth { volume_id: "well".into(), ..Default::default() });
            }),
        ),
        mutant(
            "callers of 1.12.0 are told that all is well",
            "health.condition-is-listed",
            answer(Rpc::ListVolumes, |a: &mut v1::ListVolumesResponse| {
                for status in a.entries.iter_mut().filter_map(|entry| entry.status.as_mut()) {
                    #[allow(deprecated, reason = "it is what callers of 1.12.0 read")]
                    status.volume_condition.iter_mut().for_each(|condition| condition.abnormal = false);
                }
            }),
        ),
        mutant(
            "a reason is a sentence",
            "every-call.answers",
            answer(Rpc::ControllerGetVolumeHealth, |a: &mut v1::ControllerGetVolumeHealthResponse| {
                for one in a.volume_health.iter_mut().flat_map(|health| &mut health.health_statuses) {
                    one.reason = "a replica is lost".into();
                }
            }),
        ),
    ]
}
