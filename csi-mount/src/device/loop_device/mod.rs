//! Loop devices: block devices over a file or over another block device.

mod attach;
mod node;
mod options;
mod table;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use self::node::Node;
pub use self::options::{LoopCache, LoopLifetime, LoopOptions};
pub(crate) use self::table::{Attached, attached_as};
use self::table::{Hint, Listed};
use crate::path::lookup;
use crate::sys::features::{self, Feature};
use crate::sys::ioctl::{self, LoopInfo};
use crate::sys::own_descriptors::with_own_descriptors;
use crate::{DeviceAccess, DeviceNumber, Error, ErrorKind, Result};

const DETACH: &str = "detach loop device";
/// How long a node may take to appear, a lock to be free, and a detached device to go.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an exclusive user may take to let go before a device counts as in use.
const FREE_SOON: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(5);

/// An attached loop device.
///
/// It stays attached when this is dropped, unless it was attached [`UntilClosed`](LoopLifetime::UntilClosed). Several
/// values of one device may exist; none keeps another from detaching it.
///
/// A value whose device was detached elsewhere does nothing to what its number is attached to next. Before Linux 5.15 that is
/// told by the backing file alone: do not keep a value where the file may be deleted, and a new one get its inode number.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    number: DeviceNumber,
    sequence: Option<u64>,
    /// The device and the inode of the file that it was attached to.
    backing: (u64, u64),
    access: DeviceAccess,
    /// Keeps the device attached where it would go with its last user.
    _user: Option<File>,
}

impl LoopDevice {
    /// Attaches a new loop device to a file or block device, also when another is attached to it already.
    ///
    /// `LOOP_CONFIGURE` does it in one step; before 5.8 the device is visible, for a moment, without its settings.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if there is no such file, [`InvalidInput`](ErrorKind::InvalidInput) if it is
    /// neither a file nor a block device, is empty, or the sector size can't be,
    /// [`ReadOnly`](ErrorKind::ReadOnly), [`PermissionDenied`](ErrorKind::PermissionDenied) without `CAP_SYS_ADMIN`,
    /// [`Unsupported`](ErrorKind::Unsupported) without loop devices.
    pub fn attach(backing: impl AsRef<Path>, options: &LoopOptions) -> Result<Self> {
        let backing = backing.as_ref();
        attach::attach_to(&attach::open_backing(backing, options)?, backing, options)
    }

