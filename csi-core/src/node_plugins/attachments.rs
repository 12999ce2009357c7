//! What is stored on the node about each staged volume, so that a call with only a volume's id can find the
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

use csi_mount::{DeviceUse, ErrorKind as MountErrorKind, Host};
use serde::{Deserialize, Serialize};

use super::Attachment;
use crate::error::{Error, IoContext, Result};
use crate::records::{Records, unreadable};
use crate::types::{PublishContext, Secrets, VolumeContext, VolumeId};

const VERSION: u32 = 1;
/// How many users of a device an error names.
const MAX_NAMED: usize = 3;

/// A volume's file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    version: u32,
    /// The boot of this node in which the device was attached.
    boot: String,
    publish_context: BTreeMap<String, String>,
    volume_context: BTreeMap<String, String>,
    /// See [`StoredAttachment::shut_down`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shut_down: Option<ShutDownDevice>,
}

/// The device of a filesystem that was shut down with [`MountCopies::ShutDown`], by its path and its numbers.
///
/// [`MountCopies::ShutDown`]: csi_mount::flow::block::MountCopies::ShutDown
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ShutDownDevice {
    path: PathBuf,
    number: String,
    sequence: Option<u64>,
}

impl ShutDownDevice {
    /// The device at this path, if anything uses it.
    pub(super) fn in_use_at(host: &Host, path: &Path) -> Result<Option<Self>> {
        let devices = host.devices();
        match devices.users(path) {
            Ok(users) if users.is_empty() => return Ok(None),
            Err(error) if error.kind() == MountErrorKind::NotFound => return Ok(None),
            users => users?,
        };
        let number = devices.number(path)?.to_string();
        let sequence = devices.disk_sequence(path)?;
        Ok(Some(Self { path: path.to_owned(), number, sequence }))
    }

    /// # Errors
    /// [`Error::InUse`] while the device is in use. The number alone is reused for other devices.
    pub(super) fn refuse_in_use(&self, host: &Host) -> Result<()> {
        if Self::in_use_at(host, &self.path)?.as_ref() != Some(self) {
            return Ok(());
        }
        let users = host.devices().users(&self.path)?;
        let users: Vec<_> = users.into_iter().take(MAX_NAMED).collect();
        Err(Error::InUse(
            format!(
                "the volume's filesystem was shut down when it was unstaged, and its device {} ({}) is still in use: \
                 {}; stop the process, or delete the pod, that has the other mount",
                self.path.display(),
                self.number,
                users.join("; ")
            )
            .into(),
        ))
    }
}

/// What is stored about a volume.
#[derive(Debug)]
pub(super) struct StoredAttachment {
    pub(super) attachment: Attachment,
    /// Whether the device was attached since the node started. Otherwise its address can belong to another
    /// volume's device now.
    pub(super) is_of_this_boot: bool,
    /// The volume was unstaged while its device stayed in use. It is not detached, and not staged again until the
    /// device is free.
    pub(super) shut_down: Option<ShutDownDevice>,
}

/// What a volume's record says.
#[derive(Debug)]
pub(super) enum Loaded {
    /// Nothing of the volume is attached.
    Nothing,
    Stored(Box<StoredAttachment>),
    /// The volume can be attached; the error names the file. The mounts of the node say what is left of it, and a
    /// stage writes the record again.
    Unreadable(Error),
}

impl Loaded {
    /// What is known about the volume, for calls that do without.
    pub(super) fn stored(self) -> Option<StoredAttachment> {
        match self {
            Self::Nothing => None,
            Self::Stored(stored) => Some(*stored),
            Self::Unreadable(error) => {
                tracing::warn!("{error}");
                None
            }
        }
    }
}

/// The records of the volumes that are attached to this node.
pub(super) struct Attachments(PathBuf);

