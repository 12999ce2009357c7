//! Waiting for the right disk, identified by what the kernel reports and not by the name of a link.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::device::disk_source::{DiskSource, KernelDisks};
use crate::device::sysfs::{DeviceIdentity, Rescan, Sysfs, is_same_hex};
use crate::{BlockDevice, DeviceNumber, Error, ErrorKind, Result};

const WAIT: &str = "wait for block device";
const ATTACH: &str = "check whether it is attached to this node";
/// The first pause between two checks, and the longest: the pause doubles each time.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];
/// How long a wait takes by default.
const WAIT_LIMIT: Duration = Duration::from_secs(10);

/// What identifies a disk that is expected, or that must be told apart from others, and how long to wait for
/// it.
///
/// Links in `/dev/disk/by-id` are made by a daemon. They can be late, or stale after their number was given
/// to another disk. sysfs is the kernel's own description. With several properties, the disk must have all.
///
/// A driver hands one value to its own wait and to
/// [`StagePlan::expect`](crate::flow::block::StagePlan::expect), so that there is one limit.
/// `testing::FakeDisks` finds it without root among the disks of a test.
///
/// ```no_run
/// use csi_mount::ExpectedDevice;
/// use std::time::Duration;
///
/// let expected = ExpectedDevice::new().serial("pvc-1").min_size(1 << 30).wait_limit(Duration::from_secs(60));
/// let device = expected.wait_at("/dev/disk/by-id/virtio-pvc-1")?;
///
/// let by_lun = ExpectedDevice::new().lun(3).by_path("pci-0000:00:04.0-scsi-0:0:0:3");
/// # Ok::<(), csi_mount::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct ExpectedDevice {
    wanted: Vec<Wanted>,
    number: Option<DeviceNumber>,
    min_size: u64,
    limit: Option<Duration>,
}

/// A property that the kernel reports about a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    Serial(String),
    Wwn(String),
    Nguid(String),
    Eui64(String),
    Lun(u64),
    ByPath(String),
}

impl Wanted {
    /// Its name, the wanted value, and the value that the disk has.
    fn description<'d>(&'d self, found: &'d DeviceIdentity) -> (&'static str, String, Option<String>) {
        match self {
            Self::Serial(wanted) => ("serial number", wanted.clone(), found.serial.clone()),
            Self::Wwn(wanted) => ("world-wide name", wanted.clone(), found.wwn.clone()),
            Self::Nguid(wanted) => ("NGUID", wanted.clone(), found.nguid.clone()),
            Self::Eui64(wanted) => ("EUI-64", wanted.clone(), found.eui64.clone()),
            Self::Lun(wanted) => ("LUN", wanted.to_string(), found.lun.map(|lun| lun.to_string())),
            Self::ByPath(wanted) => ("path", wanted.clone(), found.by_path.clone()),
        }
    }

    fn matches(&self, found: &DeviceIdentity) -> bool {
        match self {
            Self::Serial(wanted) => found.has_serial(wanted),
            Self::Wwn(wanted) => found.has_wwn(wanted),
            Self::Nguid(wanted) => found.nguid.as_deref().is_some_and(|known| is_same_hex(known, wanted)),
            Self::Eui64(wanted) => found.eui64.as_deref().is_some_and(|known| is_same_hex(known, wanted)),
            Self::Lun(wanted) => found.lun == Some(*wanted),
            Self::ByPath(wanted) => found.has_by_path(wanted),
        }
    }
}

impl ExpectedDevice {
    /// Any disk that has a size.
    pub fn new() -> Self {
        Self::default()
    }

    fn with(mut self, wanted: Wanted) -> Self {
        self.wanted.retain(|other| std::mem::discriminant(other) != std::mem::discriminant(&wanted));
        self.wanted.push(wanted);
        self
    }

    /// Requires this serial number.
    ///
    /// A virtio disk keeps only the first 20 bytes, so only these are compared: disks whose serial numbers
    /// differ only after them can't be told apart.
    pub fn serial(self, serial: impl Into<String>) -> Self {
        self.with(Wanted::Serial(serial.into()))
    }

    /// Requires this world-wide name, in any notation: `wwn-0x5000…`, `naa.5000…`.
    pub fn wwn(self, wwn: impl Into<String>) -> Self {
        self.with(Wanted::Wwn(wwn.into()))
    }

    /// Requires this NGUID of an NVMe namespace: 16 bytes as hexadecimal digits, with or without separators.
    pub fn nguid(self, nguid: impl Into<String>) -> Self {
        self.with(Wanted::Nguid(nguid.into()))
    }

    /// Requires this EUI-64 of an NVMe namespace: 8 bytes as hexadecimal digits, with or without separators.
    pub fn eui64(self, eui64: impl Into<String>) -> Self {
        self.with(Wanted::Eui64(eui64.into()))
    }

    /// Requires this logical unit number of a SCSI disk.
    ///
    /// Each controller numbers its own disks. If more than one controller has such a disk, also give the
    /// [path](Self::by_path).
    pub fn lun(self, lun: u64) -> Self {
        self.with(Wanted::Lun(lun))
    }

