//! The calls of a volume's life, to a workload and back.

use std::path::{Path, PathBuf};

use csi_core::client::{Client, Target, VolumeUse};
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
    pub(crate) readonly: bool,
    pub(crate) volume: VolumeUse,
}

impl<'a> Life<'a> {
    pub(crate) async fn new(run: &'a Run, request: v1::CreateVolumeRequest) -> Result<Life<'a>, Status> {
        let client = run.client();
        let capability = request.volume_capabilities[0].clone();
        let made = client.call(request).await?.volume.unwrap();
        let staging = run.of("staging").join(&made.volume_id);
        let mut volume = VolumeUse::new(&made.volume_id, capability).staged_at(staging);
        volume.volume_context = made.volume_context;
        Ok(Self { run, node: client.clone(), client, id: made.volume_id, readonly: false, volume })
    }

    pub(crate) fn staging(&self) -> PathBuf {
        self.run.of("staging").join(&self.id)
    }

    pub(crate) fn target(&self, name: &str) -> PathBuf {
        self.run.of("target").join(format!("{}-{name}", self.id))
    }

    pub(crate) async fn attach(&mut self, node_id: &str) -> Result<(), Status> {
        self.volume.node_id = Some(node_id.to_owned());
        let request = self.volume.controller_publish_volume();
        let request = v1::ControllerPublishVolumeRequest { readonly: self.readonly, ..request };
        self.volume.publish_context = self.client.call(request).await?.publish_context;
        Ok(())
    }

    pub(crate) async fn stage(&self) -> Result<(), Status> {
        std::fs::create_dir_all(self.staging()).unwrap();
        self.volume.stage(&self.node).await
    }

    pub(crate) async fn publish(&self, name: &str) -> Result<PathBuf, Status> {
        let target = Target::new(self.target(name));
        let target = if self.readonly { target.read_only() } else { target };
        self.volume.publish(&self.node, std::slice::from_ref(&target)).await?;
        Ok(target.path)
    }

    /// Attaches, stages and publishes the volume at one target.
    pub(crate) async fn start(&mut self) -> Result<PathBuf, Status> {
        self.attach("node-1").await?;
        self.stage().await?;
        self.publish("one").await
    }

    /// Undoes [`start`](Self::start).
    pub(crate) async fn stop(&self) -> Result<(), Status> {
        self.unpublish(&self.target("one")).await?;
        self.unstage().await?;
        self.detach("node-1").await
    }

    pub(crate) async fn unpublish(&self, target: &Path) -> Result<(), Status> {
        self.volume.unpublish(&self.node, &[target]).await
    }

    pub(crate) async fn unstage(&self) -> Result<(), Status> {
        self.volume.unstage(&self.node).await?;
        let _ = std::fs::remove_dir(self.staging());
        Ok(())
    }

    pub(crate) async fn detach(&self, node_id: &str) -> Result<(), Status> {
        let node_id = node_id.to_owned();
        let request = self.volume.controller_unpublish_volume();
        self.client.call(v1::ControllerUnpublishVolumeRequest { node_id, ..request }).await.map(drop)
    }

    pub(crate) async fn delete(&self) -> Result<(), Status> {
        self.client.call(self.volume.delete_volume()).await.map(drop)
    }

    /// Undoes [`start`](Self::start), and deletes the volume.
    pub(crate) async fn end(&self) {
        self.stop().await.unwrap();
        self.delete().await.unwrap();
    }

    /// Creates a snapshot and returns its id.
    pub(crate) async fn snapshot(&self, name: &str) -> Result<String, Status> {
        Ok(self.client.call(self.volume.create_snapshot(name)).await?.snapshot.unwrap().snapshot_id)
    }

    /// Expands on the controller. Returns whether the node must expand too.
    pub(crate) async fn expand(&self, bytes: u64) -> Result<bool, Status> {
        let request = self.volume.controller_expand_volume(bytes as i64);
        Ok(self.client.call(request).await?.node_expansion_required)
    }

    pub(crate) async fn expand_on_node(&self, bytes: u64) -> Result<(), Status> {
        let request = self.volume.node_expand_volume(&self.target("one"), bytes as i64);
        self.node.call(request).await.map(drop)
    }

    /// The reasons that the controller reports.
    pub(crate) async fn wrong_at_controller(&self) -> Vec<String> {
        let request =
            v1::ControllerGetVolumeHealthRequest { volume_id: self.id.clone(), ..Default::default() };
        reasons(self.client.call(request).await.unwrap().volume_health)
    }

    /// The reasons that the controller reports, and those that the node reports.
    pub(crate) async fn wrong(&self) -> (Vec<String>, Vec<String>) {
        let request = v1::NodeGetVolumeHealthRequest {
            volume_id: self.id.clone(),
            volume_publish_path: self.target("one").to_str().unwrap().to_owned(),
            staging_target_path: self.staging().to_str().unwrap().to_owned(),
        };
        let node = self.node.call(request).await.unwrap();
        (self.wrong_at_controller().await, reasons(node.volume_health))
    }
}

fn reasons(health: Option<v1::VolumeHealth>) -> Vec<String> {
    health.unwrap().health_statuses.into_iter().map(|entry| entry.reason).collect()
}
