//! Faults in what a driver reports about itself and its capabilities, and in every answer.

use csi_proto::v1;
use v1::volume_capability::AccessType;

use super::*;

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
        "the node's id is too long", "identity.node-info":
            answer::<v1::NodeGetInfoRequest>(|a| a.node_id = "n".repeat(257));
        "the plugin's name is no domain", "identity.name-and-version":
            answer::<v1::GetPluginInfoRequest>(|a| a.name = "-a driver-".into());
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
            answer::<v1::NodeGetInfoRequest>(|a| a.node_id = "node-2".into());
        "a place of another prefix", "every-call.places":
            answer::<v1::NodeGetInfoRequest>(|a| {
                let place = a.accessible_topology.as_mut().unwrap();
                place.segments = [("elsewhere.example.org/zone".to_owned(), "z1".to_owned())].into();
            });
        "a reason is a sentence", "every-call.answers":
            answer::<v1::ControllerGetVolumeHealthRequest>(|a| {
                for one in a.volume_health.iter_mut().flat_map(|health| &mut health.health_statuses) {
                    one.reason = "a replica is lost".into();
                }
            });
        "Probe says not ready though it serves", "identity.probe":
            later::<v1::ProbeRequest>(|a| a.ready = Some(false));
        "a capability without the one that it needs", "identity.implications":
            answer::<v1::ControllerGetCapabilitiesRequest>(|a| {
                use v1::controller_service_capability::{Rpc as One, Type, rpc};
                let publish = rpc::Type::PublishUnpublishVolume as i32;
                a.capabilities.retain(|one| one.r#type != Some(Type::Rpc(One { r#type: publish })));
            });
        "the plugin's capabilities change", "identity.stable":
            later::<v1::GetPluginCapabilitiesRequest>(|a| {
                a.capabilities.pop();
            });
        "the node fails to say what it can do", "identity.node-capabilities":
            refuses(Code::Internal, |_: &v1::NodeGetCapabilitiesRequest| true);
        "making a raw volume fails with a bug", "identity.ways-of-use":
            refuses(Code::Internal, |r: &v1::CreateVolumeRequest| {
                r.volume_capabilities.iter().any(|one| matches!(one.access_type, Some(AccessType::Block(_))))
            });
    }
}
