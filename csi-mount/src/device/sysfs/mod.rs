//! What the kernel itself reports about a disk, below `/sys`: links in `/dev` can be stale, this can't.

mod connection;
mod mapper;
mod overlap;
#[cfg(feature = "lvm")]
mod stack;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) use self::mapper::Mapped;
#[cfg(feature = "remote")]
pub(crate) use self::mapper::MultipathMap;
pub(crate) use self::overlap::Overlap;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::ids::DeviceNumber;

const ASK: &str = "read the identity of a disk in";
const RESCAN: &str = "request a rescan of the size through";

/// The identity that a disk reports: see `BlockDevice::identity`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceIdentity {
    /// The serial number: of virtio (its first 20 bytes), NVMe and SCSI (VPD page 80); for a multipath
    /// device that of its paths.
    pub serial: Option<String>,
    /// The world-wide name, as the kernel writes it: `naa.…`, `eui.…`, `uuid.…`, or a device mapper UUID.
    /// The UUID of a multipath device is `mpath-` followed by the name of its paths. An image of a Ceph cluster
    /// has none, and gets one of its ids: `rbd.FSID.POOL.IMAGE`, with `@SNAPSHOT` for a snapshot.
    pub wwn: Option<String>,
    /// The NGUID of an NVMe namespace, as 32 hexadecimal digits; for a multipath device that of its paths.
    pub nguid: Option<String>,
    /// The EUI-64 of an NVMe namespace, as 16 hexadecimal digits; for a multipath device that of its paths.
    pub eui64: Option<String>,
    /// The logical unit number of a SCSI disk; for a multipath device that of its paths, if they have one.
    pub lun: Option<u64>,
    /// The way from the node to the disk, as the name of its link in `/dev/disk/by-path`; see
    /// [`ExpectedDevice::by_path`](crate::ExpectedDevice::by_path).
    pub by_path: Option<String>,
    /// Whether its driver keeps only the start of a serial number.
    pub(crate) may_be_cut: bool,
}

impl DeviceIdentity {
    /// Whether the serial number is this one. A virtio disk keeps only 20 bytes, so only these are
    /// compared.
    pub(crate) fn has_serial(&self, wanted: &str) -> bool {
        const VIRTIO_KEEPS: usize = 20;
        self.serial.as_deref().is_some_and(|found| {
            let is_cut = self.may_be_cut && found.len() == VIRTIO_KEEPS;
            found == wanted || (is_cut && wanted.starts_with(found))
        })
    }

    /// Whether the way to the disk is this one. Older versions of udev call virtio's `virtio-pci-…`.
    pub(crate) fn has_by_path(&self, wanted: &str) -> bool {
        let wanted = wanted.trim_start_matches("/dev/disk/by-path/");
        let wanted = wanted.strip_prefix("virtio-").unwrap_or(wanted);
        self.by_path.as_deref() == Some(wanted)
    }

    /// Whether the world-wide name is this one, in any notation: `wwn-0x5000…`, `naa.5000…`, `35000…`.
    pub(crate) fn has_wwn(&self, wanted: &str) -> bool {
        self.wwn.as_deref().is_some_and(|found| bare_wwn(found) == bare_wwn(wanted))
    }
}

/// Whether both are the same world-wide name, in any notation.
#[cfg(feature = "remote")]
pub(crate) fn is_same_wwn(one: &str, other: &str) -> bool {
    bare_wwn(one) == bare_wwn(other)
}

/// Whether both have the same hexadecimal digits, whatever separates them.
pub(crate) fn is_same_hex(one: &str, other: &str) -> bool {
    hex_digits(one) == hex_digits(other)
}

pub(crate) fn hex_digits(text: &str) -> String {
    let text = text.trim();
    let text = ["nvme-", "eui.", "0x"]
        .into_iter()
        .fold(text, |text, prefix| text.strip_prefix(prefix).unwrap_or(text));
    text.chars().filter(char::is_ascii_hexdigit).map(|digit| digit.to_ascii_lowercase()).collect()
}

