//! A snapshot of the volume, if the driver supports snapshots.

use csi_proto::Rpc;
use csi_proto::v1;

use super::call::{Failure, Outcome};
use super::scenario::LifeCycle;
use super::undo::Step;

impl LifeCycle<'_, '_> {
    pub(crate) fn snapshot_request(&self) -> v1::CreateSnapshotRequest {
        v1::CreateSnapshotRequest {
            source_volume_id: self.id.clone(),
            name: format!("{}-snapshot", self.spec.name),
            secrets: self.spec.secrets.of(Rpc::CreateSnapshot),
            ..Default::default()
        }
    }

    pub(crate) async fn snapshot(&mut self) -> Outcome<()> {
        if !self.offers.snapshots {
            return Ok(());
        }
        let request = self.snapshot_request();
        self.undo_log.record(Step::MaybeSnapshot(request.clone()));
        let undo_log = &mut *self.undo_log;
        // `ready_to_use` can change by itself.
        let answer = self
            .caller
            .ask(
                "CreateSnapshot",
                &request,
                async |sockets, request| {
                    let answer = sockets.controller().create_snapshot(request).await?;
                    if let Some(snapshot) = &answer.get_ref().snapshot {
                        undo_log.set_snapshot_id(&snapshot.snapshot_id);
                    }
                    Ok(answer)
                },
                |answer| match answer.snapshot.as_ref() {
                    Some(snapshot) => Ok(snapshot.snapshot_id.clone()),
                    None => Err("the answer has no snapshot".to_owned()),
                },
            )
            .await?;
        let snapshot =
            answer.snapshot.ok_or_else(|| Failure::new("CreateSnapshot", "the answer has no snapshot"))?;
        self.snapshot = Some((snapshot, self.capacity));
        Ok(())
    }

    pub(crate) async fn delete_snapshot(&mut self) -> Outcome<()> {
        let Some((snapshot, _)) = self.snapshot.take() else { return Ok(()) };
        let secrets = self.spec.secrets.of(Rpc::DeleteSnapshot);
        let request = v1::DeleteSnapshotRequest { snapshot_id: snapshot.snapshot_id, secrets };
        self.caller
            .step(
                "DeleteSnapshot",
                &request,
                async |sockets, request| sockets.controller().delete_snapshot(request).await,
                |_| Ok(request.snapshot_id.clone()),
            )
            .await?;
        self.undo_log.forget(&Step::Snapshot(request));
        Ok(())
    }
}
