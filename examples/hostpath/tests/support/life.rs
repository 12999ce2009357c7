//! The calls of a volume's life, to a workload and back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use csi_core::client::Client;
use csi_proto::v1;
use tonic::Status;

use super::Run;

/// A volume, and how it is used on this node.
pub(crate) struct Life<'a> {
    run: &'a Run,
    pub(crate) client: Client,
    /// The client of the node; the same as `client`, unless the node is another process.
    pub(crate) node: Client,
    pub(crate) id: String,
    pub(crate) capability: v1::VolumeCapability,
    pub(crate) readonly: bool,
    context: BTreeMap<String, String>,
    publish_context: BTreeMap<String, String>,
}

impl<'a> Life<'a> {
    pub(crate) async fn new(run: &'a Run, request: v1::CreateVolumeRequest) -> Result<Life<'a>, Status> {
        let (client, capability) = (run.client(), request.volume_capabilities[0].clone());
        let volume = client.controller().create_volume(request).await?.into_inner().volume.unwrap();
        Ok(Self {
            run,
            node: client.clone(),
            client,
            id: volume.volume_id,
            capability,
            readonly: false,
            context: volume.volume_context,
            publish_context: BTreeMap::new(),
        })
    }

    fn text(path: &Path) -> String {
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn staging(&self) -> PathBuf {
        self.run.of("staging").join(&self.id)
    }

    pub(crate) fn target(&self, name: &str) -> PathBuf {
        self.run.of("target").join(format!("{}-{name}", self.id))
    }

    pub(crate) async fn attach(&mut self, node_id: &str) -> Result<(), Status> {
        let request = v1::ControllerPublishVolumeRequest {
            volume_id: self.id.clone(),
            node_id: node_id.to_owned(),
            volume_capability: Some(self.capability.clone()),
            readonly: self.readonly,
            volume_context: self.context.clone(),
            ..Default::default()
        };
        let answer = self.client.controller().controller_publish_volume(request).await?;
        self.publish_context = answer.into_inner().publish_context;
        Ok(())
    }

    pub(crate) async fn stage(&self) -> Result<(), Status> {
        std::fs::create_dir_all(self.staging()).unwrap();
        let request = v1::NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: Self::text(&self.staging()),
            volume_capability: Some(self.capability.clone()),
            volume_context: self.context.clone(),
            ..Default::default()
        };
        self.node.node().node_stage_volume(request).await.map(drop)
    }

    pub(crate) async fn publish(&self, name: &str) -> Result<PathBuf, Status> {
        let target = self.target(name);
        let request = v1::NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: Self::text(&self.staging()),
            target_path: Self::text(&target),
            volume_capability: Some(self.capability.clone()),
            readonly: self.readonly,
            volume_context: self.context.clone(),
            ..Default::default()
        };
        self.node.node().node_publish_volume(request).await?;
        Ok(target)
    }

    /// Attaches, stages and publishes the volume at one target.
    pub(crate) async fn start(&mut self) -> Result<PathBuf, Status> {
        self.attach("node-1").await?;
        self.stage().await?;
        self.publish("one").await
    }

    pub(crate) async fn unpublish(&self, target: &Path) -> Result<(), Status> {
        let request =
            v1::NodeUnpublishVolumeRequest { volume_id: self.id.clone(), target_path: Self::text(target) };
        self.node.node().node_unpublish_volume(request).await.map(drop)
    }

    pub(crate) async fn unstage(&self) -> Result<(), Status> {
        let staging_target_path = Self::text(&self.staging());
        let request = v1::NodeUnstageVolumeRequest { volume_id: self.id.clone(), staging_target_path };
        self.node.node().node_unstage_volume(request).await?;
        let _ = std::fs::remove_dir(self.staging());
        Ok(())
    }

