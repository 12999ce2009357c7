//! Waiting for the right disk, identified by what the kernel reports and not by the name of a link.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::device::sysfs::{DeviceIdentity, Rescan, Sysfs};
use crate::{BlockDevice, DeviceNumber, Error, ErrorKind, Result};

const WAIT: &str = "wait for block device";
const ATTACH: &str = "check whether it is attached to this node";
/// The first pause between two checks, and the longest: the pause doubles each time.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

/// What identifies a disk that is expected, or that must be told apart from others.
///
/// Links in `/dev/disk/by-id` are made by a daemon. They can be late, or stale after their number was given
/// to another disk. sysfs is the kernel's own description.
///
/// ```no_run
/// use csi_mount::ExpectedDevice;
/// use std::time::Duration;
///
/// let expected = ExpectedDevice::new().serial("pvc-1").min_size(1 << 30);
/// let device = expected.wait_at("/dev/disk/by-id/virtio-pvc-1", Duration::from_secs(60))?;
/// # Ok::<(), csi_mount::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct ExpectedDevice {
    serial: Option<String>,
    wwn: Option<String>,
    number: Option<DeviceNumber>,
    min_size: u64,
}

impl ExpectedDevice {
    /// Any disk that has a size.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requires this serial number.
    ///
    /// A virtio disk keeps only the first 20 bytes, so only these are compared: disks whose serial numbers
    /// differ only after them can't be told apart.
    pub fn serial(mut self, serial: impl Into<String>) -> Self {
        self.serial = Some(serial.into());
        self
    }

