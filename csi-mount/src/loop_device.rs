//! Loop devices: block devices over a file or over another block device.

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::sys::ioctl::{self, LoopInfo};
use crate::{DeviceAccess, DeviceNumber, DeviceUse, Error, ErrorKind, Result};

const CONTROL: &str = "/dev/loop-control";
const ATTACH: &str = "attach a loop device to";
const DETACH: &str = "detach loop device";
/// How long a node may take to appear, a lock to be free, and a detached device to go.
const PATIENCE: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(5);
/// How many times another process may take the free device first.
const RACES: usize = 64;

/// How to attach a loop device.
///
/// ```no_run
/// use csi_mount::{DeviceAccess, LoopDevice, LoopOptions};
///
/// let options = LoopOptions::new().access(DeviceAccess::ReadOnly);
/// let device = LoopDevice::attach("/var/lib/images/vol-1.img", &options)?;
/// println!("{}", device.path().display());
/// device.detach()?;
/// # Ok::<(), csi_mount::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoopOptions {
    access: DeviceAccess,
    lifetime: LoopLifetime,
    cache: LoopCache,
    sector_size: u32,
    mark: Option<String>,
}

/// How long a loop device stays attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LoopLifetime {
    /// Until it is detached, whatever becomes of this process.
    #[default]
    UntilDetached,
    /// Until its last user closes it (`LO_FLAGS_AUTOCLEAR`): a [`LoopDevice`] value is a user, and so is a mount.
    UntilClosed,
}

/// Whether what a loop device reads and writes is also kept in the page cache of its backing file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LoopCache {
    /// It is: twice in memory, but any file will do.
    #[default]
    Buffered,
    /// It isn't, where the backing file's filesystem can do that; else as [`Buffered`](Self::Buffered).
    Direct,
}

impl LoopOptions {
    /// Writable, buffered, attached until detached.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether it takes writes.
    #[must_use]
    pub fn access(mut self, access: DeviceAccess) -> Self {
        self.access = access;
        self
    }

    /// How long it stays attached.
    #[must_use]
    pub fn lifetime(mut self, lifetime: LoopLifetime) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// Whether its data is cached a second time.
    #[must_use]
    pub fn cache(mut self, cache: LoopCache) -> Self {
        self.cache = cache;
        self
    }

    /// The logical block size in bytes: 512 (the default) to 4096, a power of two.
    #[must_use]
    pub fn sector_size(mut self, bytes: u32) -> Self {
        self.sector_size = bytes;
        self
    }

    /// A name of at most 63 bytes that the kernel keeps with the device, in place of the file's.
    pub(crate) fn mark(mut self, mark: impl Into<String>) -> Self {
        self.mark = Some(mark.into());
        self
    }

    fn info(&self, backing: &Path) -> LoopInfo {
        let mut info = LoopInfo::zeroed();
        for (wanted, flag) in [
            (self.access == DeviceAccess::ReadOnly, LoopInfo::READ_ONLY),
            (self.lifetime == LoopLifetime::UntilClosed, LoopInfo::AUTOCLEAR),
            (self.cache == LoopCache::Direct, LoopInfo::DIRECT_IO),
        ] {
            if wanted {
                info.flags |= flag;
            }
        }
        let name = self.mark.as_ref().map_or(backing.as_os_str().as_bytes(), |mark| mark.as_bytes());
        // The last byte stays zero.
        let length = name.len().min(info.file_name.len() - 1);
        info.file_name[..length].copy_from_slice(&name[..length]);
        info
    }
}

