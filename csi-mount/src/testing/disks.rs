//! Disks of a test: what one reports about itself, and a directory in which they look as the kernel shows them.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::expected::ExpectedDevice;
use crate::device::sysfs::{DeviceIdentity, Sysfs, hex_digits};
use crate::device::wait::{AnyDisk, DiskSource};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::ids::DeviceNumber;

/// Disks that exist only in a directory: a `sys` and a `dev` as the kernel makes them, for the tests of how these are
/// read. A driver's tests use a [`SimulatedNode`](super::SimulatedNode).
#[derive(Debug)]
pub struct FakeDisks {
    root: PathBuf,
    sysfs: Sysfs,
    next: AtomicU32,
}

/// A disk of a test: what the kernel would report about it. [`SimulatedNode::attach`] attaches it.
///
/// [`SimulatedNode::attach`]: super::SimulatedNode::attach
#[derive(Debug, Clone)]
#[must_use]
pub struct FakeDisk {
    name: String,
    bus: Bus,
    pci: String,
    serial: Option<String>,
    wwid: Option<String>,
    nguid: Option<String>,
    eui64: Option<String>,
    size: u64,
}

#[derive(Debug, Clone)]
enum Bus {
    Virtio,
    Scsi { lun: u64 },
    Nvme,
    Multipath { paths: Vec<String> },
}

/// A disk that was found among [`FakeDisks`], or on a simulated node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundDisk {
    /// The kernel's name: `sda`.
    pub name: String,
    /// Its number.
    pub number: DeviceNumber,
    /// Its size in bytes.
    pub size: u64,
    pub(super) path: PathBuf,
}

impl FoundDisk {
    pub(super) fn new(path: PathBuf, number: DeviceNumber, size: u64) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { name, number, size, path }
    }
}

impl FakeDisk {
    fn new(name: &str, bus: Bus) -> Self {
        let pci = "0000:00:05.0".to_owned();
        let name = name.to_owned();
        Self { name, bus, pci, serial: None, wwid: None, nguid: None, eui64: None, size: 1 << 30 }
    }

    /// A virtio disk, such as `vda`, of 1 GiB.
    pub fn virtio(name: &str) -> Self {
        Self::new(name, Bus::Virtio)
    }

    /// A SCSI disk, such as `sda`, with this logical unit number, of 1 GiB.
    pub fn scsi(name: &str, lun: u64) -> Self {
        Self::new(name, Bus::Scsi { lun })
    }

    /// An NVMe namespace, such as `nvme0n1`, of 1 GiB.
    pub fn nvme(name: &str) -> Self {
        Self::new(name, Bus::Nvme)
    }

