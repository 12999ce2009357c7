//! Faults with volumes that do not exist.

use csi_proto::v1;

use super::*;

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
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
            request(Rpc::NodeExpandVolume, |r: &mut v1::NodeExpandVolumeRequest| {
                r.capacity_range = None;
            }), of_filesystems;
    }
}