/// An attached loop device.
///
/// Dropping it detaches nothing, unless it was attached [`UntilClosed`](LoopLifetime::UntilClosed).
#[derive(Debug)]
pub struct LoopDevice {
    file: File,
    path: PathBuf,
    number: DeviceNumber,
    sequence: Option<u64>,
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
        attach_to(&open_backing(backing, options)?, backing, options)
    }

    /// The loop device that is attached to this file with the same access, or a new one.
    ///
    /// Several processes may ask at once and get the same device: the file's lock (`flock`) is held meanwhile.
    /// Options other than access count only for a new device.
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach), and [`Busy`](ErrorKind::Busy) if the file's lock is held by another program.
    pub fn attach_or_find(backing: impl AsRef<Path>, options: &LoopOptions) -> Result<Self> {
        let backing = backing.as_ref();
        let file = open_backing(backing, options)?;
        // Not on `file`: a device keeps the open file that it is attached to, and would keep the lock with it.
        let _lock = lock(backing)?;
        for found in Self::find(backing)? {
            let info = found.info()?;
            let read_only = info.flags & LoopInfo::READ_ONLY != 0;
            if read_only == (options.access == DeviceAccess::ReadOnly)
                && info.offset == 0
                && info.size_limit == 0
            {
                return Ok(found);
            }
        }
        attach_to(&file, backing, options)
    }

    /// Every loop device that is attached to this file or block device, by the file itself and not by its name.
    ///
    /// A file that was renamed is found under its new name. One that was deleted is found under its old name.
    ///
    /// # Errors
    ///
    /// [`Io`](ErrorKind::Io) if the kernel's list can't be read. Devices that go away meanwhile are left out.
    pub fn find(backing: impl AsRef<Path>) -> Result<Vec<Self>> {
        let backing = backing.as_ref();
        let file = match fs::metadata(backing) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(Error::os("find the loop devices of", backing, error)),
        };
        let mut deleted = backing.as_os_str().as_bytes().to_vec();
        deleted.extend_from_slice(b" (deleted)");
        let mut found = Vec::new();
        for (name, backing_file) in attached()? {
            let Some(device) = Self::open(&Path::new("/dev").join(name), DeviceAccess::ReadOnly)? else {
                continue;
            };
            let Ok(info) = device.info() else { continue };
            let same = match &file {
                // Two nodes of one block device are one backing.
                Some(file) if file.rdev() != 0 => info.rdevice == file.rdev(),
                Some(file) => (info.device, info.inode) == (file.dev(), file.ino()),
                None => backing_file.trim_ascii_end() == deleted,
            };
            if same {
                found.push(device);
            }
        }
        Ok(found)
    }

    /// Every attached loop device that was given this mark, with the number of the block device beneath.
    pub(crate) fn find_marked(mark: &str) -> Result<Vec<(Self, DeviceNumber)>> {
        let mut found = Vec::new();
        for (name, _) in attached()? {
            let Some(device) = Self::open(&Path::new("/dev").join(name), DeviceAccess::ReadOnly)? else {
                continue;
            };
            // A device that went away meanwhile has no mark.
            if let Ok(info) = device.info()
                && text(&info.file_name) == mark.as_bytes()
            {
                found.push((device, DeviceNumber::from_dev_t(info.rdevice)));
            }
        }
        Ok(found)
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
        let read_only = self.info()?.flags & LoopInfo::READ_ONLY != 0;
        Ok(if read_only { DeviceAccess::ReadOnly } else { DeviceAccess::ReadWrite })
    }

    /// Takes the backing file's size anew, after it grew.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if the device was detached meanwhile.
    pub fn refresh_size(&self) -> Result<()> {
        ioctl::loop_set_capacity(self.file.as_fd())
            .map_err(|error| Error::os("refresh the size of loop device", &self.path, error))
    }

    /// Detaches the device and waits, for 10 seconds at most, until it is gone.
    ///
    /// # Errors
    ///
    /// [`Busy`](ErrorKind::Busy) if it is mounted, in any namespace, or otherwise held: then nothing was done; or if
    /// another program keeps it open: then it goes when that program closes it.
    pub fn detach(self) -> Result<()> {
        if self.is_gone() {
            return Ok(());
        }
        if self.in_use()? == DeviceUse::InUse {
            return Err(
                Error::new(ErrorKind::Busy, DETACH, "it is mounted or otherwise in use").at(&self.path)
            );
        }
        match ioctl::loop_clear(self.file.as_fd()) {
            Ok(()) | Err(nix::Error::ENXIO) => {}
            Err(error) => return Err(Error::os(DETACH, &self.path, error)),
        }
        let Self { file, path, number: _, sequence } = self;
        // It goes when the last user closes it, and we are one.
        drop(file);
        let end = Instant::now() + PATIENCE;
        while !is_gone(&path, sequence) {
            if Instant::now() >= end {
                let reason = "another program has it open; it goes when that program closes it";
                return Err(Error::new(ErrorKind::Busy, DETACH, reason).at(path));
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    fn in_use(&self) -> Result<DeviceUse> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::EXCL;
        match rustix::fs::open(&self.path, flags, Mode::empty()) {
            Ok(_) => Ok(DeviceUse::Free),
            Err(Errno::BUSY) => Ok(DeviceUse::InUse),
            Err(error) => Err(Error::os(DETACH, &self.path, error)),
        }
    }

    fn is_gone(&self) -> bool {
        is_gone(&self.path, self.sequence)
    }

    fn info(&self) -> Result<LoopInfo> {
        ioctl::loop_status(self.file.as_fd())
            .map_err(|error| Error::os("ask what is attached to loop device", &self.path, error))
    }

    /// Opens a node; none if there is no device behind it any more.
    fn open(path: &Path, access: DeviceAccess) -> Result<Option<Self>> {
        let mode = match access {
            DeviceAccess::ReadOnly => OFlags::RDONLY,
            DeviceAccess::ReadWrite => OFlags::RDWR,
        };
        let flags = mode | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NXIO | Errno::NODEV | Errno::NOENT) => return Ok(None),
            Err(error) => return Err(Error::os("open loop device", path, error)),
        };
        let failed = |error| Error::os("open loop device", path, error);
        let number = DeviceNumber::from_dev_t(file.metadata().map_err(failed)?.rdev());
        let sequence = ioctl::disk_sequence(file.as_fd()).ok();
        Ok(Some(Self { file, path: path.to_owned(), number, sequence }))
    }
}