pub(crate) fn bare_wwn(name: &str) -> String {
    let mut name = name.trim().to_ascii_lowercase();
    for prefix in ["dm-uuid-", "mpath-", "nvme-", "scsi-", "wwn-", "naa.", "eui.", "uuid.", "t10.", "0x"] {
        if let Some(rest) = name.strip_prefix(prefix) {
            name = rest.to_owned();
        }
    }
    // The notation of multipath and by-id links: 8 or 16 bytes, after a digit for their kind.
    let is_of_kind = [17, 33].contains(&name.len()) && name.starts_with(['2', '3']);
    if is_of_kind && name.bytes().all(|digit| digit.is_ascii_hexdigit()) { name.split_off(1) } else { name }
}

/// Whether a disk was asked for its size again: see [`Devices::rescan`](crate::Devices::rescan).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rescan {
    /// The disk was asked.
    Requested,
    /// Its driver reports a new size to the kernel by itself, as virtio does.
    NotNeeded,
}

/// The sysfs tree; tests have their own.
#[derive(Debug)]
pub(crate) struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    pub(crate) fn system() -> Self {
        Self { root: PathBuf::from("/sys") }
    }

    #[cfg(any(test, feature = "testing", feature = "remote"))]
    pub(crate) fn below(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn device(&self, number: DeviceNumber) -> PathBuf {
        self.root.join(format!("dev/block/{number}"))
    }

    /// The kernel's name of a device: `sda`. None if it is gone.
    pub(crate) fn name(&self, number: DeviceNumber) -> Option<String> {
        Some(fs::canonicalize(self.device(number)).ok()?.file_name()?.to_str()?.to_owned())
    }

    /// The directory of a disk; for a partition that of the whole disk.
    fn disk(&self, number: DeviceNumber) -> Result<PathBuf> {
        let device = self.device(number);
        let directory = fs::canonicalize(&device).map_err(|error| Error::os(ASK, &device, error))?;
        match directory.parent() {
            Some(disk) if directory.join("partition").exists() => Ok(disk.to_owned()),
            _ => Ok(directory),
        }
    }

    pub(crate) fn identity(&self, number: DeviceNumber) -> Result<DeviceIdentity> {
        Ok(identity_in(&self.disk(number)?))
    }

    /// Every whole disk with the identity that it reports. A disk with several paths is listed as the
    /// multipath device, once that exists, and not as its paths.
    pub(crate) fn disks(&self) -> Result<Vec<(DeviceNumber, DeviceIdentity)>> {
        let block = self.root.join("block");
        let failed = |error: io::Error| Error::os("list the disks in", &block, error);
        let mut disks = Vec::new();
        for entry in fs::read_dir(&block).map_err(failed)? {
            let directory = entry.map_err(failed)?.path();
            let holders = names(&directory.join("holders")).unwrap_or_default();
            let is_path = holders.iter().any(|holder| multipath(&block.join(holder)).is_some());
            // A disk that goes away in the meantime is left out.
            let number = text(&directory.join("dev")).and_then(|text| DeviceNumber::parse(&text));
            if let Some(number) = number.filter(|_| !is_path) {
                disks.push((number, identity_in(&directory)));
            }
        }
        Ok(disks)
    }

    /// In bytes.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn size(&self, number: DeviceNumber) -> u64 {
        text(&self.device(number).join("size")).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) * 512
    }

    /// The devices of every mounted btrfs, in any mount namespace.
    pub(crate) fn mounted_btrfs_devices(&self) -> Vec<(String, DeviceNumber)> {
        let all = self.root.join("fs/btrfs");
        let filesystems = names(&all).unwrap_or_default().into_iter();
        let devices = filesystems.flat_map(|one| {
            let devices = all.join(one).join("devices");
            let named = names(&devices).unwrap_or_default().into_iter();
            named.filter_map(move |name| {
                let number = DeviceNumber::parse(&text(&devices.join(&name).join("dev"))?)?;
                Some((name, number))
            })
        });
        devices.collect()
    }

    /// The devices of every mounted filesystem of a type that has one device, in any mount namespace. For
    /// ext4 and xfs: the types that list their mounts.
    pub(crate) fn mounted_devices(&self, fs_type: &str) -> Vec<(String, DeviceNumber)> {
        let mounted = names(&self.root.join("fs").join(fs_type)).unwrap_or_default().into_iter();
        let devices = mounted.filter_map(|name| {
            let number = DeviceNumber::parse(&text(&self.root.join("class/block").join(&name).join("dev"))?)?;
            Some((name, number))
        });
        devices.collect()
    }

    /// The names of the devices that are built on this one: LVM, multipath, RAID.
    pub(crate) fn holders(&self, number: DeviceNumber) -> Result<Vec<String>> {
        names(&self.device(number).join("holders"))
    }

    pub(crate) fn rescan(&self, number: DeviceNumber) -> Result<Rescan> {
        self.rescan_in(&self.disk(number)?)
    }

    fn rescan_in(&self, disk: &Path) -> Result<Rescan> {
        // Multipath: each path separately.
        let paths = names(&disk.join("slaves")).unwrap_or_default();
        let mut all = Rescan::NotNeeded;
        for path in paths {
            if self.rescan_in(&self.root.join("block").join(path))? == Rescan::Requested {
                all = Rescan::Requested;
            }
        }
        let device = disk.join("device");
        // The kernel would give a path that takes no commands now (ALUA) the size 0, and keep it.
        let takes_commands = |state: &str| state.starts_with("active/") || state == "lba-dependent";
        if let Some(state) = text(&device.join("access_state")).filter(|state| !takes_commands(state)) {
            let reason = format!("the path takes no commands now: its access state is {state}");
            return Err(Error::new(ErrorKind::Unresponsive, RESCAN, reason).at(device));
        }
        let controllers =
            names(&device).unwrap_or_default().into_iter().filter(|name| name.starts_with("nvme"));
        let switches = [device.join("rescan"), device.join("rescan_controller")]
            .into_iter()
            .chain(controllers.map(|name| device.join(name).join("rescan_controller")));
        for switch in switches.filter(|switch| switch.exists()) {
            fs::write(&switch, "1").map_err(|error| Error::os(RESCAN, &switch, error))?;
            all = Rescan::Requested;
        }
        Ok(all)
    }
}

