//! The calls of a volume's life, in the order of the kubelet and the sidecars.

use csi_core::proto::client::Client;
use csi_core::proto::v1;
use tonic::Status;
use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode};

use crate::node::{KUBELET, Node};

const MIB: i64 = 1 << 20;
/// More than the least size of each filesystem.
const SIZE: i64 = 320 * MIB;

/// A step of a volume's life. Each can be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Create,
    Stage,
    PublishWriter,
    PublishReader,
    ControllerExpand,
    NodeExpand,
    Stats,
    UnpublishReader,
    UnpublishWriter,
    Unstage,
    Delete,
}

/// The volume, as its claim describes it.
#[derive(Clone)]
pub(crate) struct Volume {
    id: String,
    pub(crate) capability: v1::VolumeCapability,
    pub(crate) is_staged: bool,
}

impl Volume {
    pub(crate) fn mounted(node: &Node, fs_type: &str) -> Self {
        let mount = MountVolume { fs_type: fs_type.to_owned(), ..Default::default() };
        Self::with(node, AccessType::Mount(mount), Mode::SingleNodeMultiWriter)
    }

    pub(crate) fn raw(node: &Node) -> Self {
        Self::with(node, AccessType::Block(BlockVolume {}), Mode::SingleNodeMultiWriter)
    }

    fn with(node: &Node, access: AccessType, mode: Mode) -> Self {
        let access_mode = Some(AccessMode { mode: mode as i32 });
        Self {
            id: node.volume.clone(),
            capability: v1::VolumeCapability { access_mode, access_type: Some(access) },
            is_staged: true,
        }
    }

    /// As a driver without SINGLE_NODE_MULTI_WRITER takes it.
    pub(crate) fn served(node: &Node) -> Self {
        Self::with(node, AccessType::Mount(MountVolume::default()), Mode::SingleNodeWriter)
    }

    pub(crate) fn unstaged(self) -> Self {
        Self { is_staged: false, ..self }
    }

    pub(crate) fn staging() -> String {
        format!("{KUBELET}/plugins/globalmount")
    }

    pub(crate) fn target(name: &str) -> String {
        format!("{KUBELET}/pods/{name}/mount")
    }

    /// Makes the directories that the kubelet makes before the calls.
    pub(crate) fn make_directories() {
        for directory in [Self::staging(), format!("{KUBELET}/pods/writer"), format!("{KUBELET}/pods/reader")]
        {
            std::fs::create_dir_all(directory).unwrap();
        }
    }

    /// Removes them again.
    pub(crate) fn remove_directories() {
        for directory in [Self::staging(), format!("{KUBELET}/pods/writer"), format!("{KUBELET}/pods/reader")]
        {
            std::fs::remove_dir(&directory).unwrap_or_else(|error| panic!("{directory}: {error}"));
        }
    }

    pub(crate) async fn step(&self, client: &Client, step: Step) -> Result<(), Status> {
        let mut controller = client.controller();
        let mut node = client.node();
        let range = |required_bytes| Some(v1::CapacityRange { required_bytes, limit_bytes: 0 });
        let volume_id = self.id.clone();
        let staging_target_path = if self.is_staged { Self::staging() } else { String::new() };
        let capability = self.capability.clone();
        match step {
            Step::Create => {
                let request = v1::CreateVolumeRequest {
                    name: self.id.clone(),
                    capacity_range: range(SIZE),
                    volume_capabilities: vec![capability],
                    ..Default::default()
                };
                controller.create_volume(request).await.map(drop)
            }
            Step::Stage => {
                let request = v1::NodeStageVolumeRequest {
                    volume_id,
                    staging_target_path,
                    volume_capability: Some(capability),
                    ..Default::default()
                };
                node.node_stage_volume(request).await.map(drop)
            }
            Step::PublishWriter | Step::PublishReader => {
                let readonly = step == Step::PublishReader;
                let request = v1::NodePublishVolumeRequest {
                    volume_id,
                    staging_target_path,
                    target_path: Self::target(if readonly { "reader" } else { "writer" }),
                    volume_capability: Some(capability),
                    readonly,
                    ..Default::default()
                };
                node.node_publish_volume(request).await.map(drop)
            }
            Step::ControllerExpand => {
                let request = v1::ControllerExpandVolumeRequest {
                    volume_id,
                    capacity_range: range(2 * SIZE),
                    ..Default::default()
                };
                controller.controller_expand_volume(request).await.map(drop)
            }
            Step::NodeExpand => {
                let request = v1::NodeExpandVolumeRequest {
                    volume_id,
                    volume_path: Self::target("writer"),
                    staging_target_path,
                    capacity_range: range(2 * SIZE),
                    ..Default::default()
                };
                node.node_expand_volume(request).await.map(drop)
            }
            Step::Stats => {
                let volume_path = Self::target("writer");
                let request = v1::NodeGetVolumeStatsRequest { volume_id, volume_path, ..Default::default() };
                let usage = node.node_get_volume_stats(request).await?.into_inner().usage;
                assert!(usage.iter().any(|usage| usage.total > 0), "{usage:?}");
                Ok(())
            }
            Step::UnpublishReader | Step::UnpublishWriter => {
                let target_path =
                    Self::target(if step == Step::UnpublishReader { "reader" } else { "writer" });
                let request = v1::NodeUnpublishVolumeRequest { volume_id, target_path };
                node.node_unpublish_volume(request).await.map(drop)
            }
            Step::Unstage => {
                let request = v1::NodeUnstageVolumeRequest { volume_id, staging_target_path };
                node.node_unstage_volume(request).await.map(drop)
            }
            Step::Delete => {
                let request = v1::DeleteVolumeRequest { volume_id, ..Default::default() };
                controller.delete_volume(request).await.map(drop)
            }
        }
    }
}
