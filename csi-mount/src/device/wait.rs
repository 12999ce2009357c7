//! Waiting for the right disk, identified by what the kernel reports and not by the name of a link.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::device::block_device::BlockDevice;
use crate::device::expected::ExpectedDevice;
use crate::device::sysfs::{DeviceIdentity, Sysfs};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::deadline::deadline;
use crate::sys::ids::DeviceNumber;

const WAIT: &str = "wait for block device";
const ATTACH: &str = "check whether it is attached to this node";
/// The first pause between two checks, and the longest: the pause doubles each time.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];
/// How long a wait takes by default.
const WAIT_LIMIT: Duration = Duration::from_secs(10);

impl ExpectedDevice {
    /// See [`Devices::wait_at`](crate::Devices::wait_at).
    pub(crate) fn wait_at(&self, path: impl AsRef<Path>) -> Result<BlockDevice> {
        self.wait_in(&KernelDisks::new(), Some(path.as_ref()))
    }

    /// Waits for the disk with these properties, wherever its node is. It waits as [`wait_at`](Self::wait_at)
    /// does.
    ///
    /// # Errors
    ///
    /// As for [`wait_at`](Self::wait_at), and [`InvalidInput`](ErrorKind::InvalidInput) if nothing
    /// identifies the disk.
    pub(crate) fn wait(&self) -> Result<BlockDevice> {
        self.wait_in(&KernelDisks::new(), None)
    }

    pub(crate) fn wait_in<S: DiskSource>(&self, disks: &S, path: Option<&Path>) -> Result<S::Disk> {
        if path.is_none() && self.wanted.is_empty() && self.number.is_none() {
            let reason = "neither a path nor a property of the disk is given";
            return Err(Error::new(ErrorKind::InvalidInput, WAIT, reason));
        }
        let limit = self.limit.unwrap_or(WAIT_LIMIT);
        let end = deadline(limit);
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
                let error = unfit.error;
                let found = disk.path().display();
                tracing::info!(%error, %found, "the disk was found at another path");
                Ok(disk)
            }
            // A link can be corrected, a node of the kernel's own not.
            None => Err(Unfit { is_final: unfit.is_final && !disks.is_link(path), ..unfit }),
        }
    }

    /// See [`Devices::find`](crate::Devices::find).
    pub(crate) fn find(&self) -> Result<Option<BlockDevice>> {
        self.find_in(&KernelDisks::new())
    }

    pub(crate) fn find_in<S: DiskSource>(&self, disks: &S) -> Result<Option<S::Disk>> {
        let matching = |(number, found): &(DeviceNumber, DeviceIdentity)| {
            self.number.is_none_or(|wanted| wanted == *number)
                && self.wanted.iter().all(|wanted| wanted.matches(found))
        };
        let found: Vec<_> = disks.disks()?.into_iter().filter(matching).collect();
        match found.as_slice() {
            [] => Ok(None),
            [(number, _)] => {
                self.check(disks, disks.open_number(*number)?).map(Some).map_err(|unfit| unfit.error)
            }
            several => {
                let numbers: Vec<String> = several.iter().map(|(number, _)| number.to_string()).collect();
                let count = several.len();
                let numbers = numbers.join(", ");
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
            Err(Unfit { error: Error::new(kind, WAIT, reason).at(disk.path()).hint(hint), is_final })
        };
        let number = disk.number();
        if let Some(wanted) = self.number.filter(|wanted| *wanted != number) {
            // A node can be replaced: whoever makes it can be late.
            return refuse(ErrorKind::WrongDevice, format!("it is {number}, not {wanted}"), false);
        }
        if !self.wanted.is_empty() {
            let found = disks.identity(number)?;
            if let Some(wanted) = self.wanted.iter().find(|wanted| !wanted.matches(&found)) {
                let (what, wanted, is) = wanted.description(&found);
                let is_final = is.is_some();
                let is = is.as_deref().unwrap_or("not known");
                return refuse(ErrorKind::WrongDevice, format!("its {what} is {is}, not {wanted}"), is_final);
            }
        }
        match disk.size()? {
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

/// Where a disk is looked up: the kernel, or the disks of a test.
pub(crate) trait DiskSource {
    type Disk: AnyDisk;

    /// All disks, each with what it reports about itself.
    fn disks(&self) -> Result<Vec<(DeviceNumber, DeviceIdentity)>>;
    fn identity(&self, number: DeviceNumber) -> Result<DeviceIdentity>;
    fn open(&self, path: &Path) -> Result<Self::Disk>;
    fn open_number(&self, number: DeviceNumber) -> Result<Self::Disk>;
    /// Whether the path is a symbolic link, which can be changed to lead to another disk.
    fn is_link(&self, path: &Path) -> bool;
}

pub(crate) trait AnyDisk {
    fn number(&self) -> DeviceNumber;
    fn path(&self) -> &Path;
    /// In bytes.
    fn size(&self) -> Result<u64>;
}

struct KernelDisks {
    sysfs: Sysfs,
}

impl KernelDisks {
    fn new() -> Self {
        Self { sysfs: Sysfs::system() }
    }
}

impl DiskSource for KernelDisks {
    type Disk = BlockDevice;

    fn disks(&self) -> Result<Vec<(DeviceNumber, DeviceIdentity)>> {
        self.sysfs.disks()
    }

    fn identity(&self, number: DeviceNumber) -> Result<DeviceIdentity> {
        self.sysfs.identity(number)
    }

    fn open(&self, path: &Path) -> Result<BlockDevice> {
        BlockDevice::open(path).map_err(|error| explain_missing_driver(error, path))
    }

    fn open_number(&self, number: DeviceNumber) -> Result<BlockDevice> {
        BlockDevice::from_number(number)
    }

    fn is_link(&self, path: &Path) -> bool {
        path.is_symlink()
    }
}

impl AnyDisk for BlockDevice {
    fn number(&self) -> DeviceNumber {
        self.number()
    }

    fn path(&self) -> &Path {
        self.path()
    }

    fn size(&self) -> Result<u64> {
        self.size()
    }
}

/// A node whose number belongs to no driver: the kernel has tried to load one when the node was opened, so
/// waiting does not help.
fn explain_missing_driver(error: Error, path: &Path) -> Error {
    let has_no_device = [Errno::NXIO, Errno::NODEV].map(|number| Some(number.raw_os_error()));
    if !has_no_device.contains(&error.raw_os_error()) {
        return error;
    }
    let (Ok(metadata), Ok(drivers)) = (fs::metadata(path), fs::read_to_string("/proc/devices")) else {
        return error;
    };
    let major = DeviceNumber::from_dev_t(metadata.rdev()).major;
    if has_driver(&drivers, major) {
        return error;
    }
    error
        .with_kind(ErrorKind::Unsupported)
        .add_reason(format_args!("the kernel has no driver for block devices with the number {major}"))
        .hint("load the module of the driver on the node")
}

/// Whether `/proc/devices` lists a driver of block devices with this major number.
fn has_driver(drivers: &str, major: u32) -> bool {
    let block = drivers.lines().skip_while(|line| *line != "Block devices:");
    block.filter_map(|line| line.split_whitespace().next()?.parse().ok()).any(|known: u32| known == major)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_drivers_of_block_devices_count() {
        let drivers = "Character devices:\n  1 mem\n 43 x\n\nBlock devices:\n  7 loop\n259 blkext\n";
        let known = [1, 7, 43, 259].map(|major| has_driver(drivers, major));
        assert_eq!(known, [false, true, false, true]);
    }
}
