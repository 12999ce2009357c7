//! Faults with volumes that do not exist, and with the path of another volume: the path alone counts, and more is
//! unmounted than the volume's mounts.

use std::path::Path;

use csi_proto::v1;

use super::*;

/// Unmounts everything at the path of the request, only below the test's directories, and then does its work.
fn takes_off_anything<R: RpcRequest>(path: fn(R) -> String) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        let path = asked(rpc, &bytes).map(path);
        if let Some(path) = path.filter(|path| is_of_test(Path::new(path))) {
            csi_mount::unmount(&csi_mount::Target::new(&path).unwrap()).unwrap();
        }
        behind.call(rpc, bytes).await
    })
}

/// Whether the path is directly in `target` or `staging` of a temporary directory (`.tmp…`).
fn is_of_test(path: &Path) -> bool {
    let Ok(below) = path.strip_prefix(std::env::temp_dir()) else { return false };
    let mut names = below.iter();
    let is_temporary = names.next().is_some_and(|name| name.as_encoded_bytes().starts_with(b".tmp"));
    is_temporary
        && names.next().is_some_and(|name| name == "target" || name == "staging")
        && names.count() == 1
}

fn target(request: v1::NodeUnpublishVolumeRequest) -> String {
    request.target_path
}

fn staging(request: v1::NodeUnstageVolumeRequest) -> String {
    request.staging_target_path
}

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
        "usage is told by the path alone", "foreign.another-measured":
            accepted(Rpc::NodeGetVolumeStats, Code::NotFound);
        "the node grows by the path alone", "foreign.another-expanded":
            accepted(Rpc::NodeExpandVolume, Code::NotFound), of_filesystems;
        "unpublish takes off another volume's mount", "foreign.another-published": takes_off_anything(target);
        "unpublish takes off a mount that no driver made", "foreign.mount-of-nobody":
            takes_off_anything(target);
        "unstage takes off another volume's mount", "foreign.another-staged":
            takes_off_anything(staging), of_filesystems;
        "publishing what is not there is OK", "node-missing.publish":
            accepted(Rpc::NodePublishVolume, Code::NotFound);
        "staging what is not there is OK", "node-missing.stage":
            accepted(Rpc::NodeStageVolume, Code::NotFound), of_filesystems;
        "unpublishing what is deleted fails", "node-missing.unpublish":
            must_exist(Rpc::NodeUnpublishVolume, Code::Internal);
        "unstaging what is deleted fails", "node-missing.unstage":
            must_exist(Rpc::NodeUnstageVolume, Code::Internal), of_filesystems;
        "detaching what is deleted fails", "node-missing.detach":
            must_exist(Rpc::ControllerUnpublishVolume, Code::Internal);
        "growing what is not on the node is INTERNAL", "node-missing.expand":
            code(Rpc::NodeExpandVolume, Code::NotFound, Code::Internal), of_filesystems;
        "the node passes the size over that it is to grow to", "node-missing.no-range":
            request(|r: &mut v1::NodeExpandVolumeRequest| r.capacity_range = None), of_filesystems;
    }
}
