//! An object that does not exist counts as deleted and matches no filter, even if the driver returns a "not
//! found" error.

mod common;

use std::sync::Arc;

use common::*;
use csi_core::*;
use csi_proto::v1;
use tonic::Code;

/// A driver that has no snapshots and no groups.
struct Empty;

#[async_trait]
impl Controller for Empty {
    async fn lookup(&self, _: &VolumeId) -> Result<Option<Volume>> {
        Ok(None)
    }

    fn supports(&self, _: &VolumeCapability) -> bool {
        true
    }
}

#[async_trait]
impl CreateDeleteVolume for Empty {
    async fn create_volume(&self, _: CreateVolumeRequest) -> Result<Volume> {
        Err(Error::LimitReached("it stays empty".into()))
    }

    async fn delete_volume(&self, _: DeleteVolumeRequest) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl CreateDeleteSnapshot for Empty {
    async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<Snapshot> {
        Err(Error::VolumeNotFound(request.source_volume_id))
    }

    async fn delete_snapshot(&self, request: DeleteSnapshotRequest) -> Result<()> {
        Err(Error::SnapshotNotFound(request.snapshot_id))
    }
}

#[async_trait]
impl ListSnapshots for Empty {
    async fn list_snapshots(&self, request: ListSnapshotsRequest) -> Result<Page<Snapshot>> {
        match (request.snapshot_id, request.source_volume_id) {
            (Some(id), _) => Err(Error::SnapshotNotFound(id)),
            (_, Some(id)) => Err(Error::VolumeNotFound(id)),
            _ => Ok(Page::new(Vec::new(), None)),
        }
    }
}

#[async_trait]
impl GroupController for Empty {
    async fn create_volume_group_snapshot(
        &self,
        request: CreateVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot> {
        Err(Error::VolumeNotFound(request.source_volume_ids[0].clone()))
    }

    async fn delete_volume_group_snapshot(&self, request: DeleteVolumeGroupSnapshotRequest) -> Result<()> {
        Err(Error::GroupSnapshotNotFound(request.group_snapshot_id))
    }

    async fn volume_group_snapshot(
        &self,
        request: GetVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot> {
        Err(Error::GroupSnapshotNotFound(request.group_snapshot_id))
    }
}

// spec: delete-snapshot.missing-is-ok, list-snapshots.unknown-filter
// spec: delete-volume-group-snapshot.missing-is-ok
#[tokio::test]
async fn what_is_not_there_is_deleted_and_not_listed() {
    let driver = Arc::new(Empty);
    let service = ControllerService::new(driver.clone())
        .create_delete_volume()
        .create_delete_snapshot()
        .list_snapshots();
    let plugin = Plugin::new("empty.example.com", "1").controller(service).group_controller(driver);
    let served = Served::start(plugin).await;
    let mut controller = served.controller();
    let request = v1::DeleteSnapshotRequest { snapshot_id: "never".into(), ..Default::default() };
    controller.delete_snapshot(request).await.expect("it is deleted");
    for (snapshot_id, source_volume_id) in [("never", ""), ("", "never")] {
        let (snapshot_id, source_volume_id) = (snapshot_id.to_owned(), source_volume_id.to_owned());
        let request = v1::ListSnapshotsRequest { snapshot_id, source_volume_id, ..Default::default() };
        let page = controller.list_snapshots(request).await.expect("an empty page").into_inner();
        assert!(page.entries.is_empty() && page.next_token.is_empty());
    }
    let mut groups = v1::group_controller_client::GroupControllerClient::new(
        csi_core::client::Client::new(&served.endpoint).channel(),
    );
    let request = v1::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: "never".into(),
        snapshot_ids: vec!["never".into()],
        ..Default::default()
    };
    groups.delete_volume_group_snapshot(request).await.expect("it is deleted");
    let request = v1::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: "never".into(),
        snapshot_ids: vec!["never".into()],
        ..Default::default()
    };
    let refused = groups.get_volume_group_snapshot(request).await.expect_err("it is not there");
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
}
