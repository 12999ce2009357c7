//! Faults in what a driver reports about itself, and in every answer.

use csi_proto::v1;

use super::*;

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
        "the node's id is too long", "identity.node-info":
            answer(Rpc::NodeGetInfo, |a: &mut v1::NodeGetInfoResponse| a.node_id = "n".repeat(257));
        "the plugin's name is no domain", "identity.name-and-version":
            answer(Rpc::GetPluginInfo, |a: &mut v1::GetPluginInfoResponse| a.name = "-a driver-".into());
        "secrets are told in errors", "every-call.secrets":
            status(|_, bytes, status| {
                let text = String::from_utf8_lossy(bytes).into_owned();
                Err(Status::new(status.code(), format!("{} in {text}", status.message())))
            });
        "errors have no message", "every-call.message":
            status(|_, _, status| Err(Status::new(status.code(), "")));
        "errors have details", "every-call.details":
            status(|_, _, status| {
                Err(Status::with_details(
                    status.code(),
                    status.message(),
                    prost::bytes::Bytes::from_static(b"more"),
                ))
            });
        "what is not offered is INTERNAL", "fields.not-offered":
            status(|_, _, status| match status.code() {
                Code::Unimplemented => Err(Status::internal(status.message())),
                _ => Err(status),
            });
        "two nodes have one id", "identity.two-nodes":
            answer(Rpc::NodeGetInfo, |a: &mut v1::NodeGetInfoResponse| a.node_id = "node-2".into());
        "a place of another prefix", "every-call.places":
            answer(Rpc::NodeGetInfo, |a: &mut v1::NodeGetInfoResponse| {
                let place = a.accessible_topology.as_mut().unwrap();
                place.segments = [("elsewhere.example.org/zone".to_owned(), "z1".to_owned())].into();
            });
        "a reason is a sentence", "every-call.answers":
            answer(Rpc::ControllerGetVolumeHealth, |a: &mut v1::ControllerGetVolumeHealthResponse| {
                for one in a.volume_health.iter_mut().flat_map(|health| &mut health.health_statuses) {
                    one.reason = "a replica is lost".into();
                }
            });
        "Probe says not ready though it serves", "identity.probe":
            later(Rpc::Probe, |a: &mut v1::ProbeResponse| a.ready = Some(false));
        "a capability without the one that it needs", "identity.implications":
            answer(Rpc::ControllerGetCapabilities, |a: &mut v1::ControllerGetCapabilitiesResponse| {
                use v1::controller_service_capability::{Rpc as One, Type, rpc};
                let publish = rpc::Type::PublishUnpublishVolume as i32;
                a.capabilities.retain(|one| one.r#type != Some(Type::Rpc(One { r#type: publish })));
            });
        "the plugin's capabilities change", "identity.stable":
            later(Rpc::GetPluginCapabilities, |a: &mut v1::GetPluginCapabilitiesResponse| {
                a.capabilities.pop();
            });
    }
}
