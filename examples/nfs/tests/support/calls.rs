//! Short forms of the controller's calls.

use std::collections::BTreeMap;

use csi_core::client::Client;
use csi_core::proto::v1;
use test_support::requests::{of_snapshot, of_volume};
use tonic::Status;
use v1::volume_capability::{AccessType, MountVolume, access_mode::Mode};

pub(crate) type Answer<T> = Result<T, Status>;

/// The request for a volume on the share of the tests.
#[derive(Clone)]
pub(crate) struct Ask(pub(crate) v1::CreateVolumeRequest);

impl Ask {
    pub(crate) fn new(name: &str) -> Self {
        let capability = v1::VolumeCapability::mount(Mode::MultiNodeMultiWriter);
        let ask = Self(v1::CreateVolumeRequest {
            name: name.to_owned(),
            volume_capabilities: vec![capability],
            ..Default::default()
        });
        ask.with("server", "192.0.2.7").with("share", "/export")
    }

    pub(crate) fn with(mut self, key: &str, value: &str) -> Self {
        self.0.parameters.insert(key.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn options(mut self, options: &[String]) -> Self {
        let mount = MountVolume { mount_flags: options.to_vec(), ..Default::default() };
        self.0.volume_capabilities[0].access_type = Some(AccessType::Mount(mount));
        self
    }

    pub(crate) fn parameters(mut self, parameters: &BTreeMap<String, String>) -> Self {
        self.0.parameters.extend(parameters.clone());
        self
    }

    pub(crate) fn bytes(mut self, required_bytes: i64) -> Self {
        self.0.capacity_range = Some(v1::CapacityRange { required_bytes, limit_bytes: 0 });
        self
    }

    pub(crate) fn of_volume(mut self, volume_id: &str) -> Self {
        self.0.volume_content_source = of_volume(volume_id);
        self
    }

    pub(crate) fn of_snapshot(mut self, snapshot_id: &str) -> Self {
        self.0.volume_content_source = of_snapshot(snapshot_id);
        self
    }

    pub(crate) async fn create(self, client: &Client) -> Answer<v1::Volume> {
        Ok(client.call(self.0).await?.volume.unwrap())
    }

    /// The code and message of its refusal.
    pub(crate) async fn refused(self, client: &Client) -> (tonic::Code, String) {
        let status = self.create(client).await.expect_err("it is refused");
        (status.code(), status.message().to_owned())
    }
}

pub(crate) async fn delete(client: &Client, volume: &v1::Volume) -> Answer<()> {
    let request = v1::DeleteVolumeRequest { volume_id: volume.volume_id.clone(), ..Default::default() };
    client.call(request).await.map(drop)
}

pub(crate) async fn snapshot(client: &Client, name: &str, volume_id: &str) -> Answer<v1::Snapshot> {
    let request = v1::CreateSnapshotRequest {
        source_volume_id: volume_id.to_owned(),
        name: name.to_owned(),
        ..Default::default()
    };
    Ok(client.call(request).await?.snapshot.unwrap())
}

pub(crate) async fn delete_snapshot(client: &Client, snapshot_id: &str) -> Answer<()> {
    let request = v1::DeleteSnapshotRequest { snapshot_id: snapshot_id.to_owned(), ..Default::default() };
    client.call(request).await.map(drop)
}