    /// The loop device that is attached to this file with the same access, or a new one. One that was
    /// detached while a program had it open is waited for until it is gone, for 10 seconds.
    ///
    /// Several processes may ask at once and get the same device: the file's lock (`flock`) is held meanwhile.
    /// Options other than access count only for a new device.
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach), and [`Busy`](ErrorKind::Busy) if the file's lock is held by another program, or a program does not
    /// close the device that was detached.
    pub fn attach_or_find(backing: impl AsRef<Path>, options: &LoopOptions) -> Result<Self> {
        let backing = backing.as_ref();
        let file = attach::open_backing(backing, options)?;
        // Not on `file`: a device keeps the open file that it is attached to, and would keep the lock with it.
        let _lock = attach::lock(backing)?;
        let wanted =
            |info: &LoopInfo| access_of(info) == options.access && info.offset == 0 && info.size_limit == 0;
        let end = Instant::now() + PATIENCE;
        loop {
            let attached = attached_to(backing)?;
            let Some(attached) = attached.iter().find(|attached| wanted(&attached.info)) else {
                return attach::attach_to(&file, backing, options);
            };
            let found = Self::of(attached);
            // Mounted, it stays as long as the mount, and a second device beside it would be a second cache of the file.
            if !found.goes_when_closed() || found.is_held()? {
                return Ok(found);
            }
            if Instant::now() >= end {
                let reason =
                    format!("{} was detached, and another program has it open", found.path.display());
                return Err(Error::new(ErrorKind::Busy, "attach a loop device to", reason).at(backing));
            }
            std::thread::sleep(TICK);
        }
    }

    /// Every loop device that is attached to this file or block device, by the file itself and not by its name.
    ///
    /// A file that was renamed is found under its new name. One that was deleted is found under its old name.
    ///
    /// # Errors
    ///
    /// [`Io`](ErrorKind::Io) if the kernel's list can't be read. Devices that go away meanwhile are left out, and so is a loop
    /// device over a file of a filesystem that does not answer, unless that file may be this one
    /// ([`Unresponsive`](ErrorKind::Unresponsive)).
    pub fn find(backing: impl AsRef<Path>) -> Result<Vec<Self>> {
        Ok(attached_to(backing.as_ref())?.iter().map(Self::of).collect())
    }

    /// Every attached loop device with a mark like this, with the number of the block device beneath.
    ///
    /// The mark is not in sysfs, so each read-only loop device is asked, but for those over files of remote filesystems: a
    /// marked one is over a node.
    pub(crate) fn find_marked(is_wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<(Self, DeviceNumber)>> {
        let hint = |listed: &Listed| listed.hint(lookup::cached_node(&listed.backing).is_some(), true);
        let marked = table::attached(hint, |_, info| is_wanted(text(&info.file_name)))?;
        let found = |found: &Attached| (Self::of(found), DeviceNumber::from_dev_t(found.info.rdevice));
        Ok(marked.iter().map(found).collect())
    }

    /// The loop devices that are attached to one of these block devices, given with their kernel names.
    ///
    /// # Errors
    ///
    /// [`Unresponsive`](ErrorKind::Unresponsive) if one does not answer that may be attached to one of them.
    pub(crate) fn over(devices: &[(DeviceNumber, OsString)]) -> Result<Vec<Attached>> {
        let hint = |listed: &Listed| listed.hint(listed.looks_like_node_of(devices), true);
        let is_over = |info: &LoopInfo| {
            devices.iter().any(|(number, _)| *number == DeviceNumber::from_dev_t(info.rdevice))
        };
        table::attached(hint, |_, info| info.rdevice != 0 && is_over(info))
    }

    /// The read-only loop devices over this block device that were never given a name: before Linux 5.8 a process that is
    /// killed while it attaches one leaves it so. Later kernels attach it and name it in one call.
    pub(crate) fn find_unfinished(device: &Path) -> Result<Vec<Self>> {
        if features::has(Feature::LoopConfigure) {
            return Ok(Vec::new());
        }
        let is_unfinished = |info: &LoopInfo| {
            info.rdevice != 0 && text(&info.file_name).is_empty() && access_of(info) == DeviceAccess::ReadOnly
        };
        let attached = attached_to(device)?;
        Ok(attached.iter().filter(|attached| is_unfinished(&attached.info)).map(Self::of).collect())
    }

    /// Whether these are two loop devices over the same part of one file or device, or one over the other.
    pub(crate) fn are_of_one_backing(one: DeviceNumber, other: DeviceNumber) -> Result<bool> {
        let is_either = |listed: &Listed| [one, other].contains(&listed.number);
        let hint = |listed: &Listed| if is_either(listed) { Hint::Likely } else { Hint::Unwanted };
        let attached = table::attached(hint, |listed, _| is_either(listed))?;
        let info =
            |number| attached.iter().find(|found| found.listed.number == number).map(|found| &found.info);
        let is_over =
            |info: &LoopInfo, number: DeviceNumber| (info.rdevice, info.offset) == (number.dev_t(), 0);
        Ok(match (info(one), info(other)) {
            (Some(a), Some(b)) => {
                // Two nodes of one block device are one backing.
                let backing = |info: &LoopInfo| match info.rdevice {
                    0 => (info.device, info.inode, info.offset),
                    device => (0, device, info.offset),
                };
                backing(a) == backing(b) || is_over(a, other) || is_over(b, one)
            }
            (Some(info), None) => is_over(info, other),
            (None, Some(info)) => is_over(info, one),
            (None, None) => false,
        })
    }

    /// The device's node.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The device's number.
    pub fn number(&self) -> DeviceNumber {
        self.number
    }

    /// Whether it takes writes.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if it was detached meanwhile.
    pub fn access(&self) -> Result<DeviceAccess> {
        // It stays as it was attached.
        self.node()?.map(|_| self.access).ok_or_else(|| self.detached("ask what is attached to loop device"))
    }

    /// Whether it goes when its last user closes it: it was detached while somebody had it open, or attached
    /// [`UntilClosed`](LoopLifetime::UntilClosed).
    pub(crate) fn goes_when_closed(&self) -> bool {
        node::is_autoclear(&self.path)
    }

    /// Takes the backing file's size anew, after it grew.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if the device was detached meanwhile.
    pub fn refresh_size(&self) -> Result<()> {
        const REFRESH: &str = "refresh the size of loop device";
        let node = self.node()?.ok_or_else(|| self.detached(REFRESH))?;
        ioctl::loop_set_capacity(node.file.as_fd()).map_err(|error| Error::os(REFRESH, &self.path, error))
    }

    /// Detaches the device and waits, for 10 seconds at most, until it is gone. One that is gone is detached.
    ///
    /// # Errors
    ///
    /// [`Busy`](ErrorKind::Busy) if it is mounted, in any namespace, or otherwise held: then nothing was done; or if
    /// another program keeps it open: then it goes when that program closes it.
    pub fn detach(self) -> Result<()> {
        let Some(node) = self.node()? else { return Ok(()) };
        self.refuse_in_use()?;
        match ioctl::loop_clear(node.file.as_fd()) {
            Ok(()) | Err(nix::Error::ENXIO) => {}
            Err(error) => return Err(Error::os(DETACH, &self.path, error)),
        }
        let Self { path, sequence, _user: user, .. } = self;
        // It goes when the last user closes it, and these are two.
        drop((node, user));
        let end = Instant::now() + PATIENCE;
        // It is gone within a fraction of a millisecond, as a rule.
        let mut pause = Duration::from_micros(50);
        while !node::is_gone(&path, sequence) {
            if Instant::now() >= end {
                let reason = "another program has it open; it goes when that program closes it";
                return Err(Error::new(ErrorKind::Busy, DETACH, reason).at(path));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(TICK);
        }
        Ok(())
    }

    /// Detaches every loop device that is attached to this file or block device, and says how many there were.
    ///
    /// # Errors
    ///
    /// As [`find`](Self::find) and [`detach`](Self::detach); the devices after the one that failed stay.
    pub fn detach_all_of(backing: impl AsRef<Path>) -> Result<usize> {
        let found = Self::find(backing)?;
        let count = found.len();
        found.into_iter().try_for_each(Self::detach)?;
        Ok(count)
    }

    /// The open node; none if the device has gone, or is by now another one's.
    fn node(&self) -> Result<Option<Node>> {
        let node = Node::open(&self.path, DeviceAccess::ReadOnly)?;
        let is_same =
            |node: &Node| node.sequence == self.sequence && !node::is_gone(&self.path, self.sequence);
        let Some(node) = node.filter(is_same) else { return Ok(None) };
        // Before 5.15 nothing else tells that it was detached and attached to another file. Later it is not asked for: the
        // kernel asks the file's server.
        if self.sequence.is_none()
            && table::status(&self.path, self.number)?.is_none_or(|info| info.backing() != self.backing)
        {
            return Ok(None);
        }
        Ok(Some(node))
    }

    fn of(Attached { listed, info }: &Attached) -> Self {
        let (path, number, sequence) = (listed.node(), listed.number, listed.sequence);
        Self { path, number, sequence, backing: info.backing(), access: access_of(info), _user: None }
    }

    fn detached(&self, operation: &'static str) -> Error {
        Error::new(ErrorKind::NotFound, operation, "it was detached").at(&self.path)
    }

    /// Waits a moment for the device to be free: a process that another thread has just forked holds what it inherited
    /// until it executes its program.
    fn refuse_in_use(&self) -> Result<()> {
        let end = Instant::now() + FREE_SOON;
        while self.is_held()? {
            if Instant::now() >= end {
                let reason = "it is mounted or otherwise in use";
                return Err(Error::new(ErrorKind::Busy, DETACH, reason).at(&self.path));
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    /// Whether it is mounted, in any namespace, or opened exclusively.
    fn is_held(&self) -> Result<bool> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::EXCL;
        match with_own_descriptors(|| rustix::fs::open(&self.path, flags, Mode::empty()).map(drop)) {
            Ok(()) | Err(Errno::NXIO | Errno::NODEV) => Ok(false),
            Err(Errno::BUSY) => Ok(true),
            Err(error) => Err(Error::os(DETACH, &self.path, error)),
        }
    }
}

fn attached_to(backing: &Path) -> Result<Vec<Attached>> {
    let failed = |error: io::Error| Error::os("find the loop devices of", backing, error);
    let file = match fs::metadata(backing) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return attached_to_deleted(backing),
        Err(error) => return Err(failed(error)),
    };
    if FileType::from_raw_mode(file.mode()).is_block_device() {
        let name = fs::canonicalize(backing).map_err(failed)?;
        let name = name.file_name().unwrap_or_default().to_owned();
        // Two nodes of one block device are one backing.
        return LoopDevice::over(&[(DeviceNumber::from_dev_t(file.rdev()), name)]);
    }
    let path = fs::canonicalize(backing).map_err(failed)?;
    let is_local = !lookup::leads_into_remote(&path);
    let hint = |listed: &Listed| listed.hint(listed.backing == path, is_local);
    table::attached(hint, |_, info| info.backing() == (file.dev(), file.ino()))
}

/// A file that is gone is known by the name that it had; the kernel shows it without symbolic links.
fn attached_to_deleted(backing: &Path) -> Result<Vec<Attached>> {
    let parent = backing.parent().and_then(|parent| fs::canonicalize(parent).ok());
    let mut name = match (parent, backing.file_name()) {
        (Some(parent), Some(name)) => parent.join(name).into_os_string(),
        _ => backing.as_os_str().to_owned(),
    };
    name.push(" (deleted)");
    let hint =
        |listed: &Listed| if listed.backing.as_os_str() == name { Hint::Likely } else { Hint::Unwanted };
    table::attached(hint, |listed, _| listed.backing.as_os_str() == name)
}

pub(crate) fn access_of(info: &LoopInfo) -> DeviceAccess {
    if info.flags & LoopInfo::READ_ONLY != 0 { DeviceAccess::ReadOnly } else { DeviceAccess::ReadWrite }
}

fn text(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}