    /// Requires this world-wide name, in any notation: `wwn-0x5000…`, `naa.5000…`.
    pub fn wwn(mut self, wwn: impl Into<String>) -> Self {
        self.wwn = Some(wwn.into());
        self
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

    /// Waits until the disk at this path exists, has a size and is the expected one, and opens it.
    ///
    /// If the path leads to another disk or nowhere, the disk with the serial number or name is searched in
    /// sysfs, and that one is used: a stale link does no harm. The checks repeat at growing intervals of up
    /// to half a second. udev is not needed.
    ///
    /// # Errors
    ///
    /// After `limit`, the last problem: [`NotFound`](ErrorKind::NotFound);
    /// [`WrongDevice`](ErrorKind::WrongDevice) if the path leads to another disk;
    /// [`OutOfRange`](ErrorKind::OutOfRange) if the disk is too small. At once, the errors of
    /// [`BlockDevice::open`] that waiting can't fix.
    pub fn wait_at(&self, path: impl AsRef<Path>, limit: Duration) -> Result<BlockDevice> {
        self.wait_for(Some(path.as_ref()), limit)
    }

    /// Waits for the disk with this serial number, name or number, wherever its node is. It waits as
    /// [`wait_at`](Self::wait_at) does.
    ///
    /// # Errors
    ///
    /// As for [`wait_at`](Self::wait_at), and [`InvalidInput`](ErrorKind::InvalidInput) if nothing
    /// identifies the disk.
    pub fn wait(&self, limit: Duration) -> Result<BlockDevice> {
        self.wait_for(None, limit)
    }

    fn wait_for(&self, path: Option<&Path>, limit: Duration) -> Result<BlockDevice> {
        if path.is_none() && self.serial.is_none() && self.wwn.is_none() && self.number.is_none() {
            let reason = "neither path, serial number, name nor number is given";
            return Err(Error::new(ErrorKind::InvalidInput, WAIT, reason));
        }
        let end = Instant::now() + limit;
        let mut pause = PAUSES[0];
        loop {
            let error = match self.find_once(path) {
                Ok(device) => return Ok(device),
                Err(error) => error,
            };
            let may_come =
                [ErrorKind::NotFound, ErrorKind::WrongDevice, ErrorKind::OutOfRange].contains(&error.kind());
            if !may_come {
                return Err(error);
            }
            if Instant::now() >= end {
                return Err(error.add_reason(format_args!("waited {limit:?}")));
            }
            std::thread::sleep(pause.min(end.saturating_duration_since(Instant::now())));
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    fn find_once(&self, path: Option<&Path>) -> Result<BlockDevice> {
        let open = |path: &Path| {
            BlockDevice::open(path).map_err(|error| match error.kind() {
                ErrorKind::NotFound => error.hint(ATTACH),
                _ => error,
            })
        };
        let at_path = path.map(|path| open(path).and_then(|device| self.check(device)));
        match at_path {
            Some(Ok(device)) => Ok(device),
            Some(Err(error)) if self.serial.is_none() && self.wwn.is_none() => Err(error),
            at_path => match self.find() {
                Ok(Some(device)) => {
                    if let Some(Err(error)) = at_path {
                        tracing::info!(%error, found = %device.path().display(), "the disk was found at \
                            another path");
                    }
                    Ok(device)
                }
                Ok(None) => Err(at_path.and_then(Result::err).unwrap_or_else(|| self.not_found())),
                Err(error) => Err(error),
            },
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
        let matching = |(number, found): &(DeviceNumber, DeviceIdentity)| {
            self.number.is_none_or(|wanted| wanted == *number)
                && self.serial.as_deref().is_none_or(|wanted| found.has_serial(wanted))
                && self.wwn.as_deref().is_none_or(|wanted| found.has_wwn(wanted))
        };
        let found: Vec<_> = Sysfs::system().disks()?.into_iter().filter(matching).collect();
        match found.as_slice() {
            [] => Ok(None),
            [(number, _)] => self.check(BlockDevice::from_number(*number)?).map(Some),
            several => {
                let numbers: Vec<String> = several.iter().map(|(number, _)| number.to_string()).collect();
                let (count, numbers) = (several.len(), numbers.join(", "));
                let reason = format!("{count} disks have {}: {numbers}", self.description());
                Err(Error::new(ErrorKind::WrongDevice, WAIT, reason)
                    .hint("add the path; for several paths to one disk, use the multipath device"))
            }
        }
    }

    fn check(&self, device: BlockDevice) -> Result<BlockDevice> {
        let refuse = |kind, reason: String| {
            let hint = match kind {
                ErrorKind::OutOfRange => "check whether its driver knows its new size, and rescan it",
                _ => ATTACH,
            };
            Err(Error::new(kind, WAIT, reason).at(device.path()).hint(hint))
        };
        if let Some(wanted) = self.number.filter(|wanted| *wanted != device.number()) {
            return refuse(ErrorKind::WrongDevice, format!("it is {}, not {wanted}", device.number()));
        }
        if self.serial.is_some() || self.wwn.is_some() {
            let found = device.identity()?;
            for (what, wanted, same, is) in [
                (
                    "serial number",
                    &self.serial,
                    found.has_serial(self.serial.as_deref().unwrap_or("")),
                    &found.serial,
                ),
                ("world-wide name", &self.wwn, found.has_wwn(self.wwn.as_deref().unwrap_or("")), &found.wwn),
            ] {
                if let Some(wanted) = wanted
                    && !same
                {
                    let is = is.as_deref().unwrap_or("not known");
                    return refuse(ErrorKind::WrongDevice, format!("its {what} is {is}, not {wanted}"));
                }
            }
        }
        match device.size()? {
            0 => refuse(ErrorKind::NotFound, "it has no size yet".to_owned()),
            size if size < self.min_size => {
                refuse(ErrorKind::OutOfRange, format!("it has {size} bytes, not {}", self.min_size))
            }
            _ => Ok(device),
        }
    }

    fn not_found(&self) -> Error {
        let error = Error::new(ErrorKind::NotFound, WAIT, format!("no disk has {}", self.description()));
        error.at(PathBuf::from("/sys/block")).hint(ATTACH)
    }

    /// What identifies the disk, as text.
    fn description(&self) -> String {
        let number = self.number.map(|number| number.to_string());
        [("serial number", &self.serial), ("world-wide name", &self.wwn), ("number", &number)]
            .into_iter()
            .filter_map(|(what, known)| Some(format!("the {what} {}", known.as_ref()?)))
            .collect::<Vec<_>>()
            .join(" and ")
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
    /// can't be written, as in a container that is not privileged.
    pub fn rescan(&self) -> Result<Rescan> {
        Sysfs::system().rescan(self.number())
    }
}
