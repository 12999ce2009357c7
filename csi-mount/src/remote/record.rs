//! What is attached on this node: one file for each attachment, and a lock for each target.
//!
//! A record is written before anything is connected, and removed after everything is disconnected. So a
//! process that is killed at any moment leaves a record of whatever it left. The record says which portals
//! the attachment connects; whether they are connected is asked of the kernel. A record of an earlier boot
//! says nothing about this one. Keys are not in it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::disk::Disk;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::descriptor::Locked;
use crate::sys::durable;
use crate::sys::hash::fnv1a;

const FIRST_LINE: &str = "csi-mount remote disk, version 1";
const SUFFIX: &str = ".disk";
const NEW: &str = ".new-";
/// No record is as long. What is cut off here is not read as one.
const MAX_BYTES: u64 = 1 << 20;
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

/// An address of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Portal {
    pub(super) address: SocketAddr,
    /// Whether an attachment of this directory connects it.
    pub(super) is_own: bool,
}

impl Record {
    /// A record before anything is connected.
    pub(super) fn new(boot: String, disk: Disk, portals: Vec<Portal>) -> Self {
        Self { boot, disk, portals, wwid: None, not_flushed: None, tls_keys: Vec::new() }
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
        let mut record = Self::new(boot, disk, Vec::new());
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
pub(super) struct Lock(#[allow(dead_code, reason = "it is held")] Locked<File>);

impl Records {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self(directory)
    }

    /// Locks a target, by its name, against attachments and detachments by other threads and processes.
    pub(super) fn lock(&self, target: &str) -> Result<Lock> {
        const LOCK: &str = "lock the attachments of a target with";
        fs::create_dir_all(&self.0).map_err(|error| Error::os("create", &self.0, error))?;
        let path = self.0.join(format!(".lock-{:016x}", fnv1a(target.as_bytes())));
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        let file = file.map_err(|error| Error::os(LOCK, &path, error))?;
        match Locked::within(file, LOCK_LIMIT) {
            Ok(file) => Ok(Lock(file)),
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
        durable::write(&path, &new, record.to_text().as_bytes()).map_err(|error| {
            // On a full disk, the unfinished file would keep space that is needed.
            let _ = fs::remove_file(&new);
            Error::os("write the record of an attachment", &path, error)
        })
    }

    /// Removes a record and the unfinished file of a killed process. Succeeds if neither exists.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name)?;
        let new = self.0.join(format!("{NEW}{}", file_name(name)?));
        let existed = |path: &Path| match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            removed => removed.map(|()| true),
        };
        let remove = || {
            let has_changed = existed(&new)? | existed(&path)?;
            if has_changed { File::open(&self.0)?.sync_all() } else { Ok(()) }
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

const READ: &str = "read the record of an attachment";

fn damaged(path: &Path) -> Error {
    Error::new(ErrorKind::Damaged, READ, "it is not a record of this version").at(path).hint(
        "unmount the volume, disconnect its disk by hand (nvme disconnect, iscsiadm --logout, rbd unmap), and remove \
         the file",
    )
}

/// Reads a file of limited size, and nothing else: a pipe or a device at its place has no end.
fn read(path: &Path) -> Result<Option<Record>> {
    let failed = |error: io::Error| Error::os(READ, path, error);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP | Errno::NXIO) => return Err(damaged(path)),
        file => File::from(file.map_err(|error| failed(error.into()))?),
    };
    let mut text = Vec::new();
    if file.metadata().map_err(failed)?.is_file() {
        file.take(MAX_BYTES).read_to_end(&mut text).map_err(failed)?;
    }
    let record = std::str::from_utf8(&text).ok().and_then(Record::parse);
    record.map(Some).ok_or_else(|| damaged(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::iscsi::target::IscsiDisk;
    use crate::remote::nvme::target::{NvmeDisk, Transport};
    use crate::remote::{FcTarget, LunId, NamespaceId, RbdPool, RbdTarget};

    fn nvme(transport: Transport) -> NvmeDisk {
        NvmeDisk {
            transport,
            nqn: "nqn.s".to_owned(),
            host_nqn: "nqn.h".to_owned(),
            namespace: NamespaceId::eui64("0123456789abcdef").unwrap(),
        }
    }

    fn record() -> Record {
        let portal = |text: &str, is_own| Portal { address: text.parse().unwrap(), is_own };
        let portals = vec![portal("10.0.0.1:4420", true), portal("[fd00::1]:4420", false)];
        Record::new(boot().unwrap(), Disk::Nvme(nvme(Transport::Tcp)), portals)
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

    /// A driver of another version reads it.
    #[test]
    fn the_text_of_each_transport_stays() {
        let id = LunId::wwid("naa.6001405").unwrap();
        let port = "500601603b20419a".parse().unwrap();
        let bound = FcTarget::new(3, "naa.6001405").unwrap().port(port).initiator(port);
        let two = bound.clone().port("500601613b20419a".parse().unwrap());
        let pool = RbdPool::new("b2f9a0a4-5b1d-4a4b-8a5c-0d7e64ba9c7b", "volumes", 3).unwrap();
        let image = RbdTarget::new(pool.namespace("n").unwrap(), "csi-pvc", "10a3").unwrap();
        let iscsi = |interface: Option<&str>, id| IscsiDisk {
            iqn: "iqn.s".to_owned(),
            interface: interface.map(str::to_owned),
            lun: 3,
            id,
        };
        let nvme_lines = "hostnqn=nqn.h\nnamespace=eui64:0123456789abcdef\n";
        for (disk, lines) in [
            (Disk::Nvme(nvme(Transport::Tcp)), format!("nqn=nqn.s\n{nvme_lines}")),
            (Disk::Nvme(nvme(Transport::Rdma)), format!("rdma=nqn.s\n{nvme_lines}")),
            (
                Disk::Iscsi(iscsi(Some("eth1"), id)),
                "iqn=iqn.s\ninterface=eth1\nlun=3\nid=wwid:naa.6001405\n".to_owned(),
            ),
            (
                Disk::Iscsi(iscsi(None, LunId::serial("a b=c").unwrap())),
                "iqn=iqn.s\ninterface=\nlun=3\nid=serial:a b=c\n".to_owned(),
            ),
            (
                Disk::Fc(two.disk),
                "fc=0x500601603b20419a,0x500601613b20419a\ninitiators=0x500601603b20419a\nlun=3\n\
                 id=wwid:6001405\n"
                    .to_owned(),
            ),
            (
                Disk::Rbd(image.disk),
                "rbd=b2f9a0a4-5b1d-4a4b-8a5c-0d7e64ba9c7b\npool=3 volumes\nnamespace=n\nimage=10a3 csi-pvc\n"
                    .to_owned(),
            ),
        ] {
            let whole = Record {
                boot: "b".to_owned(),
                disk,
                wwid: Some("uuid.9f1b".to_owned()),
                not_flushed: Some("flush /dev/sda: Input/output\nerror".to_owned()),
                tls_keys: vec!["NVMe1R01 nqn.h nqn.s a+/=".to_owned()],
                ..record()
            };
            let text = format!(
                "csi-mount remote disk, version 1\nboot=b\n{lines}portal=10.0.0.1:4420 own\n\
                 portal=[fd00::1]:4420 shared\nwwid=uuid.9f1b\nnot_flushed=flush /dev/sda: Input/output error\n\
                 tls_key=NVMe1R01 nqn.h nqn.s a+/=\nend\n"
            );
            assert_eq!(whole.to_text(), text);
            let not_flushed = Some("flush /dev/sda: Input/output error".to_owned());
            assert_eq!(Record::parse(&text), Some(Record { not_flushed, ..whole }));
        }
    }

    #[test]
    fn what_is_no_whole_record_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::new(directory.path().to_owned());
        let text = record().to_text();
        let cut = &text[..text.len() - 4];
        let older = text.replace("version 1", "version 2");
        for damaged in ["".as_bytes(), cut.as_bytes(), older.as_bytes(), b"{}", b"\xff\x00"] {
            fs::write(directory.path().join("v.disk"), damaged).unwrap();
            let error = records.get("v").unwrap_err();
            assert!(
                error.kind() == ErrorKind::Damaged && error.to_string().contains("remove the file"),
                "{error}"
            );
            assert_eq!(records.list().unwrap().unreadable[0].kind(), ErrorKind::Damaged, "{damaged:?}");
        }
    }

    /// A pipe was waited for without end, and the file of zeros was read until the memory was full.
    #[test]
    fn what_is_no_file_of_a_record_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::new(directory.path().to_owned());
        let path = directory.path().join("v.disk");
        let made: [(&str, &dyn Fn()); 5] = [
            ("pipe", &|| nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRUSR).unwrap()),
            ("link", &|| std::os::unix::fs::symlink("/dev/zero", &path).unwrap()),
            ("socket", &|| drop(std::os::unix::net::UnixListener::bind(&path).unwrap())),
            ("large", &|| {
                fs::write(&path, record().to_text()).unwrap();
                OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
            }),
            ("directory", &|| fs::create_dir(&path).unwrap()),
        ];
        for (what, make) in made {
            make();
            let error = records.get("v").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged, "{what}: {error}");
            assert_eq!(records.list().unwrap().unreadable.len(), 1, "{what}");
            let _ = fs::remove_file(&path);
        }
    }
}