fn identity_in(disk: &Path) -> DeviceIdentity {
    let first = |places: &[&str]| places.iter().find_map(|place| text(&disk.join(place)));
    // virtio's is an attribute of the disk itself, the others are attributes of its device.
    let virtio = first(&["serial"]);
    let may_be_cut = virtio.is_some();
    let serial =
        virtio.or_else(|| first(&["device/serial"])).or_else(|| scsi_serial(&disk.join("device/vpd_pg80")));
    let mut identity = DeviceIdentity {
        serial,
        wwn: first(&["wwid", "device/wwid", "dm/uuid"]).or_else(|| image(&disk.join("device"))),
        nguid: first(&["nguid"]).and_then(|text| known_hex(&text)),
        eui64: first(&["eui"]).and_then(|text| known_hex(&text)),
        lun: connection::lun(disk),
        by_path: connection::by_path(disk),
        may_be_cut,
    };
    // All paths lead to one disk.
    for path in multipath(disk).unwrap_or_default() {
        let path = identity_in(&disk.join("slaves").join(path));
        identity.serial = identity.serial.or(path.serial);
        identity.nguid = identity.nguid.or(path.nguid);
        identity.eui64 = identity.eui64.or(path.eui64);
        identity.lun = identity.lun.or(path.lun);
    }
    identity
}

/// The identity of an image of a Ceph cluster (RBD).
fn image(device: &Path) -> Option<String> {
    let part = |name: &str| text(&device.join(name));
    let [fsid, pool, image] = ["cluster_fsid", "pool_id", "image_id"].map(part);
    let snapshot = part("current_snap").filter(|name| name != "-").map(|name| format!("@{name}"));
    Some(format!("rbd.{}.{}.{}{}", fsid?, pool?, image?, snapshot.unwrap_or_default()))
}

