//! Faults with the path of another volume: the path alone counts, and more is unmounted than the volume's mounts.

use std::path::Path;

use csi_proto::v1;

use super::*;

/// Unmounts everything at the path of this RPC, only below the test's directories, and then does its work.
fn takes_off_anything(of: Rpc, path: fn(&[u8]) -> String) -> Fault {
    fault(move |rpc, bytes, behind| async move {
        if rpc == of {
            let path = path(&bytes);
            if is_of_test(Path::new(&path)) {
                csi_mount::unmount(&csi_mount::Target::new(&path).unwrap()).unwrap();
            }
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

fn target(bytes: &[u8]) -> String {
    v1::NodeUnpublishVolumeRequest::decode(bytes).map(|request| request.target_path).unwrap_or_default()
}

fn staging(bytes: &[u8]) -> String {
    v1::NodeUnstageVolumeRequest::decode(bytes).map(|request| request.staging_target_path).unwrap_or_default()
}

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
        "usage is told by the path alone", "foreign.another-measured":
            accepted(Rpc::NodeGetVolumeStats, Code::NotFound);
        "the node grows by the path alone", "foreign.another-expanded":
            accepted(Rpc::NodeExpandVolume, Code::NotFound), of_filesystems;
        "unpublish takes off another volume's mount", "foreign.another-published":
            takes_off_anything(Rpc::NodeUnpublishVolume, target);
        "unpublish takes off a mount that no driver made", "foreign.mount-of-nobody":
            takes_off_anything(Rpc::NodeUnpublishVolume, target);
        "unstage takes off another volume's mount", "foreign.another-staged":
            takes_off_anything(Rpc::NodeUnstageVolume, staging), of_filesystems;
    }
}
