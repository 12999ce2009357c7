//! Faults on the node.

use csi_proto::v1;
use v1::volume_capability::AccessType;

use super::*;

pub(super) fn all() -> Vec<Mutant> {
    vec![
        mutant(
            "unpublish leaks the mount",
            "node-publish.mounts-and-unmounts",
            nothing(Rpc::NodeUnpublishVolume),
        )
        .leaves_something(),
        mutant(
            "read-only is ignored",
            "node-use.read-only",
            request(Rpc::NodePublishVolume, |r: &mut v1::NodePublishVolumeRequest| r.readonly = false),
        ),
        mutant(
            "a second publish that differs is OK",
            "node-publish.matrix",
            status(|rpc, _, status| match (rpc, status.code()) {
                (Rpc::NodePublishVolume, Code::AlreadyExists) => Ok(vec![]),
                _ => Err(status),
            }),
        ),
        mutant("publish says OK and does nothing", "node-use.data-stays", nothing(Rpc::NodePublishVolume)),
        mutant(
            "the mount group is passed over",
            "mount-group.files-are-the-groups",
            request(Rpc::NodePublishVolume, |r: &mut v1::NodePublishVolumeRequest| {
                let access = r.volume_capability.as_mut().and_then(|one| one.access_type.as_mut());
                if let Some(AccessType::Mount(mount)) = access {
                    mount.volume_mount_group.clear();
                }
            }),
        ),
        mutant(
            "an inline volume stays when it is unpublished",
            "ephemeral.leaves-nothing",
            nothing(Rpc::NodeUnpublishVolume),
        )
        .of_inline()
        .leaves_something(),
        mutant(
            "an inline volume is wanted to be staged",
            "ephemeral.comes-and-goes",
            fault(|rpc, bytes, behind| async move {
                if rpc == Rpc::NodePublishVolume
                    && v1::NodePublishVolumeRequest::decode(&*bytes).unwrap().staging_target_path.is_empty()
                {
                    return Err(Status::failed_precondition("staging_target_path is missing"));
                }
                behind.call(rpc, bytes).await
            }),
        )
        .of_inline(),
        mutant(
            "a raw device is left when it is unpublished",
            "node-publish.device-comes-and-goes",
            nothing(Rpc::NodeUnpublishVolume),
        )
        .of_images()
        .leaves_something(),
    ]
}
