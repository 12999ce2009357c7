//! Shared by the tests: the driver on a socket, and short forms of the calls with secrets.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use csi_core::Plugin;
use csi_core::client::{Client, Target, VolumeUse};
use csi_core::proto::v1;
use test_support::driver::parse;
pub(crate) use test_support::requests::map;
use tonic::Status;
use v1::volume_capability::{AccessType, MountVolume, access_mode::Mode};

pub(crate) type Answer<T> = Result<T, Status>;

/// The driver, configured by flags.
pub(crate) fn driver() -> Plugin {
    smb::plugin(&parse(&["--node-id=node-1"]))
}

/// A capability with these mount flags, and with a group.
pub(crate) fn capability(flags: &[&str], group: &str) -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume {
            mount_flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            volume_mount_group: group.to_owned(),
            ..Default::default()
        })),
        ..v1::VolumeCapability::mount(Mode::MultiNodeMultiWriter)
    }
}

/// A volume and its places.
#[derive(Clone)]
pub(crate) struct Use {
    pub(crate) volume: VolumeUse,
    pub(crate) target: PathBuf,
}

impl Use {
    /// Below this directory are the staging and the target path.
    pub(crate) fn new(
        id: &str,
        context: BTreeMap<String, String>,
        capability: v1::VolumeCapability,
        directory: &Path,
        secrets: &BTreeMap<String, String>,
    ) -> Self {
        let mut volume = VolumeUse::new(id, capability).staged_at(directory.join("staging"));
        volume.volume_context = context;
        volume.secrets = secrets.clone().into_iter().collect();
        Self { volume, target: directory.join("target") }
    }

    pub(crate) fn staging(&self) -> PathBuf {
        self.volume.staging_path.clone().unwrap()
    }

    pub(crate) async fn stage(&self, client: &Client) -> Answer<()> {
        self.volume.stage(client).await
    }

    pub(crate) async fn publish(&self, client: &Client) -> Answer<()> {
        self.volume.publish(client, &[Target::new(&self.target)]).await
    }

    pub(crate) async fn stats(&self, client: &Client) -> Answer<v1::NodeGetVolumeStatsResponse> {
        client.call(self.volume.node_get_volume_stats(&self.target)).await
    }

    pub(crate) async fn health(&self, client: &Client) -> Answer<v1::NodeGetVolumeHealthResponse> {
        let request = v1::NodeGetVolumeHealthRequest {
            volume_id: self.volume.volume_id.clone(),
            volume_publish_path: self.target.display().to_string(),
            staging_target_path: self.staging().display().to_string(),
        };
        client.call(request).await
    }

    pub(crate) async fn unpublish(&self, client: &Client) -> Answer<()> {
        self.volume.unpublish(client, &[&self.target]).await
    }

    pub(crate) async fn unstage(&self, client: &Client) -> Answer<()> {
        self.volume.unstage(client).await
    }

    /// Unpublishes and unstages.
    pub(crate) async fn take_off(&self, client: &Client) -> Answer<()> {
        self.unpublish(client).await?;
        self.unstage(client).await
    }
}

pub(crate) async fn create(
    client: &Client,
    name: &str,
    source: &str,
    flags: &[&str],
    secrets: &BTreeMap<String, String>,
) -> Answer<v1::Volume> {
    let request = v1::CreateVolumeRequest {
        name: name.to_owned(),
        parameters: map(&[("source", source)]),
        volume_capabilities: vec![capability(flags, "")],
        secrets: secrets.clone(),
        ..Default::default()
    };
    Ok(client.call(request).await?.volume.unwrap())
}

pub(crate) async fn delete(
    client: &Client,
    volume_id: &str,
    secrets: &BTreeMap<String, String>,
) -> Answer<()> {
    let request = v1::DeleteVolumeRequest { volume_id: volume_id.to_owned(), secrets: secrets.clone() };
    client.call(request).await.map(drop)
}
