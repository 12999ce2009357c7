//! What is attached on this node: one file for each attachment, and a lock for each target.
//!
//! A record is written before anything is connected, and removed after everything is disconnected. So a
//! process that is killed at any moment leaves a record of whatever it left. The record says which portals
//! the attachment connects; whether they are connected is asked of the kernel. A record of an earlier boot
//! says nothing about this one. Keys are not in it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::disk::Disk;
use super::iscsi::decide::IscsiUnit;
use super::nvme::target::NvmeDisk;
use super::rbd::target::RbdDisk;
use super::scsi::LogicalUnit;
use super::{nvme, rbd, scsi};
use crate::sys::{file_lock, fnv};
use crate::{DeviceNumber, Error, ErrorKind, Result};

const FIRST_LINE: &str = "csi-mount remote disk, version 1";
const SUFFIX: &str = ".disk";
const NEW: &str = ".new-";
/// Longer than a disconnect can take.
const LOCK_LIMIT: Duration = Duration::from_secs(90);

/// An attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) boot: String,
    pub(super) disk: Disk,
    pub(super) portals: Vec<Portal>,
    /// The kernel's name for the disk, by which its multipath map is found. None until it was attached, after its
    /// last flush, and where it has no such name.
    pub(super) wwid: Option<String>,
    /// Why a detach that failed afterwards could not flush the disk. The kernel reports this once only: the
    /// next flush succeeds.
    pub(super) not_flushed: Option<String>,
    /// The names of the TLS keys that attachments of the target put into the kernel's keyring.
    pub(super) tls_keys: Vec<String>,
}

/// The disk of an attachment: all transports of SCSI have common steps.
pub(super) enum Kind<'r> {
    Nvme(&'r NvmeDisk),
    Scsi(Box<dyn LogicalUnit + 'r>),
    Rbd(&'r RbdDisk),
}

/// An address of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Portal {
    pub(super) address: SocketAddr,
    /// Whether an attachment of this directory connects it.
    pub(super) is_own: bool,
}

impl Record {
    /// The number of the disk, usable or not.
    pub(super) fn number(&self, sys: &Path) -> Result<Option<DeviceNumber>> {
        match self.kind() {
            Kind::Nvme(disk) => nvme::maps::number(sys, disk, self.wwid.as_deref()),
            Kind::Scsi(unit) => scsi::maps::number(sys, &*unit, self.wwid.as_deref()),
            Kind::Rbd(disk) => rbd::decide::number(sys, disk),
        }
    }

    /// Its disk, as the steps that transports share know it.
    pub(super) fn kind(&self) -> Kind<'_> {
        match &self.disk {
            Disk::Nvme(disk) => Kind::Nvme(disk),
            Disk::Iscsi(disk) => Kind::Scsi(Box::new(IscsiUnit { disk, portals: &self.portals })),
            Disk::Fc(disk) => Kind::Scsi(Box::new(disk.clone())),
            Disk::Rbd(disk) => Kind::Rbd(disk),
        }
    }

    fn to_text(&self) -> String {
        let Self { boot, disk, portals, wwid, not_flushed, tls_keys } = self;
        let mut text = format!("{FIRST_LINE}\nboot={boot}\n{}", disk.to_text());
        for Portal { address, is_own } in portals {
            text.push_str(&format!("portal={address} {}\n", if *is_own { "own" } else { "shared" }));
        }
        let wwid = wwid.iter().map(|value| ("wwid", value));
        let not_flushed = not_flushed.iter().map(|value| ("not_flushed", value));
        let tls_keys = tls_keys.iter().map(|value| ("tls_key", value));
        for (key, value) in wwid.chain(not_flushed).chain(tls_keys) {
            text.push_str(&format!("{key}={}\n", value.replace('\n', " ")));
        }
        text.push_str("end\n");
        text
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_prefix(FIRST_LINE)?.strip_prefix('\n')?.strip_suffix("\nend\n")?.lines();
        let boot = lines.next()?.strip_prefix("boot=")?.to_owned();
        let disk = Disk::parse(&mut lines)?;
        let portal = |value: &str| {
            let (address, kind) = value.split_once(' ')?;
            Some(Portal { address: address.parse().ok()?, is_own: kind == "own" })
        };
        let mut record =
            Self { boot, disk, portals: Vec::new(), wwid: None, not_flushed: None, tls_keys: Vec::new() };
        for line in lines {
            match line.split_once('=')? {
                ("portal", value) => record.portals.push(portal(value)?),
                ("wwid", value) => record.wwid = Some(value.to_owned()),
                ("not_flushed", value) => record.not_flushed = Some(value.to_owned()),
                ("tls_key", value) => record.tls_keys.push(value.to_owned()),
                _ => return None,
            }
        }
        Some(record)
    }
}

