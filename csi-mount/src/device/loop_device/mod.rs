//! Loop devices: block devices over a file or over another block device.

mod attach;
pub(crate) mod node;
mod options;
mod table;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use self::node::Node;
pub use self::options::{LoopCache, LoopOptions};
pub(crate) use self::table::{Attached, attached_as};
use self::table::{ListedDevice, Relevance, likely_if};
use crate::bounded::in_flight;
use crate::device::block_device::DeviceAccess;
use crate::error::{Error, ErrorKind, Result};
use crate::path::lookup;
use crate::sys::features::{self, Feature};
use crate::sys::ids::DeviceNumber;
use crate::sys::ioctl::{self, LoopInfo};
use crate::sys::own_descriptors::with_own_descriptors;

const DETACH: &str = "detach loop device";
/// How long to wait for a node to appear, a lock to be released, and a detached device to go away.
const DETACH_TIME_LIMIT: Duration = Duration::from_secs(10);
/// How long to wait for an exclusive user to close a device before the device counts as in use.
const BUSY_RETRY_LIMIT: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// An attached loop device.
///
/// It stays attached when this value is dropped. Several values of one device can exist; a value does not
/// stop another from detaching the device.
///
/// If the device is detached elsewhere and its number is attached to something else, this value does not
/// touch that. Before Linux 5.15 only the backing file shows this: do not keep a value while the file can
/// be deleted and a new file can get its inode number.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    number: DeviceNumber,
    sequence: Option<u64>,
    /// The device and inode of the file that it was attached to.
    backing: (u64, u64),
    access: DeviceAccess,
}

impl LoopDevice {
    /// Attaches a new loop device to a file or block device, also if another one is already attached to it.
    ///
    /// `LOOP_CONFIGURE` does it in one step. Before Linux 5.8 the device is visible without its settings
    /// for a moment.
    pub fn attach(backing: impl AsRef<Path>, options: &LoopOptions) -> Result<Self> {
        let backing = backing.as_ref();
        attach::attach_to(&attach::open_backing(backing, options)?, backing, options)
    }

