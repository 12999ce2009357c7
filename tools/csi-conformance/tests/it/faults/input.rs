//! Faults in input checks: names, required fields, limits, negative numbers.

use csi_core::Service;
use csi_proto::v1;
use v1::volume_capability::{AccessMode, access_mode::Mode};

use super::*;

/// Looks up every id, however long it is.
fn limits_nothing(node: bool) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        let is_long = bytes.len() > 128;
        behind.call(rpc, bytes).await.map_err(|status| {
            let is_it = (rpc.service() == Service::Node) == node && status.code() == Code::InvalidArgument;
            if is_it && is_long { Status::not_found("there is no such thing") } else { status }
        })
    })
}

pub(super) fn all() -> Vec<Mutant> {
    type Create = v1::CreateVolumeRequest;
    mutants! {
        "empty ids are taken", "fields.controller-required":
            status(|rpc, _, status| match (rpc, status.code()) {
                (Rpc::DeleteVolume, Code::InvalidArgument) => Ok(vec![]),
                _ => Err(status),
            });
        "unpublishing from nowhere is OK", "fields.node-required":
            accepted(Rpc::NodeUnpublishVolume, Code::InvalidArgument);
        "ids that are too long are looked for", "fields.controller-limits": limits_nothing(false);
        "the node looks for ids that are too long", "fields.node-limits": limits_nothing(true);
        "a negative number is taken for none", "fields.negative":
            request(|r: &mut v1::ListVolumesRequest| r.max_entries = r.max_entries.max(0));
        "names are cut off", "create-volume.two-names-two-volumes":
            request(|r: &mut Create| r.name = r.name.chars().take(20).collect());
        "names that look the same are the same", "create-volume.unusual-names":
            request(|r: &mut Create| r.name = r.name.replace("e\u{301}", "é"));
        "control characters are taken out of names", "create-volume.control-characters":
            request(|r: &mut Create| r.name.retain(|one| !one.is_control()));
        "a capability without a mode is one writer's", "create-volume.empty-capability":
            request(|r: &mut Create| {
                for one in &mut r.volume_capabilities {
                    if one.access_mode.unwrap_or_default().mode == 0 {
                        one.access_mode = Some(AccessMode { mode: Mode::SingleNodeWriter as i32 });
                    }
                }
            });
        "the limit of a size is passed over", "create-volume.limit-below-required":
            request(|r: &mut Create| r.capacity_range.iter_mut().for_each(|range| range.limit_bytes = 0));
    }
}