    /// Requires this way from the node to the disk, in the words of `/dev/disk/by-path`, with or without that
    /// directory: `pci-0000:00:05.0` (virtio), `pci-0000:00:04.0-scsi-0:0:0:3`, `pci-0000:00:1f.0-nvme-1`,
    /// `vmbus-GUID-lun-3`, `ip-10.0.0.1:3260-iscsi-iqn.2026-01.org.example:1-lun-0`.
    ///
    /// It is computed from sysfs, so no link is needed. For other buses (SAS, Fibre Channel, ATA, USB) it is
    /// not known; use the link as the path there.
    pub fn by_path(self, path: impl Into<String>) -> Self {
        self.with(Wanted::ByPath(path.into()))
    }

    /// Requires this device number.
    pub fn number(mut self, number: DeviceNumber) -> Self {
        self.number = Some(number);
        self
    }

    /// Requires at least this size in bytes.
    pub fn min_size(mut self, bytes: u64) -> Self {
        self.min_size = bytes;
        self
    }

    /// Sets how long to wait. The default is 10 seconds.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Sets the limit if none is set.
    pub(crate) fn or_wait_limit(mut self, limit: Option<Duration>) -> Self {
        self.limit = self.limit.or(limit);
        self
    }

    pub(crate) fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Waits until the disk at this path exists, has a size and is the expected one, and opens it.
    ///
    /// If the path leads to another disk or nowhere, the disk with the wanted properties is searched in
    /// sysfs, and that one is used: a stale link does no harm. The checks repeat at growing intervals of up
    /// to half a second. udev is not needed.
    ///
    /// # Errors
    ///
    /// After [`wait_limit`](Self::wait_limit), the last problem: [`NotFound`](ErrorKind::NotFound);
    /// [`WrongDevice`](ErrorKind::WrongDevice) if the path leads to another disk;
    /// [`OutOfRange`](ErrorKind::OutOfRange) if the disk is too small.
    ///
    /// At once, what waiting can't fix: [`WrongDevice`](ErrorKind::WrongDevice) if the path is a device's
    /// node, not a link, and the device has another serial number, name or place;
    /// [`Unsupported`](ErrorKind::Unsupported) if the kernel has no driver for the node's number; and other
    /// errors of [`BlockDevice::open`].
    pub fn wait_at(&self, path: impl AsRef<Path>) -> Result<BlockDevice> {
        self.wait_in(&KernelDisks::new(), Some(path.as_ref()))
    }

    /// Waits for the disk with these properties, wherever its node is. It waits as [`wait_at`](Self::wait_at)
    /// does.
    ///
    /// # Errors
    ///
    /// As for [`wait_at`](Self::wait_at), and [`InvalidInput`](ErrorKind::InvalidInput) if nothing
    /// identifies the disk.
    pub fn wait(&self) -> Result<BlockDevice> {
        self.wait_in(&KernelDisks::new(), None)
    }