impl Attachments {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self(directory)
    }

    /// Stores the attachment durably, in place of an earlier one.
    pub(super) fn store(&self, attachment: &Attachment) -> Result<()> {
        self.put(attachment, None)
    }

    /// As [`store`](Self::store), for a volume that is unstaged while its device stays in use.
    pub(super) fn store_shut_down(&self, attachment: &Attachment, device: ShutDownDevice) -> Result<()> {
        self.put(attachment, Some(device))
    }

    fn put(&self, attachment: &Attachment, shut_down: Option<ShutDownDevice>) -> Result<()> {
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let record = Record {
            version: VERSION,
            boot: boot()?,
            publish_context: attachment.publish_context.iter().map(owned).collect(),
            volume_context: attachment.volume_context.iter().map(owned).collect(),
            shut_down,
        };
        std::fs::create_dir_all(&self.0).at("create", &self.0)?;
        let records = self.records(File::open(&self.0))?;
        records.put(&attachment.volume_id, &record)?;
        records.remove_unfinished()
    }

    /// Returns what is stored about the volume.
    pub(super) fn load(&self, host: &Host, id: &VolumeId) -> Result<Loaded> {
        let Some(records) = self.existing()? else { return Ok(Loaded::Nothing) };
        let record = match records.get(id) {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(Loaded::Nothing),
            Err(error) => return Ok(Loaded::Unreadable(error)),
        };
        let version = record.version;
        if version != VERSION {
            let why = format!("it is of version {version}, not {VERSION}");
            let text = unreadable(&records.file_of(id)?, &why);
            return Ok(Loaded::Unreadable(Error::Internal(text.into())));
        }
        let attachment = Attachment {
            volume_id: id.clone(),
            publish_context: PublishContext::read("publish_context", &record.publish_context)?,
            volume_context: VolumeContext::read("volume_context", &record.volume_context)?,
            volume_capability: None,
            secrets: Secrets::default(),
            host: host.clone(),
        };
        let is_of_this_boot = record.boot == boot()?;
        let shut_down = record.shut_down.filter(|_| is_of_this_boot);
        Ok(Loaded::Stored(Box::new(StoredAttachment { attachment, is_of_this_boot, shut_down })))
    }

    /// Removes the volume's record. Succeeds if there is none.
    pub(super) fn remove(&self, id: &VolumeId) -> Result<()> {
        let Some(records) = self.existing()? else { return Ok(()) };
        records.remove(id)?;
        records.remove_unfinished()
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

impl StoredAttachment {
    /// Whether this says the same about the volume, and so need not be stored again.
    pub(super) fn is_current(&self, attachment: &Attachment) -> bool {
        self.is_of_this_boot
            && self.shut_down.is_none()
            && self.attachment.publish_context == attachment.publish_context
            && self.attachment.volume_context.is_of_same_volume(&attachment.volume_context)
    }
}

/// Whether anything on the node uses this device. A device that does not exist is not in use.
pub(super) fn is_in_use(host: &Host, device: &Path) -> csi_mount::Result<bool> {
    match host.devices().in_use(device) {
        Ok(found) => Ok(found == DeviceUse::InUse),
        Err(error) if error.kind() == MountErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
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
    use crate::node::NodeStageVolumeRequest;

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

    fn load(attachments: &Attachments, id: &VolumeId) -> Option<StoredAttachment> {
        attachments.load(&Host::kernel(), id).unwrap().stored()
    }

    #[test]
    fn an_attachment_is_stored_without_secrets_until_it_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("made/here");
        let attachments = Attachments::new(place.clone());
        let disk = attachment("../a/b%c", "3");
        let id = VolumeId::new("../a/b%c").unwrap();
        assert!(load(&attachments, &id).is_none(), "not even the directory exists");
        attachments.remove(&id).unwrap();
        attachments.store(&disk).unwrap();

        let file = place.join("%2E.%2Fa%2Fb%25c.json");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains("a-secret") && !text.contains("a-token"), "{text}");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let stored = load(&attachments, &id).unwrap();
        assert_eq!(stored.attachment.publish_context.require("lun").unwrap(), "3");
        assert_eq!(stored.attachment.volume_context.get("tier"), Some("fast"));
        assert!(stored.is_current(&disk) && !stored.is_current(&attachment("../a/b%c", "4")));

        attachments.store(&attachment("../a/b%c", "4")).unwrap();
        let stored = load(&attachments, &id).unwrap();
        assert_eq!(stored.attachment.publish_context.get("lun"), Some("4"), "the newer one counts");
        attachments.remove(&id).unwrap();
        assert!(load(&attachments, &id).is_none());
        let left = place.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), [".spare"], "the reserve of the records");
    }

    #[test]
    fn another_boot_and_damage_are_reported() {
        let directory = tempfile::tempdir().unwrap();
        let attachments = Attachments::new(directory.path().to_owned());
        let disk = attachment("v", "3");
        let id = VolumeId::new("v").unwrap();
        attachments.store(&disk).unwrap();
        let file = directory.path().join("v.json");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace(&boot().unwrap(), "an-earlier-boot")).unwrap();
        let stored = load(&attachments, &id).unwrap();
        assert!(!stored.is_of_this_boot && !stored.is_current(&disk));
        for damaged in ["", "{", &text.replace("\"v\"", "\"w\"")] {
            std::fs::write(&file, damaged).unwrap();
            assert!(
                matches!(attachments.load(&Host::kernel(), &id).unwrap(), Loaded::Unreadable(_)),
                "{damaged}"
            );
        }
        std::fs::write(directory.path().join(".new-1-0"), "{").unwrap();
        attachments.store(&disk).unwrap();
        assert!(load(&attachments, &id).unwrap().is_current(&disk));
        assert!(!directory.path().join(".new-1-0").exists(), "a killed process left it");
    }
}
