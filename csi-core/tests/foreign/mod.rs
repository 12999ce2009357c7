//! A foreign mount at a place of a volume: each step refuses it, and the mount and its data stay.

use std::fs;
use std::path::Path;
use std::process::Command;

use csi_mount::mounts;
use csi_proto::v1;
use tonic::{Code, Response, Status};

use crate::common::Served;

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

fn refused<T: std::fmt::Debug>(outcome: Result<Response<T>, Status>, code: Code, what: &str) {
    let status = outcome.expect_err(what);
    assert_eq!(status.code(), code, "{what}: {status}");
}

/// Runs all steps of a volume, each with a foreign mount at its place: before the volume's own mount, and
/// on top of it.
pub(crate) async fn mounts_are_refused_and_stay(
    served: &Served,
    stage: Option<v1::NodeStageVolumeRequest>,
    publish: v1::NodePublishVolumeRequest,
) {
    let (staging, target) = (Path::new(&publish.staging_target_path), Path::new(&publish.target_path));
    let volume_id = publish.volume_id.clone();
    let staging_target_path = publish.staging_target_path.clone();
    let unstage = v1::NodeUnstageVolumeRequest { volume_id: volume_id.clone(), staging_target_path };
    let unpublish = v1::NodeUnpublishVolumeRequest { volume_id, target_path: publish.target_path.clone() };
    let node = || served.node();

    if let Some(stage) = &stage {
        let foreign = Foreign::over(staging);
        refused(node().node_stage_volume(stage.clone()).await, Code::AlreadyExists, "stage");
        refused(
            node().node_publish_volume(publish.clone()).await,
            Code::FailedPrecondition,
            "publish from it",
        );
        refused(node().node_unstage_volume(unstage.clone()).await, Code::FailedPrecondition, "unstage");
        foreign.assert_unchanged_and_unmount();

        node().node_stage_volume(stage.clone()).await.unwrap();
        let foreign = Foreign::over(staging);
        refused(node().node_stage_volume(stage.clone()).await, Code::AlreadyExists, "stage beneath");
        refused(
            node().node_publish_volume(publish.clone()).await,
            Code::FailedPrecondition,
            "publish from above",
        );
        refused(
            node().node_unstage_volume(unstage.clone()).await,
            Code::FailedPrecondition,
            "unstage beneath",
        );
        foreign.assert_unchanged_and_unmount();
    }

    let foreign = Foreign::over(target);
    refused(node().node_publish_volume(publish.clone()).await, Code::AlreadyExists, "publish");
    refused(node().node_unpublish_volume(unpublish.clone()).await, Code::FailedPrecondition, "unpublish");
    foreign.assert_unchanged_and_unmount();

    node().node_publish_volume(publish.clone()).await.unwrap();
    let foreign = Foreign::over(target);
    refused(node().node_publish_volume(publish.clone()).await, Code::AlreadyExists, "publish beneath");
    refused(
        node().node_unpublish_volume(unpublish.clone()).await,
        Code::FailedPrecondition,
        "unpublish beneath",
    );
    foreign.assert_unchanged_and_unmount();

    node().node_unpublish_volume(unpublish).await.unwrap();
    assert_eq!(layers(target), 0);
    if stage.is_some() {
        node().node_unstage_volume(unstage).await.unwrap();
        assert_eq!(layers(staging), 0);
    }
}
