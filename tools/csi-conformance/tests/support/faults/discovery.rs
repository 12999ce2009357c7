//! Faults in what a driver reports about its capabilities.

use csi_proto::v1;
use v1::volume_capability::AccessType;

use super::*;

fn is_raw(bytes: &[u8]) -> bool {
    let asked = v1::CreateVolumeRequest::decode(bytes).unwrap().volume_capabilities;
    asked.iter().any(|one| matches!(one.access_type, Some(AccessType::Block(_))))
}

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
        "the node fails to say what it can do", "identity.node-capabilities":
            fault(|rpc, bytes, behind| async move {
                match rpc {
                    Rpc::NodeGetCapabilities => Err(Status::internal("a bug")),
                    _ => behind.call(rpc, bytes).await,
                }
            });
        "making a raw volume fails with a bug", "identity.ways-of-use":
            fault(|rpc, bytes, behind| async move {
                match rpc {
                    Rpc::CreateVolume if is_raw(&bytes) => Err(Status::internal("a bug")),
                    _ => behind.call(rpc, bytes).await,
                }
            });
    }
}
