//! The calls of the cloud's API that the controller makes: put your API's in place of them. Each call blocks its
//! thread.
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use csi_core::types::NodeId;
use csi_core::{Error, Reason, Result, VolumeId, prelude::IoContext as _};
use serde_json::{Value, json};

/// The time that a call can take.
const LIMIT: Duration = Duration::from_secs(30);

/// A disk, as the API describes it.
#[derive(serde::Deserialize)]
pub struct Disk {
    pub bytes: u64,
    /// The serial number that the kernel of a machine sees. A virtio disk keeps 20 bytes of it.
    pub serial: String,
    /// Whether anything was ever written to the disk.
    pub written: bool,
    /// The machine that the disk is attached to.
    pub machine: Option<String>,
}

pub struct Cloud {
    url: String,
    token_file: PathBuf,
    client: ureq::Agent,
}

impl Cloud {
    pub fn new(url: String, token_file: PathBuf) -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(LIMIT)).http_status_as_error(false);
        Self { url, token_file, client: config.build().into() }
    }

    /// Creates the disk; one that exists stays as it is.
    pub fn create(&self, id: &VolumeId, bytes: u64) -> Result<Disk> {
        self.post("create", json!({ "disk": id.as_str(), "bytes": bytes }), |status| match status {
            507 => Some(Error::LimitReached("the cloud has no room for the disk".into())),
            _ => None,
        })
    }

    pub fn disk(&self, id: &VolumeId) -> Result<Disk> {
        self.post("get", json!({ "disk": id.as_str() }), |status| missing(status, id))
    }

    pub fn delete(&self, id: &VolumeId) -> Result<Disk> {
        self.post("delete", json!({ "disk": id.as_str() }), |status| match status {
            409 => Some(Error::InUse("the disk is attached to a machine".into())),
            _ => missing(status, id),
        })
    }
{% if expand %}

    pub fn grow(&self, id: &VolumeId, bytes: u64) -> Result<Disk> {
        self.post("grow", json!({ "disk": id.as_str(), "bytes": bytes }), |status| missing(status, id))
    }
{% endif %}

    pub fn attach(&self, id: &VolumeId, machine: &NodeId) -> Result<Disk> {
        let request = json!({ "disk": id.as_str(), "machine": machine.as_str() });
        self.post("attach", request, |status| match status {
            404 => Some(Error::NodeNotFound(machine.clone())),
            422 => Some(Error::LimitReached(format!("machine {machine} takes no more disks").into())),
            _ => None,
        })
    }

    /// Detaches the disk, and answers when the machine no longer has it.
    pub fn detach(&self, id: &VolumeId) -> Result<Disk> {
        self.post("detach", json!({ "disk": id.as_str() }), |status| missing(status, id))
    }

    /// Calls the API. `refused` is what a status means for this call.
    fn post(&self, action: &str, request: Value, refused: impl FnOnce(u16) -> Option<Error>) -> Result<Disk> {
        // For each call, because the token can be replaced while the driver runs.
        let token = fs::read_to_string(&self.token_file).at("read", &self.token_file)?;
        let url = format!("{}/disks/{action}", self.url);
        // The cloud might still do what it did not answer: the caller repeats the call.
        let unknown =
            |error: ureq::Error| Error::OutcomeUnknown(Reason::because(format!("{url}: {error}"), error));
        let bearer = format!("Bearer {}", token.trim());
        let mut answer =
            self.client.post(&url).header("Authorization", bearer).send_json(&request).map_err(unknown)?;
        let status = answer.status().as_u16();
        if status == 200 {
            return answer.body_mut().read_json().map_err(unknown);
        }
        Err(refused(status).unwrap_or_else(|| match status {
            401 | 403 => {
                Error::Unhealthy(format!("{url} refuses the token in {}", self.token_file.display()).into())
            }
            _ => Error::OutcomeUnknown(format!("{url} answers with status {status}").into()),
        }))
    }
}

fn missing(status: u16, id: &VolumeId) -> Option<Error> {
    (status == 404).then(|| Error::VolumeNotFound(id.clone()))
}