    /// A multipath device, such as `dm-0`, over disks that were added before.
    pub fn multipath<'p>(name: &str, paths: impl IntoIterator<Item = &'p str>) -> Self {
        Self::new(name, Bus::Multipath { paths: paths.into_iter().map(str::to_owned).collect() })
    }

    /// Sets the serial number. A virtio disk keeps its first 20 bytes.
    pub fn serial(mut self, serial: &str) -> Self {
        self.serial = Some(serial.to_owned());
        self
    }

    /// Sets the world-wide name as the kernel writes it: `naa.5000c500a1b2c3d4`; for a multipath device its
    /// UUID, `mpath-3…`.
    pub fn wwid(mut self, wwid: &str) -> Self {
        self.wwid = Some(wwid.to_owned());
        self
    }

    /// Sets the NGUID of an NVMe namespace.
    pub fn nguid(mut self, nguid: &str) -> Self {
        self.nguid = Some(nguid.to_owned());
        self
    }

    /// Sets the EUI-64 of an NVMe namespace.
    pub fn eui64(mut self, eui64: &str) -> Self {
        self.eui64 = Some(eui64.to_owned());
        self
    }

    /// Sets the size in bytes, in whole sectors of 512.
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = bytes;
        self
    }

    /// Sets the address of its controller: `0000:00:05.0` unless it is set.
    pub fn pci(mut self, address: &str) -> Self {
        self.pci = address.to_owned();
        self
    }

    /// The kernel's name, such as `vda`.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn bytes(&self) -> u64 {
        self.size
    }

    /// What it is known by on every node to which it is attached.
    pub(super) fn known_as(&self) -> &str {
        let names = [&self.wwid, &self.nguid, &self.eui64, &self.serial];
        names.into_iter().flatten().next().unwrap_or(&self.name)
    }

    /// What the kernel reports about it, as it is read from sysfs.
    ///
    /// # Panics
    /// For a multipath device: what it reports is that of its paths.
    pub(super) fn identity(&self) -> DeviceIdentity {
        let pci = format!("pci-{}", self.pci);
        let is_virtio = matches!(self.bus, Bus::Virtio);
        let (lun, by_path) = match &self.bus {
            Bus::Virtio => (None, pci),
            Bus::Scsi { lun } => (Some(*lun), format!("{pci}-scsi-0:0:0:{lun}")),
            Bus::Nvme => (None, format!("{pci}-nvme-{}", self.namespace())),
            Bus::Multipath { .. } => panic!("{}: a multipath device is not simulated", self.name),
        };
        let serial = self.serial.as_ref();
        DeviceIdentity {
            serial: serial.map(|serial| serial.chars().take(if is_virtio { 20 } else { 252 }).collect()),
            wwn: self.wwid.clone(),
            nguid: self.nguid.as_deref().map(hex_digits),
            eui64: self.eui64.as_deref().map(hex_digits),
            lun,
            by_path: Some(by_path),
            may_be_cut: is_virtio && serial.is_some(),
        }
    }

    /// The number of an NVMe namespace.
    fn namespace(&self) -> &str {
        self.name.rsplit_once('n').map_or("1", |(_, number)| number)
    }

    /// Its directory below `sys/devices`, and how to get from there to the directory of its controller.
    fn place(&self) -> (String, &'static str) {
        let Self { name, pci, .. } = self;
        let pci = format!("pci0000:00/{pci}");
        match &self.bus {
            Bus::Virtio => (format!("{pci}/virtio0/block/{name}"), "../.."),
            Bus::Scsi { lun } => (format!("{pci}/host0/target0:0:0/0:0:0:{lun}/block/{name}"), "../.."),
            Bus::Nvme => {
                let controller = name.rsplit_once('n').map_or(name.as_str(), |(controller, _)| controller);
                (format!("{pci}/nvme/{controller}/{name}"), "..")
            }
            Bus::Multipath { .. } => (format!("virtual/block/{name}"), ""),
        }
    }

    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let line = |text: &str| format!("{text}\n").into_bytes();
        let mut files = vec![("size".to_owned(), line(&(self.size / 512).to_string()))];
        let mut add = |file: &str, content: Option<Vec<u8>>| {
            files.extend(content.map(|content| (file.to_owned(), content)));
        };
        let of = |known: &Option<String>| known.as_deref().map(line);
        match &self.bus {
            Bus::Virtio => {
                let serial = self.serial.as_deref();
                add("serial", serial.map(|serial| line(&serial.chars().take(20).collect::<String>())));
                add("wwid", of(&self.wwid));
            }
            Bus::Scsi { .. } => {
                let page = |serial: &String| [&[0, 0x80, 0, serial.len() as u8], serial.as_bytes()].concat();
                add("device/vpd_pg80", self.serial.as_ref().map(page));
                add("device/wwid", of(&self.wwid));
            }
            Bus::Nvme => {
                add("device/serial", of(&self.serial));
                add("wwid", of(&self.wwid));
                add("nguid", of(&self.nguid));
                add("eui", of(&self.eui64));
                add("nsid", Some(line(self.namespace())));
            }
            Bus::Multipath { .. } => add("dm/uuid", of(&self.wwid)),
        }
        files
    }
}

impl FakeDisks {
    /// Puts the disks into an empty directory, which the test makes and removes.
    ///
    /// # Panics
    /// As all methods here, if a file can't be written.
    pub fn new(directory: &Path) -> Self {
        for place in ["sys/block", "sys/dev/block", "sys/devices", "dev"] {
            fs::create_dir_all(directory.join(place)).expect("the directory of the test can be written");
        }
        let root = fs::canonicalize(directory).expect("the directory exists");
        Self { sysfs: Sysfs::below(&root.join("sys")), root, next: AtomicU32::new(0) }
    }

    /// Attaches a disk, with its node in `/dev`.
    ///
    /// # Panics
    /// If the disk or a path of a multipath device can't be added.
    pub fn add(&self, disk: FakeDisk) -> DeviceNumber {
        let (place, controller) = disk.place();
        let directory = self.root.join("sys/devices").join(place);
        fs::create_dir_all(directory.join("holders")).expect("make a disk");
        if !controller.is_empty() {
            symlink(controller, directory.join("device")).expect("make a disk's link to its controller");
        }
        let number = self.register(&disk.name, &directory, disk.files());
        symlink(&directory, self.root.join("sys/block").join(&disk.name)).expect("each name is used once");
        if let Bus::Multipath { paths } = &disk.bus {
            fs::create_dir(directory.join("slaves")).expect("make a multipath device");
            for path in paths {
                let path_directory = fs::canonicalize(self.root.join("sys/block").join(path));
                let path_directory = path_directory.expect("the paths are added first");
                symlink(&directory, path_directory.join("holders").join(&disk.name)).expect("link a path");
                symlink(&path_directory, directory.join("slaves").join(path)).expect("link a path");
            }
        }
        number
    }

    /// Adds a partition with this number and these bytes to a disk.
    ///
    /// # Panics
    /// If the disk does not exist.
    pub fn add_partition(&self, disk: &str, number: u32, bytes: Range<u64>) -> DeviceNumber {
        let directory = fs::canonicalize(self.root.join("sys/block").join(disk)).expect("the disk exists");
        let separator = if disk.ends_with(|letter: char| letter.is_ascii_digit()) { "p" } else { "" };
        let name = format!("{disk}{separator}{number}");
        let directory = directory.join(&name);
        fs::create_dir(&directory).expect("each partition is added once");
        let line = |text: u64| format!("{text}\n").into_bytes();
        let files = vec![
            ("partition".to_owned(), line(number.into())),
            ("start".to_owned(), line(bytes.start / 512)),
            ("size".to_owned(), line((bytes.end - bytes.start) / 512)),
        ];
        self.register(&name, &directory, files)
    }