    pub(crate) async fn detach(&self, node_id: &str) -> Result<(), Status> {
        let request = v1::ControllerUnpublishVolumeRequest {
            volume_id: self.id.clone(),
            node_id: node_id.to_owned(),
            ..Default::default()
        };
        self.client.controller().controller_unpublish_volume(request).await.map(drop)
    }

    pub(crate) async fn delete(&self) -> Result<(), Status> {
        let request = v1::DeleteVolumeRequest { volume_id: self.id.clone(), ..Default::default() };
        self.client.controller().delete_volume(request).await.map(drop)
    }

    /// Undoes all steps of one target and deletes the volume.
    pub(crate) async fn end(&self) {
        self.unpublish(&self.target("one")).await.unwrap();
        self.unstage().await.unwrap();
        self.detach("node-1").await.unwrap();
        self.delete().await.unwrap();
    }

    /// Creates a snapshot and returns its id.
    pub(crate) async fn snapshot(&self, name: &str) -> Result<String, Status> {
        let request = v1::CreateSnapshotRequest {
            source_volume_id: self.id.clone(),
            name: name.to_owned(),
            ..Default::default()
        };
        let answer = self.client.controller().create_snapshot(request).await?.into_inner();
        Ok(answer.snapshot.unwrap().snapshot_id)
    }

    /// Expands on the controller. Returns whether the node must expand too.
    pub(crate) async fn expand(&self, bytes: u64) -> Result<bool, Status> {
        let capacity_range = Some(v1::CapacityRange { required_bytes: bytes as i64, limit_bytes: 0 });
        let request = v1::ControllerExpandVolumeRequest {
            volume_id: self.id.clone(),
            capacity_range,
            ..Default::default()
        };
        let answer = self.client.controller().controller_expand_volume(request).await?;
        Ok(answer.into_inner().node_expansion_required)
    }

    pub(crate) async fn expand_on_node(&self, bytes: u64) -> Result<(), Status> {
        let capacity_range = Some(v1::CapacityRange { required_bytes: bytes as i64, limit_bytes: 0 });
        let request = v1::NodeExpandVolumeRequest {
            volume_id: self.id.clone(),
            volume_path: Self::text(&self.target("one")),
            staging_target_path: Self::text(&self.staging()),
            capacity_range,
            ..Default::default()
        };
        self.node.node().node_expand_volume(request).await.map(drop)
    }

    /// The reasons that the controller reports, and those that the node reports.
    pub(crate) async fn wrong(&self) -> (Vec<String>, Vec<String>) {
        let request =
            v1::ControllerGetVolumeHealthRequest { volume_id: self.id.clone(), ..Default::default() };
        let controller =
            self.client.controller().controller_get_volume_health(request).await.unwrap().into_inner();
        let request = v1::NodeGetVolumeHealthRequest {
            volume_id: self.id.clone(),
            volume_publish_path: Self::text(&self.target("one")),
            staging_target_path: Self::text(&self.staging()),
        };
        let node = self.node.node().node_get_volume_health(request).await.unwrap().into_inner();
        let reasons = |health: Option<v1::VolumeHealth>| {
            health.unwrap().health_statuses.into_iter().map(|entry| entry.reason).collect()
        };
        (reasons(controller.volume_health), reasons(node.volume_health))
    }
}

/// A snapshot as the source of a new volume.
pub(crate) fn of_snapshot(snapshot_id: &str) -> Option<v1::VolumeContentSource> {
    use v1::volume_content_source::{SnapshotSource, Type};
    let r#type = Some(Type::Snapshot(SnapshotSource { snapshot_id: snapshot_id.to_owned() }));
    Some(v1::VolumeContentSource { r#type })
}

/// A volume as the source of a new volume.
pub(crate) fn of_volume(volume_id: &str) -> Option<v1::VolumeContentSource> {
    use v1::volume_content_source::{Type, VolumeSource};
    let r#type = Some(Type::Volume(VolumeSource { volume_id: volume_id.to_owned() }));
    Some(v1::VolumeContentSource { r#type })
}