    pub(crate) fn wait_in<S: DiskSource>(&self, disks: &S, path: Option<&Path>) -> Result<S::Disk> {
        if path.is_none() && self.wanted.is_empty() && self.number.is_none() {
            let reason = "neither a path nor a property of the disk is given";
            return Err(Error::new(ErrorKind::InvalidInput, WAIT, reason));
        }
        let limit = self.limit.unwrap_or(WAIT_LIMIT);
        let end = Instant::now() + limit;
        let mut pause = PAUSES[0];
        loop {
            let Unfit { error, is_final } = match self.find_once(disks, path) {
                Ok(device) => return Ok(device),
                Err(unfit) => unfit,
            };
            let may_come =
                [ErrorKind::NotFound, ErrorKind::WrongDevice, ErrorKind::OutOfRange].contains(&error.kind());
            if is_final || !may_come {
                return Err(error);
            }
            if Instant::now() >= end {
                return Err(error.add_reason(format_args!("waited {limit:?}")));
            }
            std::thread::sleep(pause.min(end.saturating_duration_since(Instant::now())));
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    fn find_once<S: DiskSource>(&self, disks: &S, path: Option<&Path>) -> Result<S::Disk, Unfit> {
        let Some(path) = path else {
            return self.find_in(disks)?.ok_or_else(|| self.not_found().into());
        };
        let opened = disks.open(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => error.hint(ATTACH),
            _ => error,
        });
        let unfit = match opened.map_err(Unfit::from).and_then(|disk| self.check(disks, disk)) {
            Ok(disk) => return Ok(disk),
            Err(unfit) => unfit,
        };
        if self.wanted.is_empty() {
            return Err(Unfit { is_final: false, ..unfit });
        }
        match self.find_in(disks)? {
            Some(disk) => {
                let (error, found) = (unfit.error, S::path(&disk).display());
                tracing::info!(%error, %found, "the disk was found at another path");
                Ok(disk)
            }
            // A link can be corrected, a node of the kernel's own not.
            None => Err(Unfit { is_final: unfit.is_final && !disks.is_link(path), ..unfit }),
        }
    }

    /// Finds the disk in sysfs; none if it does not exist yet.
    ///
    /// For a disk with several paths this is the multipath device. While that does not exist, several paths
    /// are an error, and a single path is the disk.
    ///
    /// # Errors
    ///
    /// Those of [`BlockDevice::from_number`], and [`OutOfRange`](ErrorKind::OutOfRange) if it is too small.
    pub fn find(&self) -> Result<Option<BlockDevice>> {
        self.find_in(&KernelDisks::new())
    }

    pub(crate) fn find_in<S: DiskSource>(&self, disks: &S) -> Result<Option<S::Disk>> {
        let matching = |(number, found): &(DeviceNumber, DeviceIdentity)| {
            self.number.is_none_or(|wanted| wanted == *number)
                && self.wanted.iter().all(|wanted| wanted.matches(found))
        };
        let found: Vec<_> = disks.sysfs().disks()?.into_iter().filter(matching).collect();
        match found.as_slice() {
            [] => Ok(None),
            [(number, _)] => {
                self.check(disks, disks.open_number(*number)?).map(Some).map_err(|unfit| unfit.error)
            }
            several => {
                let numbers: Vec<String> = several.iter().map(|(number, _)| number.to_string()).collect();
                let (count, numbers) = (several.len(), numbers.join(", "));
                let reason = format!("{count} disks have {}: {numbers}", self.description());
                Err(Error::new(ErrorKind::WrongDevice, WAIT, reason)
                    .hint("add the path; for several paths to one disk, use the multipath device"))
            }
        }
    }

    fn check<S: DiskSource>(&self, disks: &S, disk: S::Disk) -> Result<S::Disk, Unfit> {
        let refuse = |kind, reason: String, is_final| {
            let hint = match kind {
                ErrorKind::OutOfRange => "check whether its driver knows its new size, and rescan it",
                _ => ATTACH,
            };
            Err(Unfit { error: Error::new(kind, WAIT, reason).at(S::path(&disk)).hint(hint), is_final })
        };
        let number = S::number(&disk);
        if let Some(wanted) = self.number.filter(|wanted| *wanted != number) {
            // A node can be replaced: whoever makes it can be late.
            return refuse(ErrorKind::WrongDevice, format!("it is {number}, not {wanted}"), false);
        }
        if !self.wanted.is_empty() {
            let found = disks.sysfs().identity(number)?;
            if let Some(wanted) = self.wanted.iter().find(|wanted| !wanted.matches(&found)) {
                let (what, wanted, is) = wanted.description(&found);
                let is_final = is.is_some();
                let is = is.as_deref().unwrap_or("not known");
                return refuse(ErrorKind::WrongDevice, format!("its {what} is {is}, not {wanted}"), is_final);
            }
        }
        match S::size(&disk)? {
            0 => refuse(ErrorKind::NotFound, "it has no size yet".to_owned(), false),
            size if size < self.min_size => {
                refuse(ErrorKind::OutOfRange, format!("it has {size} bytes, not {}", self.min_size), false)
            }
            _ => Ok(disk),
        }
    }

    fn not_found(&self) -> Error {
        let error = Error::new(ErrorKind::NotFound, WAIT, format!("no disk has {}", self.description()));
        error.at(PathBuf::from("/sys/block")).hint(ATTACH)
    }

    /// What identifies the disk, as text.
    fn description(&self) -> String {
        let none = DeviceIdentity::default();
        let wanted = self.wanted.iter().map(|wanted| wanted.description(&none));
        let wanted = wanted.map(|(what, wanted, _)| format!("the {what} {wanted}"));
        let number = self.number.map(|number| format!("the number {number}"));
        wanted.chain(number).collect::<Vec<_>>().join(" and ")
    }
}

/// Why a disk is not the expected one.
struct Unfit {
    error: Error,
    /// The disk will never be the expected one.
    is_final: bool,
}

impl From<Error> for Unfit {
    fn from(error: Error) -> Self {
        Self { error, is_final: false }
    }
}

impl BlockDevice {
    /// Returns the identity that the disk reports, from sysfs; for a partition that of its disk.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if the device went away.
    pub fn identity(&self) -> Result<DeviceIdentity> {
        Sysfs::system().identity(self.number())
    }

    /// Returns the names of the devices that are built on this one (`dm-0`, `md0`). If there are any, this
    /// one is in use.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if the device went away.
    pub fn holders(&self) -> Result<Vec<String>> {
        Sysfs::system().holders(self.number())
    }

    /// Makes a SCSI or NVMe disk, or every path of a multipath device, report its size again, for example
    /// after an expansion.
    ///
    /// The multipath daemon must be informed separately (`multipathd resize map`). The call can wait for a
    /// disk that does not answer.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if the device went away,
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) or [`ReadOnly`](ErrorKind::ReadOnly) if sysfs
    /// can't be written, as in a container that is not privileged,
    /// [`Unresponsive`](ErrorKind::Unresponsive) if a path of SCSI is in standby or unavailable (ALUA). The
    /// kernel would give such a path the size 0.
    pub fn rescan(&self) -> Result<Rescan> {
        Sysfs::system().rescan(self.number())
    }
}