/// The names of the attached loop devices, with the names of their backing files.
fn attached() -> Result<Vec<(std::ffi::OsString, Vec<u8>)>> {
    const LIST: &str = "list the loop devices in";
    const BLOCK: &str = "/sys/block";
    let failed = |error| Error::os(LIST, BLOCK, error);
    let mut names = Vec::new();
    for entry in fs::read_dir(BLOCK).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name().as_bytes().starts_with(b"loop")
            && let Ok(backing) = fs::read(entry.path().join("loop/backing_file"))
        {
            names.push((entry.file_name(), backing));
        }
    }
    Ok(names)
}

/// Whether what was attached is no longer: nothing is, or already something else.
fn is_gone(path: &Path, sequence: Option<u64>) -> bool {
    let Some(name) = path.file_name() else { return true };
    let sys = Path::new("/sys/block").join(name);
    if !sys.join("loop/backing_file").exists() {
        return true;
    }
    let now = fs::read_to_string(sys.join("diskseq")).ok().and_then(|text| text.trim().parse().ok());
    sequence.is_some() && now.is_some() && now != sequence
}

fn text(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

fn open_backing(backing: &Path, options: &LoopOptions) -> Result<File> {
    let failed = |error| Error::os(ATTACH, backing, error);
    let metadata = fs::metadata(backing).map_err(failed)?;
    let is_device =
        metadata.rdev() != 0 && rustix::fs::FileType::from_raw_mode(metadata.mode()).is_block_device();
    let refuse = |reason: &str| Err(Error::new(ErrorKind::InvalidInput, ATTACH, reason).at(backing));
    if !is_device && !metadata.is_file() {
        return refuse("neither a file nor a block device");
    }
    if !is_device && metadata.len() < 512 {
        return refuse("the file is empty, or shorter than a sector");
    }
    let sector = options.sector_size;
    if sector != 0 && !(sector.is_power_of_two() && (512..=4096).contains(&sector)) {
        return refuse("the sector size is not a power of two from 512 to 4096");
    }
    fs::OpenOptions::new()
        .read(true)
        .write(options.access == DeviceAccess::ReadWrite)
        .open(backing)
        .map_err(failed)
}

fn attach_to(file: &File, backing: &Path, options: &LoopOptions) -> Result<LoopDevice> {
    let control =
        rustix::fs::open(CONTROL, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| {
            let failed = Error::os(ATTACH, backing, error).because(CONTROL);
            match failed.kind() {
                ErrorKind::NotFound => failed
                    .as_kind(ErrorKind::Unsupported)
                    .mend("load the kernel module loop, and give a container the host's /dev"),
                _ => failed,
            }
        })?;
    let failed = |error: nix::Error| Error::os(ATTACH, backing, error);
    for _ in 0..RACES {
        let number = ioctl::loop_free_number(control.as_fd()).map_err(failed)?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let node = wait_for_node(&path, options.access)?;
        let info = options.info(backing);
        let configured = ioctl::loop_configure(node.file.as_fd(), file.as_fd(), options.sector_size, info);
        let configured = match configured {
            // A kernel before 5.8 knows no such request, and says so in either way.
            Err(nix::Error::ENOTTY | nix::Error::EINVAL) => {
                ioctl::loop_set_up_in_steps(node.file.as_fd(), file.as_fd(), options.sector_size, info)
            }
            other => other,
        };
        match configured {
            Ok(()) => {
                let sequence = ioctl::disk_sequence(node.file.as_fd()).ok();
                return Ok(LoopDevice { sequence, ..node });
            }
            // Another process was faster with this one.
            Err(nix::Error::EBUSY) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let reason = format!("{RACES} free loop devices in a row were taken by others");
    Err(Error::new(ErrorKind::Busy, ATTACH, reason).at(backing))
}

/// A new device's node appears a moment after its number is known.
///
/// What is attached through a node that was opened for reading is read-only, so it is opened as it is to be used.
fn wait_for_node(path: &Path, access: DeviceAccess) -> Result<LoopDevice> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(device) = LoopDevice::open(path, access)? {
            return Ok(device);
        }
        if Instant::now() >= end {
            return Err(Error::new(ErrorKind::NotFound, "open loop device", "its node did not appear")
                .at(path)
                .mend("give a container the host's /dev"));
        }
        std::thread::sleep(TICK);
    }
}

fn lock(backing: &Path) -> Result<File> {
    let file = File::open(backing).map_err(|error| Error::os(ATTACH, backing, error))?;
    let end = Instant::now() + PATIENCE;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < end => std::thread::sleep(TICK),
            Err(Errno::WOULDBLOCK) => {
                let reason = "another program has locked the file";
                return Err(Error::new(ErrorKind::Busy, ATTACH, reason).at(backing));
            }
            Err(error) => return Err(Error::os(ATTACH, backing, error)),
        }
    }
}