/// A namespace without such a name has only zeros.
fn known_hex(text: &str) -> Option<String> {
    let digits = hex_digits(text);
    digits.bytes().any(|digit| digit != b'0').then_some(digits)
}

/// The names of the paths of a multipath device; none if it is something else.
fn multipath(disk: &Path) -> Option<Vec<String>> {
    text(&disk.join("dm/uuid")).filter(|uuid| uuid.starts_with("mpath-"))?;
    names(&disk.join("slaves")).ok()
}

/// The unit serial number page of SCSI: a header of four bytes, whose last is the length, and the number.
pub(crate) fn scsi_serial(page: &Path) -> Option<String> {
    let bytes = fs::read(page).ok()?;
    let length = usize::from(*bytes.get(3)?);
    let serial = bytes.get(4..4 + length)?;
    let serial = String::from_utf8_lossy(serial).trim_matches([' ', '\0']).to_owned();
    (!serial.is_empty()).then_some(serial)
}

fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim_matches(|letter: char| letter.is_whitespace() || letter == '\0');
    (!text.is_empty()).then(|| text.to_owned())
}

fn names(directory: &Path) -> Result<Vec<String>> {
    let failed = |error: io::Error| Error::os(ASK, directory, error);
    let mut names: Vec<String> = fs::read_dir(directory)
        .map_err(failed)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<_>>()
        .map_err(failed)?;
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A sysfs tree with disks that a test machine does not have: SCSI, NVMe, multipath.
    struct Fake {
        directory: tempfile::TempDir,
    }

    impl Fake {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            for place in ["block", "dev/block", "devices"] {
                fs::create_dir_all(directory.path().join(place)).unwrap();
            }
            Self { directory }
        }

        fn sysfs(&self) -> Sysfs {
            Sysfs::below(self.directory.path())
        }

        fn disk(&self, name: &str, minor: u32, files: &[(&str, &[u8])]) -> DeviceNumber {
            let number = DeviceNumber { major: 8, minor };
            let place = self.directory.path().join("devices").join(name);
            let dev = number.to_string();
            for (file, content) in files.iter().chain(&[("dev", dev.as_bytes())]) {
                let file = place.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, content).unwrap();
            }
            fs::create_dir_all(place.join("holders")).unwrap();
            if !name.contains('/') {
                symlink(&place, self.directory.path().join("block").join(name)).unwrap();
            }
            symlink(&place, self.directory.path().join("dev/block").join(number.to_string())).unwrap();
            number
        }

        fn read(&self, file: &str) -> String {
            fs::read_to_string(self.directory.path().join("devices").join(file)).unwrap()
        }
    }

    #[test]
    fn each_kind_of_disk_has_an_identity() {
        let fake = Fake::new();
        let sysfs = fake.sysfs();
        for (name, minor, files, serial, wwn) in [
            ("vda", 0, &[("serial", &b"vol-1\n"[..])][..], Some("vol-1"), None),
            (
                "nvme0n1",
                1,
                &[("device/serial", b"vol0123             \n"), ("wwid", b"nvme.1d0f-766f\n")],
                Some("vol0123"),
                Some("nvme.1d0f-766f"),
            ),
            (
                "sda",
                2,
                &[
                    ("device/vpd_pg80", b"\0\x80\0\x06  SCSI"),
                    ("device/wwid", b"naa.600508b400105e210000900000490000\n"),
                ],
                Some("SCSI"),
                Some("naa.600508b400105e210000900000490000"),
            ),
            ("dm-0", 3, &[("dm/uuid", b"mpath-3600508b4\n")], None, Some("mpath-3600508b4")),
            ("sdb", 4, &[("device/vpd_pg80", b"\0\x80")], None, None),
            (
                "rbd0",
                5,
                &[
                    ("device/cluster_fsid", b"b2f9\n"),
                    ("device/pool_id", b"3\n"),
                    ("device/image_id", b"10a3\n"),
                    ("device/current_snap", b"-\n"),
                ],
                None,
                Some("rbd.b2f9.3.10a3"),
            ),
        ] {
            let number = fake.disk(name, minor, files);
            let found = sysfs.identity(number).unwrap();
            assert_eq!((found.serial.as_deref(), found.wwn.as_deref()), (serial, wwn), "{name}");
        }
        let partition = fake.disk("vda/vda1", 20, &[("partition", b"1\n")]);
        assert_eq!(sysfs.identity(partition).unwrap().serial.as_deref(), Some("vol-1"), "its disk's");
        assert_eq!(sysfs.disks().unwrap().len(), 6, "whole disks only");
    }

    #[test]
    fn serials_and_names_match_however_they_are_written() {
        let found = DeviceIdentity {
            serial: Some("pvc-0123456789abcdef".into()),
            wwn: Some("naa.5000C500A1B2C3D4".into()),
            may_be_cut: true,
            ..DeviceIdentity::default()
        };
        assert!(found.has_serial("pvc-0123456789abcdef"));
        assert!(found.has_serial("pvc-0123456789abcdef-of-36-bytes"), "virtio keeps 20 bytes");
        let whole = DeviceIdentity { may_be_cut: false, ..found.clone() };
        assert!(whole.has_serial("pvc-0123456789abcdef"));
        assert!(!whole.has_serial("pvc-0123456789abcdef-of-36-bytes"), "another driver's is whole");
        assert!(!found.has_serial("pvc-0123456789abcdeF") && !found.has_serial("pvc-0"));
        for name in [
            "naa.5000c500a1b2c3d4",
            "wwn-0x5000c500a1b2c3d4",
            "0x5000C500A1B2C3D4",
            "scsi-35000c500a1b2c3d4",
            "dm-uuid-mpath-35000c500a1b2c3d4",
        ] {
            assert!(found.has_wwn(name), "{name}");
        }
        assert!(!found.has_wwn("naa.5000c500a1b2c3d5"));
        assert!(!DeviceIdentity::default().has_serial(""), "a disk without one is nobody's");
    }

    #[test]
    fn a_rescan_reaches_scsi_nvme_and_every_path() {
        let fake = Fake::new();
        let sysfs = fake.sysfs();
        let scsi = fake.disk("sda", 0, &[("device/rescan", b"")]);
        let nvme = fake.disk("nvme0n1", 1, &[("device/nvme0/rescan_controller", b"")]);
        let virtio = fake.disk("vda", 2, &[("device/vendor", b"0x1af4")]);
        let multipath = fake.disk("dm-0", 3, &[("slaves/sda/dev", b"8:0")]);
        assert_eq!(sysfs.rescan(virtio).unwrap(), Rescan::NotNeeded);
        assert_eq!(sysfs.rescan(nvme).unwrap(), Rescan::Requested);
        assert_eq!(fake.read("nvme0n1/device/nvme0/rescan_controller"), "1");
        assert_eq!(sysfs.rescan(multipath).unwrap(), Rescan::Requested);
        assert_eq!(fake.read("sda/device/rescan"), "1");
        assert_eq!(sysfs.rescan(scsi).unwrap(), Rescan::Requested);
    }

    #[test]
    fn a_path_that_takes_no_commands_is_not_rescanned() {
        let fake = Fake::new();
        let disk = |index, state| {
            let files = [("device/rescan", &b""[..]), ("device/access_state", state)];
            fake.disk(&format!("sd{index}"), index, &files)
        };
        for (index, state) in
            [b"standby\n" as &[u8], b"unavailable", b"offline", b"transitioning"].iter().enumerate()
        {
            let error = fake.sysfs().rescan(disk(index as u32, state)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unresponsive, "{error}");
            assert_eq!(fake.read(&format!("sd{index}/device/rescan")), "");
        }
        for (index, state) in [(4, b"active/non-optimized\n" as &[u8]), (5, b"lba-dependent")] {
            assert_eq!(fake.sysfs().rescan(disk(index, state)).unwrap(), Rescan::Requested);
        }
    }
}