    fn register(&self, name: &str, directory: &Path, files: Vec<(String, Vec<u8>)>) -> DeviceNumber {
        let number = DeviceNumber { major: 8, minor: self.next.fetch_add(1, Ordering::Relaxed) };
        let dev = ("dev".to_owned(), format!("{number}\n").into_bytes());
        for (file, content) in files.into_iter().chain([dev]) {
            let file = directory.join(file);
            fs::create_dir_all(file.parent().expect("a file in a directory")).expect("make a directory");
            fs::write(file, content).expect("describe a disk");
        }
        let link = self.root.join("sys/dev/block").join(number.to_string());
        symlink(directory, link).expect("each number is used once");
        fs::write(self.root.join("dev").join(name), number.to_string()).expect("make a node");
        number
    }

    /// Makes or changes a link in `/dev`, as udev does: `/dev/disk/by-id/virtio-pvc-1` to `vda`.
    ///
    /// # Panics
    /// If the link can't be made.
    pub fn link(&self, link: impl AsRef<Path>, name: &str) {
        let link = self.below_root(link.as_ref());
        fs::create_dir_all(link.parent().expect("a link in a directory")).expect("make a directory");
        let _ = fs::remove_file(&link);
        symlink(self.root.join("dev").join(name), link).expect("make a link");
    }

    /// Returns what the disk reports, as [`BlockDevice::identity`](crate::BlockDevice::identity) does.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is none with this number.
    pub fn identity(&self, number: DeviceNumber) -> Result<DeviceIdentity> {
        self.sysfs.identity(number)
    }

    /// As [`ExpectedDevice::find`].
    pub fn find(&self, expected: &ExpectedDevice) -> Result<Option<FoundDisk>> {
        expected.find_in(self)
    }

    /// As [`ExpectedDevice::wait_at`]; the path begins with `/dev`.
    pub fn wait_at(&self, expected: &ExpectedDevice, path: impl AsRef<Path>) -> Result<FoundDisk> {
        expected.wait_in(self, Some(path.as_ref()))
    }

    /// As [`ExpectedDevice::wait`].
    pub fn wait(&self, expected: &ExpectedDevice) -> Result<FoundDisk> {
        expected.wait_in(self, None)
    }

    fn below_root(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

impl DiskSource for FakeDisks {
    type Disk = FoundDisk;

    fn disks(&self) -> Result<Vec<(DeviceNumber, DeviceIdentity)>> {
        self.sysfs.disks()
    }

    fn identity(&self, number: DeviceNumber) -> Result<DeviceIdentity> {
        self.sysfs.identity(number)
    }

    fn open(&self, path: &Path) -> Result<FoundDisk> {
        const OPEN: &str = "open block device";
        let node = fs::canonicalize(self.below_root(path)).map_err(|error| Error::os(OPEN, path, error))?;
        let text = fs::read_to_string(&node).map_err(|error| Error::os(OPEN, path, error))?;
        let not_a_device = || Error::new(ErrorKind::InvalidInput, OPEN, "not a block device").at(path);
        let number = DeviceNumber::parse(&text).ok_or_else(not_a_device)?;
        let path = Path::new("/dev").join(node.file_name().unwrap_or_default());
        Ok(FoundDisk::new(path, number, self.sysfs.size(number)))
    }

    fn open_number(&self, number: DeviceNumber) -> Result<FoundDisk> {
        let link = self.root.join(format!("sys/dev/block/{number}"));
        let place = fs::canonicalize(&link).map_err(|error| Error::os("find", &link, error))?;
        self.open(&Path::new("/dev").join(place.file_name().unwrap_or_default()))
    }

    fn is_link(&self, path: &Path) -> bool {
        self.below_root(path).is_symlink()
    }
}

impl AnyDisk for FoundDisk {
    fn number(&self) -> DeviceNumber {
        self.number
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn size(&self) -> Result<u64> {
        Ok(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The simulated node has what the kernel's own description would give.
    #[test]
    fn a_disk_reports_what_is_read_from_sysfs() {
        let directory = tempfile::tempdir().unwrap();
        let disks = FakeDisks::new(directory.path());
        for disk in [
            FakeDisk::virtio("vda"),
            FakeDisk::virtio("vdb").serial("a-serial-number-of-more-than-20-bytes").pci("0000:00:06.0"),
            FakeDisk::scsi("sda", 3).serial("SCSI3").wwid("naa.5000c500a1b2c3d5").pci("0000:00:04.0"),
            FakeDisk::nvme("nvme0n1").serial("vol0123").wwid("uuid.0f47"),
            FakeDisk::nvme("nvme1n2")
                .nguid("00112233-4455-6677-8899-aabbccddeeff")
                .eui64("00 25 38 1b 71 b0 00 01")
                .pci("0000:00:1e.0"),
        ] {
            let number = disks.add(disk.clone());
            assert_eq!(disk.identity(), disks.identity(number).unwrap(), "{disk:?}");
        }
    }
}