    /// See [`Devices::loop_attach`](crate::Devices::loop_attach).
    pub fn attach_or_find(backing: impl AsRef<Path>, options: &LoopOptions) -> Result<Self> {
        let backing = backing.as_ref();
        let file = attach::open_backing(backing, options)?;
        // Not on `file`: a loop device keeps its backing file open, and would keep the lock with it.
        let _lock = attach::lock(backing)?;
        let wanted =
            |info: &LoopInfo| access_of(info) == options.access && info.offset == 0 && info.size_limit == 0;
        let end = Instant::now() + DETACH_TIME_LIMIT;
        loop {
            let attached = attached_to(backing)?;
            let Some(attached) = attached.iter().find(|attached| wanted(&attached.info)) else {
                return attach::attach_to(&file, backing, options);
            };
            let found = Self::from_attached(attached);
            // A mounted device stays as long as the mount. A second device for the file would be a second
            // cache of it.
            if !found.is_autoclear() || found.is_held()? {
                return Ok(found);
            }
            if Instant::now() >= end {
                let reason =
                    format!("{} was detached, and another program has it open", found.path.display());
                return Err(Error::new(ErrorKind::Busy, "attach a loop device to", reason).at(backing));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// See [`Devices::loop_devices`](crate::Devices::loop_devices).
    pub fn find(backing: impl AsRef<Path>) -> Result<Vec<Self>> {
        Ok(attached_to(backing.as_ref())?.iter().map(Self::from_attached).collect())
    }

    /// Returns every attached loop device whose mark is wanted, with the number of the block device
    /// beneath.
    ///
    /// The mark is not in sysfs, so each loop device is asked. A name alone is no mark: ours are read-only and
    /// over a block device.
    pub(crate) fn find_marked(is_wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<(Self, DeviceNumber)>> {
        let hint = |listed: &ListedDevice| likely_if(lookup::cached_node(&listed.backing()).is_some());
        let marked = table::attached(hint, |_, info| {
            info.rdevice != 0 && access_of(info) == DeviceAccess::ReadOnly && is_wanted(text(&info.file_name))
        })?;
        let found =
            |found: &Attached| (Self::from_attached(found), DeviceNumber::from_dev_t(found.info.rdevice));
        Ok(marked.iter().map(found).collect())
    }

    /// The loop devices that are attached to one of these block devices, given with their kernel names.
    pub(crate) fn over(devices: &[(DeviceNumber, OsString)]) -> Result<Vec<Attached>> {
        let hint = |listed: &ListedDevice| likely_if(listed.can_be_node_of(devices));
        let is_over = |info: &LoopInfo| {
            devices.iter().any(|(number, _)| *number == DeviceNumber::from_dev_t(info.rdevice))
        };
        table::attached(hint, |_, info| info.rdevice != 0 && is_over(info))
    }

    /// The read-only loop devices over this block device that never got a name. Before Linux 5.8, a process
    /// that is killed while it attaches one leaves it so. Later kernels attach and name it in one call.
    pub(crate) fn find_unfinished(device: &Path) -> Result<Vec<Self>> {
        if features::has(Feature::LoopConfigure) {
            return Ok(Vec::new());
        }
        let is_unfinished = |info: &LoopInfo| {
            info.rdevice != 0 && text(&info.file_name).is_empty() && access_of(info) == DeviceAccess::ReadOnly
        };
        let attached = attached_to(device)?;
        Ok(attached
            .iter()
            .filter(|attached| is_unfinished(&attached.info))
            .map(Self::from_attached)
            .collect())
    }

    /// Whether these are two loop devices over the same part of one file or device, or one over the other.
    pub(crate) fn are_of_one_backing(one: DeviceNumber, other: DeviceNumber) -> Result<bool> {
        let is_either = |listed: &ListedDevice| [one, other].contains(&listed.number);
        let hint =
            |listed: &ListedDevice| if is_either(listed) { Relevance::Likely } else { Relevance::Unwanted };
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

    /// Returns whether the device accepts writes.
    pub fn access(&self) -> Result<DeviceAccess> {
        // The access does not change while it is attached.
        self.node()?.map(|_| self.access).ok_or_else(|| self.detached("read the status of loop device"))
    }

    /// Whether the device goes away when its last user closes it: it was detached while somebody had it
    /// open.
    pub(crate) fn is_autoclear(&self) -> bool {
        node::is_autoclear(&self.path)
    }

    /// See [`Devices::loop_refresh`](crate::Devices::loop_refresh).
    pub fn refresh_size(&self) -> Result<()> {
        const REFRESH: &str = "refresh the size of loop device";
        let node = self.node()?.ok_or_else(|| self.detached(REFRESH))?;
        ioctl::loop_set_capacity(node.file.as_fd()).map_err(|error| Error::os(REFRESH, &self.path, error))
    }

    /// Detaches the device and waits up to 10 seconds until it is gone. It succeeds if the device is
    /// already gone.
    pub fn detach(self) -> Result<()> {
        let Some(node) = self.node()? else { return Ok(()) };
        self.refuse_in_use()?;
        match ioctl::loop_clear(node.file.as_fd()) {
            Ok(()) | Err(Errno::NXIO) => {}
            Err(error) => return Err(Error::os(DETACH, &self.path, error)),
        }
        let Self { path, sequence, .. } = self;
        // It goes away when the last user closes it, and this is one.
        drop(node);
        let end = Instant::now() + DETACH_TIME_LIMIT;
        // It is normally gone within a fraction of a millisecond.
        let mut pause = Duration::from_micros(50);
        while !node::is_gone(&path, sequence) {
            if Instant::now() >= end {
                let reason = "another program has it open; it is detached when that program closes it";
                return Err(Error::new(ErrorKind::Busy, DETACH, reason).at(path));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(POLL_INTERVAL);
        }
        Ok(())
    }

    /// See [`Devices::loop_detach`](crate::Devices::loop_detach).
    pub fn detach_all(backing: impl AsRef<Path>) -> Result<usize> {
        let found = Self::find(backing)?;
        let count = found.len();
        found.into_iter().try_for_each(Self::detach)?;
        Ok(count)
    }

    /// The device with this number, if it is a loop device.
    pub(crate) fn with_number(number: DeviceNumber) -> Result<Option<Self>> {
        let is_it = |listed: &ListedDevice| listed.number == number;
        let hint =
            |listed: &ListedDevice| if is_it(listed) { Relevance::Likely } else { Relevance::Unwanted };
        let attached = table::attached(hint, |listed, _| is_it(listed))?;
        Ok(attached.first().map(Self::from_attached))
    }

    /// The open node; none if the device is gone, or is now attached to something else.
    fn node(&self) -> Result<Option<Node>> {
        let node = Node::open(&self.path, DeviceAccess::ReadOnly)?;
        let is_same =
            |node: &Node| node.sequence == self.sequence && !node::is_gone(&self.path, self.sequence);
        let Some(node) = node.filter(is_same) else { return Ok(None) };
        // Before Linux 5.15 only this shows that it was detached and attached to another file. Later
        // kernels are not asked: the kernel would ask the file's server.
        if self.sequence.is_none()
            && table::status(&self.path, self.number)?.is_none_or(|info| info.backing() != self.backing)
        {
            return Ok(None);
        }
        Ok(Some(node))
    }

    fn from_attached(Attached { listed, info }: &Attached) -> Self {
        let path = listed.node();
        let number = listed.number;
        let sequence = listed.sequence;
        Self { path, number, sequence, backing: info.backing(), access: access_of(info) }
    }

    fn detached(&self, operation: &'static str) -> Error {
        Error::new(ErrorKind::NotFound, operation, "it was detached").at(&self.path)
    }

    /// Waits for the device to be free: a process that another thread has just forked holds the descriptors that
    /// it inherited until it executes its program. Children of this crate are known, others have a moment.
    fn refuse_in_use(&self) -> Result<()> {
        if self.is_held()? {
            in_flight::wait_for_descriptors(DETACH_TIME_LIMIT);
        }
        let end = Instant::now() + BUSY_RETRY_LIMIT;
        while self.is_held()? {
            if Instant::now() >= end {
                let reason = "it is mounted or otherwise in use";
                return Err(Error::new(ErrorKind::Busy, DETACH, reason).at(&self.path));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Whether it is mounted in any namespace, or opened exclusively.
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
    // A local filesystem answers, so a silent device is not over a file of it.
    let otherwise = if lookup::leads_into_remote(&path) { Relevance::Possible } else { Relevance::Unlikely };
    let hint = |listed: &ListedDevice| if listed.backing() == path { Relevance::Likely } else { otherwise };
    table::attached(hint, |_, info| info.backing() == (file.dev(), file.ino()))
}

/// A deleted file is found by its old name, which the kernel shows without symbolic links, on the filesystem of
/// its directory, or of the last one above that still exists. Nothing but the name is known of it, and a file that
/// exists can have the name that the kernel shows for a deleted one.
fn attached_to_deleted(backing: &Path) -> Result<Vec<Attached>> {
    let failed = |error: io::Error| Error::os("find the loop devices of", backing, error);
    let absolute = std::path::absolute(backing).map_err(failed)?;
    let Some((above, below)) = existing_above(&absolute).map_err(failed)? else { return Ok(Vec::new()) };
    let device = fs::metadata(&above).map_err(failed)?.dev();
    let mut shown = above.join(below).into_os_string();
    shown.push(" (deleted)");
    let existing = match fs::symlink_metadata(&shown) {
        Ok(found) => Some((found.dev(), found.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    let is_shown = |listed: &ListedDevice| listed.backing().as_os_str() == shown;
    let hint = |listed: &ListedDevice| if is_shown(listed) { Relevance::Likely } else { Relevance::Unwanted };
    table::attached(hint, |listed, info| {
        is_shown(listed) && info.device == device && existing != Some(info.backing())
    })
}

/// The last existing directory above a path, without symbolic links, and the rest of the path.
fn existing_above(path: &Path) -> io::Result<Option<(PathBuf, &Path)>> {
    for above in path.ancestors().skip(1) {
        match fs::canonicalize(above) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => {
                let below = path.strip_prefix(above).map_err(io::Error::other)?;
                return found.map(|found| Some((found, below)));
            }
        }
    }
    Ok(None)
}

pub(crate) fn access_of(info: &LoopInfo) -> DeviceAccess {
    if info.flags & LoopInfo::READ_ONLY != 0 { DeviceAccess::ReadOnly } else { DeviceAccess::ReadWrite }
}

fn text(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

#[cfg(test)]
mod tests {
    mod needs_root {
        use super::super::*;
        use crate::sys::descriptor_copies::Copies;

        /// The child of another thread has the descriptors of this process until it runs its program. On a machine
        /// that has other work that can take longer than a moment.
        #[test]
        fn a_device_is_detached_when_a_forked_child_has_closed_its_copies() {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("image");
            fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
            let device = LoopDevice::attach(&file, &LoopOptions::new()).unwrap();
            let copies = Copies::begin();
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::EXCL;
            let copy = rustix::fs::open(device.path(), flags, Mode::empty()).unwrap();
            let child = std::thread::spawn(move || {
                std::thread::sleep(2 * BUSY_RETRY_LIMIT);
                drop(copy);
                drop(copies);
            });
            device.detach().unwrap();
            child.join().unwrap();
            assert!(LoopDevice::find(&file).unwrap().is_empty());
        }
    }
}
