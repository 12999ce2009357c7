//! Attaching: opens the backing file, finds a free device, and connects them.

use std::fs::{self, File};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::node::{self, Node};
use super::{DETACH_TIME_LIMIT, LoopDevice, LoopOptions, POLL_INTERVAL, table};
use crate::device::block_device::DeviceAccess;
use crate::device::mount_places;
use crate::error::{Error, ErrorKind, Result};
use crate::path::paths;
use crate::sys::descriptor::Locked;
use crate::sys::features::{self, Feature};
use crate::sys::ioctl::{self, LoopInfo};

const CONTROL: &str = "/dev/loop-control";
const ATTACH: &str = "attach a loop device to";
/// How many free devices are tried.
const MAX_RACES: usize = 64;

pub(super) fn open_backing(backing: &Path, options: &LoopOptions) -> Result<File> {
    let failed = |error| Error::os(ATTACH, backing, error);
    paths::text(ATTACH, backing)?;
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

pub(super) fn attach_to(file: &File, backing: &Path, options: &LoopOptions) -> Result<LoopDevice> {
    let control =
        rustix::fs::open(CONTROL, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| {
            let failed = Error::os(ATTACH, backing, error).add_reason(CONTROL);
            match failed.kind() {
                ErrorKind::NotFound => failed
                    .with_kind(ErrorKind::Unsupported)
                    .hint("load the kernel module loop, and give a container the host's /dev"),
                _ => failed,
            }
        })?;
    let failed = |error: Errno| Error::os(ATTACH, backing, error);
    let mut lowest = 0;
    for _ in 0..MAX_RACES {
        let number = free_number(control.as_fd(), lowest).map_err(failed)?;
        let path = node_of(number);
        let node = wait_for_node(&path, options.access)?;
        if let Some(place) = mount_places::bound_at(node.number)? {
            tracing::info!(device = %path.display(), %place, "a free loop device is not used: its node is bound");
            lowest = number + 1;
            continue;
        }
        match configure(&node, file, options.sector_size, options.info(backing)) {
            Ok(()) => {
                // From now on it has a new disk sequence number.
                let sequence = ioctl::disk_sequence(node.file.as_fd()).ok();
                if let Ok(Some(info)) = node.info() {
                    table::remember(node.number, sequence, info);
                }
                let access = options.access;
                let backing = rustix::fs::fstat(file).map_err(|error| Error::os(ATTACH, backing, error))?;
                let backing = (backing.st_dev, backing.st_ino);
                let Node { path, number, .. } = node;
                return Ok(LoopDevice { path, number, sequence, backing, access });
            }
            // Another process took this device first.
            Err(Errno::BUSY) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let reason = format!(
        "{MAX_RACES} free loop devices in a row were taken by other processes, or their nodes are bound somewhere"
    );
    Err(Error::new(ErrorKind::Busy, ATTACH, reason).at(backing))
}

/// The number of a free device that is not below `lowest`.
///
/// A number whose node is still bound somewhere is not used again, though the device is free: a bound node
/// keeps nothing attached. A container that copied the mounts of the node has such a bind until it ends. It
/// would give access to the next volume with the number, and that volume would look as if it were in use.
fn free_number(control: BorrowedFd<'_>, lowest: u32) -> rustix::io::Result<u32> {
    let free = ioctl::loop_free_number(control)?;
    if free >= lowest {
        return Ok(free);
    }
    // The kernel returns no other than its lowest.
    let number = (lowest..).find(|number| !node::is_attached(&node_of(*number))).unwrap_or(free);
    ioctl::loop_add(control, number)?;
    Ok(number)
}

fn node_of(number: u32) -> PathBuf {
    format!("/dev/loop{number}").into()
}

fn configure(node: &Node, backing: &File, sector_size: u32, info: LoopInfo) -> rustix::io::Result<()> {
    let node = node.file.as_fd();
    let backing = backing.as_fd();
    if features::has(Feature::LoopConfigure) {
        match ioctl::loop_configure(node, backing, sector_size, info) {
            // A kernel before 5.8 does not know this request and returns one of these errors.
            Err(Errno::NOTTY | Errno::INVAL) => {}
            other => return other,
        }
    }
    ioctl::loop_set_up_in_steps(node, backing, sector_size, info)
}

/// The node of a new device appears a moment after its number is known.
///
/// A device that is attached through a node opened for reading is read-only, so the node is opened with the
/// requested access.
fn wait_for_node(path: &Path, access: DeviceAccess) -> Result<Node> {
    let end = Instant::now() + DETACH_TIME_LIMIT;
    loop {
        if let Some(device) = Node::open(path, access)? {
            return Ok(device);
        }
        if Instant::now() >= end {
            return Err(Error::new(ErrorKind::NotFound, "open loop device", "its node did not appear")
                .at(path)
                .hint("give a container the host's /dev"));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Holds the lock of a backing file.
pub(super) fn lock(backing: &Path) -> Result<Locked<File>> {
    let file = File::open(backing).map_err(|error| Error::os(ATTACH, backing, error))?;
    match Locked::within(file, DETACH_TIME_LIMIT) {
        Ok(locked) => Ok(locked),
        Err(Errno::WOULDBLOCK) => {
            let reason = "another program has locked the file";
            Err(Error::new(ErrorKind::Busy, ATTACH, reason).at(backing))
        }
        Err(error) => Err(Error::os(ATTACH, backing, error)),
    }
}