/// The records of one directory.
#[derive(Debug, Clone)]
pub(super) struct Records(PathBuf);

/// The records of a directory.
#[derive(Default)]
pub(super) struct Recorded {
    /// Those of this boot, with their names.
    pub(super) all: Vec<(String, Record)>,
    /// Why others can't be read: such a record could be of any target.
    pub(super) unreadable: Vec<Error>,
}

/// The lock of a target, until it is dropped.
pub(super) struct Lock(#[allow(dead_code, reason = "it is held")] File);

impl Records {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self(directory)
    }

    /// Locks a target, by its name, against attachments and detachments by other threads and processes.
    pub(super) fn lock(&self, target: &str) -> Result<Lock> {
        const LOCK: &str = "lock the attachments of a target with";
        fs::create_dir_all(&self.0).map_err(|error| Error::os("create", &self.0, error))?;
        let path = self.0.join(format!(".lock-{:016x}", fnv::fnv1a(target.as_bytes())));
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        let file = file.map_err(|error| Error::os(LOCK, &path, error))?;
        match file_lock::take_within(&file, LOCK_LIMIT) {
            Ok(()) => Ok(Lock(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let reason = format!("another process attaches or detaches there for {LOCK_LIMIT:?}");
                Err(Error::new(ErrorKind::Unresponsive, LOCK, reason).at(path))
            }
            Err(error) => Err(Error::os(LOCK, path, error)),
        }
    }

    /// The record with this name, of this boot or an earlier one.
    pub(super) fn get(&self, name: &str) -> Result<Option<Record>> {
        read(&self.path(name)?)
    }

    /// The records of this boot.
    pub(super) fn list(&self) -> Result<Recorded> {
        let boot = boot()?;
        let failed = |error: io::Error| Error::os("list the attachments in", &self.0, error);
        let mut found = Recorded::default();
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            let file = path.file_name().and_then(|file| file.to_str()?.strip_suffix(SUFFIX));
            let Some(name) = file.filter(|file| !file.starts_with('.')).and_then(name_of) else { continue };
            match read(&path) {
                Ok(Some(record)) if record.boot == boot => found.all.push((name, record)),
                Ok(_) => {}
                Err(error) => found.unreadable.push(error),
            }
        }
        Ok(found)
    }

    /// Writes a record durably: a process that is killed leaves the old one or the new one.
    pub(super) fn put(&self, name: &str, record: &Record) -> Result<()> {
        let path = self.path(name)?;
        let new = self.0.join(format!("{NEW}{}", file_name(name)?));
        let write = || {
            let mut file =
                OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(record.to_text().as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.0)?.sync_all()
        };
        write().map_err(|error| Error::os("write the record of an attachment", &path, error))
    }

    /// Removes a record, and what a killed process left of one. None is a success.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name)?;
        let new = self.0.join(format!("{NEW}{}", file_name(name)?));
        let existed = |path: &Path| match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            removed => removed.map(|()| true),
        };
        let remove = || match existed(&new)? | existed(&path)? {
            true => File::open(&self.0)?.sync_all(),
            false => Ok(()),
        };
        remove().map_err(|error| Error::os("remove the record of an attachment", &path, error))
    }

    fn path(&self, name: &str) -> Result<PathBuf> {
        Ok(self.0.join(format!("{}{SUFFIX}", file_name(name)?)))
    }
}

/// This boot of the node.
pub(super) fn boot() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let boot = fs::read_to_string(path).map_err(|error| Error::os("read", path, error))?;
    Ok(boot.trim_end().to_owned())
}

/// A name as the name of a file: `%` and what a file name cannot contain are percent-encoded.
fn file_name(name: &str) -> Result<String> {
    const MAX: usize = 240;
    let mut encoded = String::new();
    for (index, letter) in name.chars().enumerate() {
        if letter == '/' || letter == '%' || letter.is_control() || (index == 0 && letter == '.') {
            letter
                .encode_utf8(&mut [0; 4])
                .bytes()
                .for_each(|byte| encoded.push_str(&format!("%{byte:02X}")));
        } else {
            encoded.push(letter);
        }
    }
    if encoded.is_empty() || encoded.len() > MAX {
        let reason = format!("the name {name:?} is empty, or too long for a file");
        return Err(Error::new(ErrorKind::InvalidInput, "record an attachment", reason));
    }
    Ok(encoded)
}

