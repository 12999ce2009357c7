//! Not a fault: a driver with small pages, whatever page size the caller asks for.

use csi_proto::v1;

use super::*;

pub(crate) fn small_pages() -> Fault {
    fault(|rpc, bytes, behind| async move {
        let bytes = match rpc {
            Rpc::ListVolumes => changed(&bytes, |r: &mut v1::ListVolumesRequest| small(&mut r.max_entries)),
            Rpc::ListSnapshots => {
                changed(&bytes, |r: &mut v1::ListSnapshotsRequest| small(&mut r.max_entries))
            }
            Rpc::ControllerListVolumeHealth => {
                changed(&bytes, |r: &mut v1::ControllerListVolumeHealthRequest| small(&mut r.max_entries))
            }
            _ => bytes,
        };
        behind.call(rpc, bytes).await
    })
}

/// A negative value stays negative, so that it is refused.
fn small(max_entries: &mut i32) {
    if *max_entries >= 0 {
        *max_entries = 1;
    }
}
