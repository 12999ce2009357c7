//! Which disk is expected: the properties by which it is recognized, compared with what the kernel reports.

use std::mem::discriminant;
use std::time::Duration;

use crate::device::sysfs::{DeviceIdentity, is_same_hex};
use crate::sys::ids::DeviceNumber;

/// What identifies a disk that is expected, or that must be told apart from others, and how long to wait for
/// it.
///
/// Links in `/dev/disk/by-id` are made by a daemon. They can be late, or stale after their number was given
/// to another disk. sysfs is the kernel's own description. With several properties, the disk must have all.
///
/// A driver hands one value to its own wait and to
/// [`StagePlan::expect`](crate::flow::block::StagePlan::expect), so that there is one limit. It waits by
/// [`Devices::wait`](crate::Devices::wait), which in its tests waits on a simulated node.
///
/// ```no_run
/// use csi_mount::{ExpectedDevice, Host};
/// use std::time::Duration;
///
/// let expected = ExpectedDevice::new().serial("pvc-1").min_size(1 << 30).wait_limit(Duration::from_secs(60));
/// let device = Host::kernel().devices().wait_at(&expected, "/dev/disk/by-id/virtio-pvc-1".as_ref())?;
///
/// let by_lun = ExpectedDevice::new().lun(3).by_path("pci-0000:00:04.0-scsi-0:0:0:3");
/// # Ok::<(), csi_mount::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct ExpectedDevice {
    pub(super) wanted: Vec<Wanted>,
    pub(super) number: Option<DeviceNumber>,
    pub(super) min_size: u64,
    pub(super) limit: Option<Duration>,
}

/// A property that the kernel reports about a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    Serial(String),
    Wwn(String),
    Nguid(String),
    Eui64(String),
    Lun(u64),
    ByPath(String),
}

impl Wanted {
    /// Its name, the wanted value, and the value that the disk has.
    pub(super) fn description<'d>(
        &'d self,
        found: &'d DeviceIdentity,
    ) -> (&'static str, String, Option<String>) {
        match self {
            Self::Serial(wanted) => ("serial number", wanted.clone(), found.serial.clone()),
            Self::Wwn(wanted) => ("world-wide name", wanted.clone(), found.wwn.clone()),
            Self::Nguid(wanted) => ("NGUID", wanted.clone(), found.nguid.clone()),
            Self::Eui64(wanted) => ("EUI-64", wanted.clone(), found.eui64.clone()),
            Self::Lun(wanted) => ("LUN", wanted.to_string(), found.lun.map(|lun| lun.to_string())),
            Self::ByPath(wanted) => ("path", wanted.clone(), found.by_path.clone()),
        }
    }

    pub(super) fn matches(&self, found: &DeviceIdentity) -> bool {
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
        self.wanted.retain(|other| discriminant(other) != discriminant(&wanted));
        self.wanted.push(wanted);
        self
    }

    /// Requires this serial number: of an NVMe or virtio disk the `serial` that sysfs shows, of a SCSI disk the
    /// unit's serial number (VPD page 80h).
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

    /// What identifies the disk, as text.
    pub(super) fn description(&self) -> String {
        let none = DeviceIdentity::default();
        let wanted = self.wanted.iter().map(|wanted| wanted.description(&none));
        let wanted = wanted.map(|(what, wanted, _)| format!("the {what} {wanted}"));
        let number = self.number.map(|number| format!("the number {number}"));
        wanted.chain(number).collect::<Vec<_>>().join(" and ")
    }
}