/// The name whose file this is.
fn name_of(file: &str) -> Option<String> {
    let mut parts = file.split('%');
    let mut name = parts.next()?.as_bytes().to_vec();
    for part in parts {
        name.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        name.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(name).ok()
}

fn read(path: &Path) -> Result<Option<Record>> {
    const READ: &str = "read the record of an attachment";
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| Error::os(READ, path, error))?,
    };
    let damaged = || Error::new(ErrorKind::Damaged, READ, "it is not a record of this version").at(path);
    Record::parse(&text).map(Some).ok_or_else(damaged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::iscsi::target::IscsiDisk;
    use crate::remote::nvme::target::Transport;
    use crate::remote::{LunId, NamespaceId};

    fn record() -> Record {
        let portal = |text: &str, is_own| Portal { address: text.parse().unwrap(), is_own };
        Record {
            boot: boot().unwrap(),
            disk: Disk::Nvme(NvmeDisk {
                transport: Transport::Tcp,
                nqn: "nqn.s".to_owned(),
                host_nqn: "nqn.h".to_owned(),
                namespace: NamespaceId::eui64("0123456789abcdef").unwrap(),
            }),
            portals: vec![portal("10.0.0.1:4420", true), portal("[fd00::1]:4420", false)],
            wwid: None,
            not_flushed: None,
            tls_keys: Vec::new(),
        }
    }

    #[test]
    fn a_record_is_kept_until_it_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::new(directory.path().join("made/here"));
        assert!(records.list().unwrap().all.is_empty() && records.get("a").unwrap().is_none());
        let lock = records.lock("nqn.s").unwrap();
        for name in ["../a/b%c\n", ".new-x", "pvc-1"] {
            records.put(name, &record()).unwrap();
            assert_eq!(records.get(name).unwrap(), Some(record()), "{name}");
        }
        for interface in [None, Some("eth1".to_owned())] {
            let id = LunId::serial("a b=c").unwrap();
            let disk = Disk::Iscsi(IscsiDisk { iqn: "iqn.s".to_owned(), interface, lun: 3, id });
            let record = Record { disk, ..record() };
            records.put("iscsi", &record).unwrap();
            assert_eq!(records.get("iscsi").unwrap(), Some(record));
        }
        records.remove("iscsi").unwrap();
        let not_flushed = Some("flush /dev/sda: Input/output error".to_owned());
        let tls_keys = ["NVMe1R01 nqn.h nqn.s a+/=", "NVMe1R02 nqn.h nqn.s b"].map(str::to_owned).to_vec();
        let with_map = Record { wwid: Some("uuid.9f1b".to_owned()), not_flushed, tls_keys, ..record() };
        records.put("map", &with_map).unwrap();
        assert_eq!(records.get("map").unwrap(), Some(with_map));
        records.remove("map").unwrap();
        // A process that was killed leaves a file that is no record yet.
        fs::write(records.0.join(".new-killed"), "csi-mount").unwrap();
        records.remove("killed").unwrap();
        let earlier = Record { boot: "earlier".to_owned(), ..record() };
        records.put("old", &earlier).unwrap();
        assert_eq!(records.get("old").unwrap(), Some(earlier));
        let mut names: Vec<_> = records.list().unwrap().all.into_iter().map(|(name, _)| name).collect();
        names.sort();
        assert_eq!(names, ["../a/b%c\n", ".new-x", "pvc-1"], "only this boot's");
        for name in ["../a/b%c\n", ".new-x", "pvc-1", "old", "never"] {
            records.remove(name).unwrap();
        }
        drop(lock);
        let left: Vec<_> =
            fs::read_dir(&records.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 1, "only the lock: {left:?}");
        for name in ["", &"/".repeat(100)] {
            assert!(records.put(name, &record()).is_err(), "{name}");
        }
    }

    #[test]
    fn what_is_no_whole_record_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::new(directory.path().to_owned());
        let text = record().to_text();
        for damaged in ["", &text[..text.len() - 4], &text.replace("version 1", "version 2"), "{}"] {
            fs::write(directory.path().join("v.disk"), damaged).unwrap();
            assert_eq!(records.get("v").unwrap_err().kind(), ErrorKind::Damaged, "{damaged}");
            assert_eq!(records.list().unwrap().unreadable[0].kind(), ErrorKind::Damaged, "{damaged}");
        }
    }
}
