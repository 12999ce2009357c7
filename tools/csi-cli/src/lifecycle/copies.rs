//! A snapshot of the volume, and copies: one restored from the snapshot and one cloned, each with a look at its data.

use std::time::Duration;

use csi_proto::v1;
use tokio::time::{Instant, sleep};
use v1::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};

use super::scenario::{LifeCycle, create};
use super::steps::{Failure, OnNode, Outcome};
use super::target;
use super::volume_spec::{TargetChecks, VolumeSpec};

/// The wait between two looks at a snapshot that is not ready.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

impl LifeCycle<'_, '_> {
    pub(crate) fn snapshot_request(&self) -> v1::CreateSnapshotRequest {
        self.volume.create_snapshot(format!("{}-snapshot", self.spec.name))
    }

    pub(crate) async fn snapshot(&mut self) -> Outcome<()> {
        if !self.capabilities.snapshots {
            return Ok(());
        }
        let name = "CreateSnapshot";
        let request = self.snapshot_request();
        let missing = "the answer has no snapshot";
        let text = |answer: &v1::CreateSnapshotResponse| {
            Ok(answer.snapshot.as_ref().ok_or(missing)?.snapshot_id.clone())
        };
        let answer = self.steps.make(name, request, text).await?;
        let snapshot = answer.snapshot.ok_or_else(|| Failure::new(name, missing))?;
        self.snapshot = Some((snapshot, self.capacity));
        Ok(())
    }

    pub(crate) async fn delete_snapshot(&mut self) -> Outcome<()> {
        let Some((snapshot, _)) = self.snapshot.take() else { return Ok(()) };
        let snapshot_id = snapshot.snapshot_id;
        let request = v1::DeleteSnapshotRequest { snapshot_id: snapshot_id.clone(), ..Default::default() };
        self.steps.make("DeleteSnapshot", request, |_| Ok(snapshot_id)).await.map(drop)
    }

    /// Makes, checks and deletes the copies that the driver capabilities. The volume itself is on no node then: some
    /// kernels refuse to mount two filesystems with one UUID.
    pub(crate) async fn copy(&mut self) -> Outcome<()> {
        if !self.capabilities.creates || self.spec.existing.is_some() {
            return Ok(());
        }
        if let Some((snapshot, size)) = self.snapshot.clone() {
            self.wait_until_ready(snapshot.ready_to_use).await?;
            let size = size.max(snapshot.size_bytes);
            let source = SnapshotSource { snapshot_id: snapshot.snapshot_id };
            self.copy_from(Source::Snapshot(source), "restored", size).await?;
        }
        if self.capabilities.clones {
            let source = VolumeSource { volume_id: self.volume.volume_id.clone() };
            self.copy_from(Source::Volume(source), "clone", self.capacity).await?;
        }
        Ok(())
    }

    /// Repeats CreateSnapshot until the snapshot is ready, as the snapshotter does.
    async fn wait_until_ready(&mut self, mut is_ready: bool) -> Outcome<()> {
        let start = Instant::now();
        while !is_ready {
            if start.elapsed() >= self.steps.timeout {
                return Err(Failure::new("CreateSnapshot", "the snapshot does not become ready to use"));
            }
            sleep(LOOK_AGAIN).await;
            let answer = self.steps.timed("CreateSnapshot", &self.snapshot_request()).await?.0;
            is_ready = answer.snapshot.is_some_and(|snapshot| snapshot.ready_to_use);
        }
        Ok(())
    }

    async fn copy_from(&mut self, source: Source, what: &str, size: i64) -> Outcome<()> {
        let name = format!("{}-{what}", self.spec.name);
        let spec = VolumeSpec { name, size, ..self.spec.clone() };
        let source = Some(v1::VolumeContentSource { r#type: Some(source) });
        let here = OnNode::new(self.steps.on_node.checks, self.steps.on_node.content);
        let of_volume = std::mem::replace(&mut self.steps.on_node, here);
        let volume = create(self.steps, self.capabilities, &spec, source).await?;
        let mut copy = LifeCycle::new(self.steps, self.capabilities, &spec, volume, self.places)?;
        copy.steps.on_node.targets.truncate(1);
        if let Some(target) = copy.steps.on_node.targets.first().cloned() {
            copy.attach_stage_publish().await?;
            if copy.steps.on_node.checks == TargetChecks::Content {
                let content = spec.content;
                let work = move || {
                    target::check_data(&target.path, content).map(|()| "the data of its source".to_owned())
                };
                copy.steps.check("  read", work).await?;
            }
            copy.unpublish_unstage_detach().await?;
        }
        copy.delete().await?;
        self.steps.on_node = of_volume;
        Ok(())
    }
}
