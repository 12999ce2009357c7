//! A snapshot of the volume, if the driver supports snapshots.

use csi_core::Rpc;
use csi_proto::v1;

use super::begun::Step;
use super::call::{Failure, Outcome};
use super::scenario::Life;
use super::wanted::Keep;

impl Life<'_, '_> {
    pub(crate) async fn snapshot(&mut self) -> Outcome<()> {
        if !self.offers.snapshots {
            return Ok(());
        }
        let request = v1::CreateSnapshotRequest {
            source_volume_id: self.id.clone(),
            name: format!("{}-snapshot", self.wanted.name),
            secrets: self.wanted.secrets.of(Rpc::CreateSnapshot),
            ..Default::default()
        };
        self.begun.begin(Step::MaybeSnapshot(request.clone()));
        let begun = &mut *self.begun;
        // `ready_to_use` can change by itself.
        let answer = self
            .caller
            .ask(
                "CreateSnapshot",
                &request,
                async |sockets, request| {
                    let answer = sockets.controller().create_snapshot(request).await?;
                    if let Some(snapshot) = &answer.get_ref().snapshot {
                        begun.know_snapshot(&snapshot.snapshot_id);
                    }
                    Ok(answer)
                },
                |answer| match answer.snapshot.as_ref() {
                    Some(snapshot) => Ok(snapshot.snapshot_id.clone()),
                    None => Err("the answer has no snapshot".to_owned()),
                },
            )
            .await?;
        if self.wanted.keep == Keep::Everything {
            return Ok(());
        }
        let snapshot =
            answer.snapshot.ok_or_else(|| Failure::new("CreateSnapshot", "the answer has no snapshot"))?;
        let secrets = self.wanted.secrets.of(Rpc::DeleteSnapshot);
        let request = v1::DeleteSnapshotRequest { snapshot_id: snapshot.snapshot_id, secrets };
        self.caller
            .step(
                "DeleteSnapshot",
                &request,
                async |sockets, request| sockets.controller().delete_snapshot(request).await,
                |_| Ok(request.snapshot_id.clone()),
            )
            .await?;
        self.begun.is_over(&Step::Snapshot(request));
        Ok(())
    }
}
