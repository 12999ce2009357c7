//! What callers leave out or add, as test suites and sidecars do.

use std::sync::Arc;

use csi_core::types::VolumeGroupSnapshot;
use csi_core::*;
use csi_proto::v1;
use tonic::Code;

use crate::common::{Served, create, refused};
use crate::driver::{TestDriver, group_snapshot, snapshot, volume};
use crate::log::Log;

/// The pool is the only parameter of a class.
#[derive(serde::Deserialize)]
struct ClassParameters {
    pool: Option<String>,
}

fn group() -> VolumeGroupSnapshot {
    group_snapshot("g", vec![snapshot("s1", "v1"), snapshot("s2", "v2")])
}

/// A driver with a group "g" of two snapshots, and a volume "v".
fn driver() -> Arc<TestDriver> {
    let driver = Arc::new(TestDriver::default());
    driver.lookup.answers(|id| Ok((id.as_str() == "v").then(|| volume(&id))));
    driver.create_volume.answers(|request| {
        let _: ClassParameters = request.parameters.parse()?;
        Ok(volume(&VolumeId::new("v")?))
    });
    driver.create_volume_group_snapshot.answers(|request| {
        let parameters: ClassParameters = request.parameters.parse()?;
        assert_eq!(parameters.pool.as_deref(), Some("fast"));
        Ok(group())
    });
    driver.get_volume_group_snapshot.answers(|request| match request.group_snapshot_id.as_str() {
        "g" => Ok(group()),
        _ => Err(Error::GroupSnapshotNotFound(request.group_snapshot_id)),
    });
    driver
}

fn plugin(driver: &Arc<TestDriver>) -> Plugin {
    Plugin::new("test.csi.example.org", "1")
        .controller(ControllerService::new(driver.clone()).create_delete_volume().modify_volume())
        .group_controller(driver.clone())
}

fn get(group: &str, members: &[&str]) -> v1::GetVolumeGroupSnapshotRequest {
    let snapshot_ids = members.iter().map(ToString::to_string).collect();
    v1::GetVolumeGroupSnapshotRequest { group_snapshot_id: group.into(), snapshot_ids, ..Default::default() }
}

fn delete(group: &str) -> v1::DeleteVolumeGroupSnapshotRequest {
    v1::DeleteVolumeGroupSnapshotRequest { group_snapshot_id: group.into(), ..Default::default() }
}

fn modify(volume: &str) -> v1::ControllerModifyVolumeRequest {
    v1::ControllerModifyVolumeRequest { volume_id: volume.into(), ..Default::default() }
}

// spec: get-volume-group-snapshot.mismatch, get-volume-group-snapshot.missing, fields.required-list
// spec: delete-volume-group-snapshot.missing-is-ok, controller-modify-volume.missing
#[tokio::test]
async fn a_list_that_is_left_out_is_missed_only_if_its_object_exists() {
    for spec in [Spec::V1_12, Spec::V1_13] {
        let driver = driver();
        let served = Served::start(plugin(&driver).spec(spec)).await;
        for (outcome, field) in [
            (served.call(get("g", &[])).await.map(drop), "snapshot_ids"),
            (served.call(get("g", &["s1"])).await.map(drop), "snapshot_ids"),
            (served.call(delete("g")).await.map(drop), "snapshot_ids"),
            (served.call(modify("v")).await.map(drop), "mutable_parameters"),
        ] {
            let status = refused(outcome, Code::InvalidArgument);
            assert!(status.message().starts_with(field), "{status:?}");
        }
        refused(served.call(get("x", &[])).await, Code::NotFound);
        refused(served.call(modify("x")).await, Code::NotFound);
        served.call(delete("x")).await.unwrap();
        served.call(get("g", &["s2", "s1"])).await.unwrap();
        assert_eq!(driver.delete_volume_group_snapshot.calls(), 0, "nothing was deleted");
        assert_eq!(driver.controller_modify_volume.calls(), 0, "nothing was changed");
    }
}

#[tokio::test]
async fn a_group_class_may_have_keys_of_others_and_a_storage_class_may_not() {
    let (log, _guard) = Log::of_thread();
    let served = Served::start(plugin(&driver())).await;
    let parameters =
        [("pool".to_owned(), "fast".to_owned()), ("deletionPolicy".to_owned(), "Delete".to_owned())];
    let request = v1::CreateVolumeGroupSnapshotRequest {
        name: "n".into(),
        source_volume_ids: vec!["v1".into(), "v2".into()],
        parameters: parameters.clone().into(),
        ..Default::default()
    };
    for _ in 0..2 {
        served.call(request.clone()).await.unwrap();
    }
    let lines = log.take();
    let warnings = lines.lines().filter(|line| line.contains("parameters[deletionPolicy]")).count();
    assert_eq!(warnings, 1, "{lines}");

    let request = v1::CreateVolumeRequest { parameters: parameters.into(), ..create("n") };
    let status = refused(served.call(request).await, Code::InvalidArgument);
    assert!(status.message().starts_with("parameters[deletionPolicy]"), "{status:?}");
}
