//! What callers leave out, or add, where the suites for spec v1.12.0 do so: strict for v1.13.0.

mod common;
mod whole;

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use common::Served;
use csi_core::*;
use csi_proto::v1;
use csi_proto::v1::group_controller_client::GroupControllerClient;
use tonic::Code;
use tonic::transport::Channel;
use whole::{snapshot, volume};

/// A group "g" of two snapshots, and a volume "v".
#[derive(Default)]
struct Pair {
    deleted: Mutex<Vec<String>>,
    modified: Mutex<u32>,
}

/// The pool is the only parameter of a class.
#[derive(serde::Deserialize)]
struct ClassParameters {
    pool: Option<String>,
}

fn id(text: &str) -> VolumeId {
    VolumeId::new(text).unwrap()
}

fn group() -> VolumeGroupSnapshot {
    let members = [("s1", "v1"), ("s2", "v2")];
    let members = members.map(|(member, source)| snapshot(&SnapshotId::new(member).unwrap(), &id(source)));
    VolumeGroupSnapshot::new(GroupSnapshotId::new("g").unwrap(), members.into(), SystemTime::UNIX_EPOCH)
}

#[async_trait]
impl GroupController for Pair {
    async fn create_volume_group_snapshot(
        &self,
        request: CreateVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot> {
        let parameters: ClassParameters = request.parameters.parse()?;
        assert_eq!(parameters.pool.as_deref(), Some("fast"));
        Ok(group())
    }

    async fn delete_volume_group_snapshot(&self, request: DeleteVolumeGroupSnapshotRequest) -> Result<()> {
        let members = request.snapshot_ids.iter().map(ToString::to_string);
        self.deleted.lock().unwrap().extend(members);
        Ok(())
    }

    async fn volume_group_snapshot(
        &self,
        request: GetVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot> {
        match request.group_snapshot_id.as_str() {
            "g" => Ok(group()),
            _ => Err(Error::GroupSnapshotNotFound(request.group_snapshot_id)),
        }
    }
}

#[async_trait]
impl Controller for Pair {
    async fn lookup(&self, volume_id: &VolumeId) -> Result<Option<Volume>> {
        Ok((volume_id.as_str() == "v").then(|| volume(volume_id)))
    }

    fn supports(&self, _: &VolumeCapability) -> bool {
        true
    }
}

#[async_trait]
impl CreateDeleteVolume for Pair {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        let _: ClassParameters = request.parameters.parse()?;
        Ok(volume(&id("v")))
    }

    async fn delete_volume(&self, _: DeleteVolumeRequest) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl ControllerModifyVolume for Pair {
    async fn modify_volume(&self, _: ControllerModifyVolumeRequest) -> Result<()> {
        *self.modified.lock().unwrap() += 1;
        Ok(())
    }
}

fn plugin(pair: &Arc<Pair>) -> Plugin {
    Plugin::new("pair.csi.example.org", "1")
        .controller(ControllerService::new(pair.clone()).create_delete_volume().modify_volume())
        .group_controller(pair.clone())
}

fn groups(served: &Served) -> GroupControllerClient<Channel> {
    GroupControllerClient::new(served.channel.clone())
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

// spec: get-volume-group-snapshot.mismatch, get-volume-group-snapshot.missing
// spec: delete-volume-group-snapshot.missing-is-ok, controller-modify-volume.missing
#[tokio::test]
async fn v1_12_looks_up_what_a_request_names_no_parts_of() {
    let pair = Arc::new(Pair::default());
    let served = Served::start(plugin(&pair)).await;
    let mut groups = groups(&served);
    let told = groups.get_volume_group_snapshot(get("g", &[])).await.unwrap().into_inner();
    assert_eq!(told.group_snapshot.unwrap().snapshots.len(), 2);
    groups.get_volume_group_snapshot(get("g", &["s2", "s1"])).await.unwrap();
    let refused = groups.get_volume_group_snapshot(get("g", &["s1"])).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    assert_eq!(groups.get_volume_group_snapshot(get("x", &[])).await.unwrap_err().code(), Code::NotFound);

    groups.delete_volume_group_snapshot(delete("x")).await.unwrap();
    assert!(pair.deleted.lock().unwrap().is_empty());
    groups.delete_volume_group_snapshot(delete("g")).await.unwrap();
    assert_eq!(*pair.deleted.lock().unwrap(), ["s1", "s2"]);

    let mut controller = served.controller();
    controller.controller_modify_volume(modify("v")).await.unwrap();
    let refused = controller.controller_modify_volume(modify("x")).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    assert_eq!(*pair.modified.lock().unwrap(), 0);
}

// spec: fields.required-list
#[tokio::test]
async fn v1_13_requires_what_its_spec_requires() {
    let served = Served::start(plugin(&Arc::default()).spec(Spec::V1_13)).await;
    let mut groups = groups(&served);
    for (refused, field) in [
        (groups.get_volume_group_snapshot(get("g", &[])).await.unwrap_err(), "snapshot_ids"),
        (groups.delete_volume_group_snapshot(delete("g")).await.unwrap_err(), "snapshot_ids"),
        (served.controller().controller_modify_volume(modify("v")).await.unwrap_err(), "mutable_parameters"),
    ] {
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().starts_with(field), "{refused:?}");
    }
}

#[tokio::test]
async fn a_group_class_may_have_keys_of_others_and_a_storage_class_may_not() {
    let log = whole::log::Log::start();
    let served = Served::start(plugin(&Arc::default())).await;
    let parameters =
        [("pool".to_owned(), "fast".to_owned()), ("deletionPolicy".to_owned(), "Delete".to_owned())];
    let request = v1::CreateVolumeGroupSnapshotRequest {
        name: "n".into(),
        source_volume_ids: vec!["v1".into(), "v2".into()],
        parameters: parameters.clone().into(),
        ..Default::default()
    };
    for _ in 0..2 {
        groups(&served).create_volume_group_snapshot(request.clone()).await.unwrap();
    }
    let lines = log.take();
    let warnings = lines.lines().filter(|line| line.contains("parameters[deletionPolicy]")).count();
    assert_eq!(warnings, 1, "{lines}");

    let request = v1::CreateVolumeRequest {
        name: "n".into(),
        volume_capabilities: vec![common::mount_capability(1)],
        parameters: parameters.into(),
        ..Default::default()
    };
    let refused = served.controller().create_volume(request).await.unwrap_err();
    assert!(refused.message().starts_with("parameters[deletionPolicy]"), "{refused:?}");
}
