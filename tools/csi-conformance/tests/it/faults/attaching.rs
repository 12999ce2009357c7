//! Faults in attaching and detaching.

use csi_proto::v1;

use super::*;

/// Detaches a volume from its node for any other node that asks for it.
fn takes_from_the_other_node() -> Fault {
    only(|attach: v1::ControllerPublishVolumeRequest, behind| async move {
        match behind.ask(&attach).await {
            Err(status) if status.code() == Code::FailedPrecondition => {
                let volume_id = attach.volume_id.clone();
                let detach = v1::ControllerUnpublishVolumeRequest { volume_id, ..Default::default() };
                behind.ask(&detach).await?;
                behind.ask(&attach).await
            }
            answer => answer,
        }
    })
}

pub(super) fn all() -> Vec<Mutant> {
    type Attach = v1::ControllerPublishVolumeRequest;
    mutants! {
        "a volume is attached to a second node", "controller-publish.moves":
            accepted(Rpc::ControllerPublishVolume, Code::FailedPrecondition);
        "a refused attachment does not name the other node", "controller-publish.names-the-node":
            status(|_, _, status| {
                let is_it = status.code() == Code::FailedPrecondition;
                Err(Status::new(status.code(), if is_it { "it is elsewhere" } else { status.message() }))
            });
        "published nodes are not listed", "controller-publish.listed-with-node":
            answer::<v1::ListVolumesRequest>(|a| {
                for status in a.entries.iter_mut().filter_map(|entry| entry.status.as_mut()) {
                    status.published_node_ids.clear();
                }
            });
        "a volume is listed with the node that it was on", "controller-publish.no-node-left":
            answer::<v1::ListVolumesRequest>(|a| {
                for status in a.entries.iter_mut().filter_map(|entry| entry.status.as_mut()) {
                    status.published_node_ids = vec!["node-1".into()];
                }
            });
        "one volume's nodes are not told", "controller-publish.told-with-node":
            answer::<v1::ControllerGetVolumeRequest>(|a| {
                a.status.as_mut().unwrap().published_node_ids.clear();
            });
        "a node takes more volumes than it tells", "controller-publish.limit":
            accepted(Rpc::ControllerPublishVolume, Code::ResourceExhausted);
        "attached to read only, and written to", "controller-publish.device-read-only":
            request(|r: &mut Attach| r.readonly = false), of_images;
        "detaching again is NOT_FOUND", "controller-publish.idempotent":
            undoes_once(Rpc::ControllerPublishVolume, Rpc::ControllerUnpublishVolume, Code::NotFound), leaves_something;
        "attaching what is not there is INTERNAL", "controller-publish.not-found":
            code(Rpc::ControllerPublishVolume, Code::NotFound, Code::Internal);
        "attaching in another way is OK", "controller-publish.incompatible":
            accepted(Rpc::ControllerPublishVolume, Code::AlreadyExists), of_images;
        "a volume is taken from the node that has it", "controller-publish.second-node":
            takes_from_the_other_node();
        "a filesystem is attached to read only, and written to", "controller-publish.read-only":
            request(|r: &mut Attach| r.readonly = false), of_filesystems;
        "detaching from all nodes is OK, and does nothing", "controller-publish.from-all-nodes":
            skips(|r: &v1::ControllerUnpublishVolumeRequest| r.node_id.is_empty()), leaves_something;
    }
}
