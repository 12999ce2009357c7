//! What is kept on the node about each staged volume, so that a call with only a volume's id can find the
//! device.
//!
//! One file per volume, in a directory of the driver: an extended attribute of the staging directory has no
//! room for two contexts, and the directory can be gone when the volume is unstaged. The file is written
//! before the device is attached and removed after it is detached, so it exists whenever there is something
//! to detach. It has no secrets, and nothing that the orchestrator added about a pod.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Attachment;
use crate::{Error, IoContext, PublishContext, Records, Result, Secrets, VolumeContext, VolumeId};

const VERSION: u32 = 1;

/// A volume's file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    version: u32,
    volume_id: String,
    /// The boot of this node in which the device was attached.
    boot: String,
    publish_context: BTreeMap<String, String>,
    volume_context: BTreeMap<String, String>,
}

/// What was kept about a volume.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) attachment: Attachment,
    /// Whether the device was attached since the node started. Otherwise its address can belong to another
    /// volume's device now.
    pub(super) is_of_this_boot: bool,
}

/// The records of the volumes that are attached to this node.
pub(super) struct Attachments(PathBuf);

impl Attachments {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self(directory)
    }

    /// Keeps the attachment on stable storage, in place of an earlier one.
    pub(super) fn keep(&self, attachment: &Attachment) -> Result<()> {
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let record = Record {
            version: VERSION,
            volume_id: attachment.volume_id.to_string(),
            boot: boot()?,
            publish_context: attachment.publish_context.iter().map(owned).collect(),
            volume_context: attachment.volume_context.iter().map(owned).collect(),
        };
        std::fs::create_dir_all(&self.0).at("create", &self.0)?;
        self.records(File::open(&self.0))?.put(&attachment.volume_id, &record)
    }

    /// Returns what was kept about the volume. A file that can't be read as a record counts as none: it
    /// would otherwise keep the volume from being unstaged for ever.
    pub(super) fn recall(&self, id: &VolumeId) -> Result<Option<Kept>> {
        let Some(records) = self.existing()? else { return Ok(None) };
        let record = match records.get(id) {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(None),
            Err(error) if is_no_record(&error) => {
                tracing::warn!("{error}");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if (record.version, record.volume_id.as_str()) != (VERSION, id.as_str()) {
            tracing::warn!("{} has the record of another volume or version for {id}", self.0.display());
            return Ok(None);
        }
        let attachment = Attachment {
            volume_id: id.clone(),
            publish_context: PublishContext::read("publish_context", &record.publish_context)?,
            volume_context: VolumeContext::read("volume_context", &record.volume_context)?,
            volume_capability: None,
            secrets: Secrets::default(),
        };
        Ok(Some(Kept { attachment, is_of_this_boot: record.boot == boot()? }))
    }

    /// Removes what was kept about the volume, if anything.
    pub(super) fn forget(&self, id: &VolumeId) -> Result<()> {
        self.existing()?.map(|records| records.remove(id)).transpose().map(drop)
    }

    /// The records; `None` before the first.
    fn existing(&self) -> Result<Option<Records<Record>>> {
        match File::open(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            directory => self.records(directory).map(Some),
        }
    }

    fn records(&self, directory: std::io::Result<File>) -> Result<Records<Record>> {
        Records::in_directory(directory.at("open", &self.0)?, &self.0)
    }
}

impl Kept {
    /// Whether this says the same about the volume, and so need not be kept again.
    pub(super) fn is_current(&self, attachment: &Attachment) -> bool {
        self.is_of_this_boot
            && self.attachment.publish_context == attachment.publish_context
            && self.attachment.volume_context.is_of_same_volume(&attachment.volume_context)
    }
}

/// Whether the file was read, and its content is not a record.
fn is_no_record(error: &Error) -> bool {
    matches!(std::error::Error::source(error), Some(cause) if cause.is::<serde_json::Error>())
}

fn boot() -> Result<String> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    Ok(std::fs::read_to_string(path).at("read", path)?.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use csi_proto::v1;

    use super::*;
    use crate::NodeStageVolumeRequest;

    fn attachment(id: &str, lun: &str) -> Attachment {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let request = v1::NodeStageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: "/staging".to_owned(),
            volume_capability: Some(v1::VolumeCapability {
                access_type: Some(v1::volume_capability::AccessType::Block(Default::default())),
                access_mode: Some(v1::volume_capability::AccessMode { mode: 1 }),
            }),
            publish_context: map(&[("lun", lun)]),
            volume_context: map(&[("tier", "fast"), ("csi.storage.k8s.io/serviceAccount.tokens", "a-token")]),
            secrets: map(&[("key", "a-secret")]),
        };
        Attachment::from(&NodeStageVolumeRequest::try_from(request).unwrap())
    }

    #[test]
    fn an_attachment_is_kept_without_secrets_until_it_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("made/here");
        let attachments = Attachments::new(place.clone());
        let (disk, id) = (attachment("../a/b%c", "3"), VolumeId::new("../a/b%c").unwrap());
        assert!(attachments.recall(&id).unwrap().is_none(), "not even the directory exists");
        attachments.forget(&id).unwrap();
        attachments.keep(&disk).unwrap();

        let file = place.join("%2E.%2Fa%2Fb%25c.json");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains("a-secret") && !text.contains("a-token"), "{text}");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let kept = attachments.recall(&id).unwrap().unwrap();
        assert_eq!(kept.attachment.publish_context.require("lun").unwrap(), "3");
        assert_eq!(kept.attachment.volume_context.get("tier"), Some("fast"));
        assert!(kept.is_current(&disk) && !kept.is_current(&attachment("../a/b%c", "4")));

        attachments.keep(&attachment("../a/b%c", "4")).unwrap();
        let kept = attachments.recall(&id).unwrap().unwrap();
        assert_eq!(kept.attachment.publish_context.get("lun"), Some("4"), "the newer one counts");
        attachments.forget(&id).unwrap();
        assert!(attachments.recall(&id).unwrap().is_none());
        assert_eq!(place.read_dir().unwrap().count(), 0);
    }

    #[test]
    fn another_boot_is_told_and_damage_is_no_record() {
        let directory = tempfile::tempdir().unwrap();
        let attachments = Attachments::new(directory.path().to_owned());
        let (disk, id) = (attachment("v", "3"), VolumeId::new("v").unwrap());
        attachments.keep(&disk).unwrap();
        let file = directory.path().join("v.json");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace(&boot().unwrap(), "an-earlier-boot")).unwrap();
        let kept = attachments.recall(&id).unwrap().unwrap();
        assert!(!kept.is_of_this_boot && !kept.is_current(&disk));
        for damaged in ["", "{", &text.replace("\"v\"", "\"w\"")] {
            std::fs::write(&file, damaged).unwrap();
            assert!(attachments.recall(&id).unwrap().is_none(), "{damaged}");
        }
        attachments.keep(&disk).unwrap();
        assert!(attachments.recall(&id).unwrap().unwrap().is_current(&disk));
    }
}
