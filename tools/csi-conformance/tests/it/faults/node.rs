//! Faults in staging, in publishing, and in what a workload gets.

use std::time::Duration;

use csi_proto::v1;
use v1::volume_capability::AccessType;

use super::*;

fn mounts_on_top() -> Fault {
    only(|publish: v1::NodePublishVolumeRequest, behind| async move {
        let target = &publish.target_path;
        let is_there = std::path::Path::new(target).exists();
        let answer = behind.ask(&publish).await?;
        if is_there {
            let bind = std::process::Command::new("mount").args(["--bind", target, target]).status();
            assert!(bind.unwrap().success());
        }
        Ok(answer)
    })
}

fn without_flags(request: &mut v1::NodePublishVolumeRequest) {
    if let Some(AccessType::Mount(mount)) =
        request.volume_capability.as_mut().and_then(|one| one.access_type.as_mut())
    {
        mount.mount_flags.clear();
    }
}

pub(super) fn all() -> Vec<Mutant> {
    mutants! {
        "unpublish leaks the mount", "node-publish.mounts-and-unmounts":
            nothing(Rpc::NodeUnpublishVolume), leaves_something;
        "read-only is ignored", "node-use.read-only":
            request(|r: &mut v1::NodePublishVolumeRequest| r.readonly = false);
        "a volume for one target has two", "node-publish.matrix":
            accepted(Rpc::NodePublishVolume, Code::FailedPrecondition);
        "a second publish that differs is OK", "node-publish.published-otherwise":
            accepted(Rpc::NodePublishVolume, Code::AlreadyExists);
        "publish says OK and does nothing", "node-use.data-stays": nothing(Rpc::NodePublishVolume);
        "the mount group is passed over", "mount-group.files-are-the-groups":
            request(|r: &mut v1::NodePublishVolumeRequest| {
                let access = r.volume_capability.as_mut().and_then(|one| one.access_type.as_mut());
                if let Some(AccessType::Mount(mount)) = access {
                    mount.volume_mount_group.clear();
                }
            });
        "a raw device is left when it is unpublished", "node-publish.device-comes-and-goes":
            nothing(Rpc::NodeUnpublishVolume), of_images, leaves_something;
        "publishing again mounts on top", "node-publish.at-once": mounts_on_top();
        "a publish that was given up keeps its lock", "node-publish.given-up":
            keeps_its_lock(Rpc::NodePublishVolume, Code::Aborted, Duration::from_millis(60));
        "staging again is ALREADY_EXISTS", "node-publish.stage-is-idempotent":
            not_again(Rpc::NodeStageVolume, Code::AlreadyExists), of_filesystems;
        "staging a raw device again is ALREADY_EXISTS", "node-publish.stage-is-idempotent":
            not_again(Rpc::NodeStageVolume, Code::AlreadyExists), of_images;
        "a raw device needs no staging path", "node-publish.without-staging-path":
            accepted(Rpc::NodePublishVolume, Code::FailedPrecondition), of_images;
        "the size is told of a device that is not there", "node-use.stats":
            accepted(Rpc::NodeGetVolumeStats, Code::NotFound), of_images;
        "unpublishing again is NOT_FOUND", "node-publish.publish-is-idempotent":
            undoes_once(Rpc::NodePublishVolume, Rpc::NodeUnpublishVolume, Code::NotFound), leaves_something;
        "publishing a raw device again fails", "node-publish.device-is-idempotent":
            not_again(Rpc::NodePublishVolume, Code::Internal), of_images;
        "a raw device for one target has two", "node-publish.device-matrix":
            accepted(Rpc::NodePublishVolume, Code::FailedPrecondition), of_images;
        "a publish without a staging path does nothing", "node-publish.without-staging-path":
            accepted(Rpc::NodePublishVolume, Code::FailedPrecondition), of_filesystems;
        "mount flags are passed over", "node-publish.mount-flags": request(without_flags);
        "publishing with a group again is ALREADY_EXISTS", "mount-group.again":
            not_again(Rpc::NodePublishVolume, Code::AlreadyExists);
        "publishing a raw device says OK and does nothing", "node-use.device-data-stays":
            nothing(Rpc::NodePublishVolume), of_images;
        "read-only is ignored of a raw device", "node-use.device-read-only":
            request(|r: &mut v1::NodePublishVolumeRequest| r.readonly = false), of_images;
        "usage is told of a path where nothing is", "node-use.stats":
            accepted(Rpc::NodeGetVolumeStats, Code::NotFound);
    }
}
