//! The calls of a volume's life, in the order of the kubelet and the sidecars.

use std::path::PathBuf;

use csi_core::proto::client::{Client, VolumeUse};
use csi_core::proto::v1;
use tonic::Status;
use v1::volume_capability::{AccessType, access_mode::Mode};

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
pub(crate) struct Volume(VolumeUse);

impl Volume {
    pub(crate) fn mounted(node: &Node, fs_type: &str) -> Self {
        let mut capability = v1::VolumeCapability::mount(Mode::SingleNodeMultiWriter);
        if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
            mount.fs_type = fs_type.to_owned();
        }
        Self::with(node, capability)
    }

    pub(crate) fn raw(node: &Node) -> Self {
        Self::with(node, v1::VolumeCapability::block(Mode::SingleNodeMultiWriter))
    }

    /// As a driver without SINGLE_NODE_MULTI_WRITER takes it.
    pub(crate) fn served(node: &Node) -> Self {
        Self::with(node, v1::VolumeCapability::mount(Mode::SingleNodeWriter))
    }

    fn with(node: &Node, capability: v1::VolumeCapability) -> Self {
        Self(VolumeUse::new(&node.volume, capability).staged_at(Self::staging()))
    }

    pub(crate) fn unstaged(mut self) -> Self {
        self.0.staging_path = None;
        self
    }

    pub(crate) fn staging() -> String {
        format!("{KUBELET}/plugins/globalmount")
    }

    pub(crate) fn target(name: &str) -> String {
        format!("{KUBELET}/pods/{name}/mount")
    }

    /// The directories that the kubelet makes before the calls.
    fn directories() -> [String; 3] {
        [Self::staging(), format!("{KUBELET}/pods/writer"), format!("{KUBELET}/pods/reader")]
    }

    pub(crate) fn make_directories() {
        Self::directories().iter().for_each(|directory| std::fs::create_dir_all(directory).unwrap());
    }

    /// Removes them again.
    pub(crate) fn remove_directories() {
        for directory in Self::directories() {
            std::fs::remove_dir(&directory).unwrap_or_else(|error| panic!("{directory}: {error}"));
        }
    }

    /// Takes the volume through these steps, each of which succeeds.
    pub(crate) async fn steps(&self, client: &Client, steps: &[Step]) {
        for &step in steps {
            self.step(client, step).await.unwrap_or_else(|status| panic!("{step:?}: {status}"));
        }
    }

    pub(crate) async fn step(&self, client: &Client, step: Step) -> Result<(), Status> {
        let Self(volume) = self;
        let writer = PathBuf::from(Self::target("writer"));
        let reader = PathBuf::from(Self::target("reader"));
        match step {
            Step::Create => {
                let request = v1::CreateVolumeRequest {
                    name: volume.volume_id.clone(),
                    capacity_range: Some(v1::CapacityRange { required_bytes: SIZE, limit_bytes: 0 }),
                    volume_capabilities: vec![volume.capability.clone()],
                    ..Default::default()
                };
                client.call(request).await.map(drop)
            }
            Step::Stage => client.call(volume.node_stage_volume()).await.map(drop),
            Step::PublishWriter => client.call(volume.node_publish_volume(&writer)).await.map(drop),
            Step::PublishReader => {
                let request = volume.node_publish_volume(&reader);
                client.call(v1::NodePublishVolumeRequest { readonly: true, ..request }).await.map(drop)
            }
            Step::ControllerExpand => client.call(volume.controller_expand_volume(2 * SIZE)).await.map(drop),
            Step::NodeExpand => client.call(volume.node_expand_volume(&writer, 2 * SIZE)).await.map(drop),
            Step::Stats => {
                let usage = client.call(volume.node_get_volume_stats(&writer)).await?.usage;
                assert!(usage.iter().any(|usage| usage.total > 0), "{usage:?}");
                Ok(())
            }
            Step::UnpublishReader => client.call(volume.node_unpublish_volume(&reader)).await.map(drop),
            Step::UnpublishWriter => client.call(volume.node_unpublish_volume(&writer)).await.map(drop),
            Step::Unstage => client.call(volume.node_unstage_volume()).await.map(drop),
            Step::Delete => client.call(volume.delete_volume()).await.map(drop),
        }
    }
}
