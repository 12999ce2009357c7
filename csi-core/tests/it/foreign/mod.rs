//! A foreign mount at a place of a volume: each step refuses it, and the mount and its data stay.
#![cfg(all(feature = "mount", target_os = "linux"))]

use std::fs;
use std::path::Path;
use std::process::Command;

use csi_mount::mounts;
use csi_proto::v1;
use tonic::Code;

use crate::common::{Served, refused};

/// A tmpfs with data in it, on top of the existing mounts at the path.
struct Foreign<'p> {
    path: &'p Path,
    layers: usize,
}

impl<'p> Foreign<'p> {
    fn over(path: &'p Path) -> Self {
        fs::create_dir_all(path).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "foreign"]).arg(path).status().unwrap();
        assert!(mounted.success());
        fs::write(path.join("data"), "precious").unwrap();
        Self { path, layers: layers(path) }
    }

    /// Checks that this mount and the layers below it are unchanged. Then unmounts it, as its owner.
    fn assert_unchanged_and_unmount(self) {
        assert_eq!(fs::read_to_string(self.path.join("data")).unwrap(), "precious");
        assert_eq!(layers(self.path), self.layers);
        assert!(Command::new("umount").arg(self.path).status().unwrap().success());
    }
}

fn layers(path: &Path) -> usize {
    mounts().unwrap().iter().filter(|entry| entry.mount_point == path).count()
}

/// Runs all steps of a volume, each with a foreign mount at its place: before the volume's own mount, and
/// on top of it.
pub(crate) async fn mounts_are_refused_and_stay(
    served: &Served,
    stage: Option<v1::NodeStageVolumeRequest>,
    publish: v1::NodePublishVolumeRequest,
) {
    let staging = Path::new(&publish.staging_target_path);
    let target = Path::new(&publish.target_path);
    let unpublish = v1::NodeUnpublishVolumeRequest::from(&publish);

    if let Some(stage) = &stage {
        let unstage = v1::NodeUnstageVolumeRequest::from(stage);
        for is_staged in [false, true] {
            if is_staged {
                served.call(stage.clone()).await.unwrap();
            }
            let foreign = Foreign::over(staging);
            refused(served.call(stage.clone()).await, Code::AlreadyExists);
            refused(served.call(publish.clone()).await, Code::FailedPrecondition);
            refused(served.call(unstage.clone()).await, Code::FailedPrecondition);
            foreign.assert_unchanged_and_unmount();
        }
    }

    for is_published in [false, true] {
        if is_published {
            served.call(publish.clone()).await.unwrap();
        }
        let foreign = Foreign::over(target);
        refused(served.call(publish.clone()).await, Code::AlreadyExists);
        refused(served.call(unpublish.clone()).await, Code::FailedPrecondition);
        foreign.assert_unchanged_and_unmount();
    }

    served.call(unpublish).await.unwrap();
    assert_eq!(layers(target), 0);
    if let Some(stage) = &stage {
        served.call(v1::NodeUnstageVolumeRequest::from(stage)).await.unwrap();
        assert_eq!(layers(staging), 0);
    }
}
