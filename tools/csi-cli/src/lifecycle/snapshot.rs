//! A snapshot of the volume, if the driver supports snapshots.

use csi_proto::v1;

use super::call::{Failure, Outcome, Repeat};
use super::scenario::LifeCycle;

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
        // `ready_to_use` can change by itself.
        let answer = self.steps.make(name, request, Repeat::MayDiffer, text).await?;
        let snapshot = answer.snapshot.ok_or_else(|| Failure::new(name, missing))?;
        self.snapshot = Some((snapshot, self.capacity));
        Ok(())
    }

    pub(crate) async fn delete_snapshot(&mut self) -> Outcome<()> {
        let Some((snapshot, _)) = self.snapshot.take() else { return Ok(()) };
        let snapshot_id = snapshot.snapshot_id;
        let request = v1::DeleteSnapshotRequest { snapshot_id: snapshot_id.clone(), ..Default::default() };
        self.steps.make("DeleteSnapshot", request, Repeat::Equal, |_| Ok(snapshot_id)).await.map(drop)
    }
}
