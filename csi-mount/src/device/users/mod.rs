//! The users of a block device: one answer for every operation that needs the device exclusively.

mod openers;

use std::ffi::OsString;
use std::fmt;
#[cfg(any(test, feature = "remote"))]
use std::fs;
use std::path::PathBuf;

use crate::device::block_device::{BlockDevice, DeviceAccess, DeviceUse};
use crate::device::loop_device::{self, LoopDevice};
use crate::device::mount_places::{self, MountPlace, UseKind};
use crate::device::sysfs::{Overlap, Sysfs};
use crate::error::{Error, ErrorKind, Result};
use crate::mounted::users;
use crate::path::lookup;
use crate::sys::ids::DeviceNumber;

/// How many users an error names.
const MAX_NAMED: usize = 3;

/// A user of a block device: see [`Devices::users`](crate::Devices::users).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceUser {
    /// A filesystem on it is mounted.
    Mount(MountPlace),
    /// A node of the device is bound there: the device is published raw.
    Published {
        /// Where.
        place: MountPlace,
        /// Whether the device accepts writes there.
        access: DeviceAccess,
    },
    /// A loop device is attached to it, or to a part of it.
    LoopDevice {
        /// The loop device's node.
        path: PathBuf,
        /// Whether the loop device accepts writes.
        access: DeviceAccess,
    },
    /// A kernel device is built on it: a device mapper device, a RAID, bcache.
    Holder(String),
    /// It is swap space.
    Swap(PathBuf),
    /// A process has it open. Listed only if nothing else explains that the device is held exclusively.
    Process {
        /// The process's number in this process's pid namespace.
        id: u32,
        /// The name of its program, at most 15 bytes.
        name: String,
    },
    /// The kernel reports that the device is held exclusively, and nothing that is visible from here
    /// explains it.
    Unknown,
}

/// Text for a message: `it is mounted at /mnt`.
impl fmt::Display for DeviceUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let for_reading = |access: &DeviceAccess| match access {
            DeviceAccess::ReadOnly => " for reading",
            DeviceAccess::ReadWrite => "",
        };
        match self {
            Self::Mount(place) => write!(f, "it is mounted at {place}"),
            Self::Published { place, access } => {
                write!(f, "it is published raw{} at {place}", for_reading(access))
            }
            Self::LoopDevice { path, access } => {
                write!(f, "the loop device {} is attached to it{}", path.display(), for_reading(access))
            }
            Self::Holder(name) => write!(f, "the device {name} is built on it"),
            Self::Swap(path) => write!(f, "the node uses it as swap space: {}", path.display()),
            Self::Process { id, name } => write!(f, "process {id} ({name}) has it open"),
            Self::Unknown => f.write_str(
                "it is held exclusively: mounted in a mount namespace that is not visible to this process, \
                 or opened exclusively",
            ),
        }
    }
}

impl DeviceUser {
    /// How to end the use.
    fn hint(&self) -> &'static str {
        match self {
            Self::Mount(MountPlace { process: Some(_), .. })
            | Self::Published { place: MountPlace { process: Some(_), .. }, .. } => {
                "stop that process or delete its pod, or unmount it in that mount namespace (nsenter -t PID -m)"
            }
            Self::Mount(_) => "unmount it there",
            Self::Published { .. } => "unpublish it first",
            Self::LoopDevice { .. } => {
                "unpublish the target that it was made for, even if the target no longer exists, or detach \
                 it (losetup -d)"
            }
            Self::Holder(_) => "stop the device that is built on it",
            Self::Swap(_) => "stop using it as swap space (swapoff)",
            Self::Process { .. } => "stop that process",
            Self::Unknown => {
                "stop what holds it: on the node, `grep -l MAJOR:MINOR /proc/[0-9]*/mountinfo` lists the processes \
                 that see it mounted (search for its path if it has a btrfs), and /proc/PID/cgroup names the pod. \
                 With hostPID the driver names them itself"
            }
        }
    }

    /// Whether this user only reads the device, and does not stop others from opening it exclusively.
    fn is_reader(&self) -> bool {
        match self {
            Self::Published { access, .. } | Self::LoopDevice { access, .. } => {
                *access == DeviceAccess::ReadOnly
            }
            _ => false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tolerated {
    /// None: the operation would write beneath them.
    None,
    /// Users that have the device read-only and not exclusively.
    Readers,
    /// Readers, and mounts of the device: the kernel shares one filesystem among its mounts. The kernel
    /// itself refuses a conflicting mount, so the device is not opened exclusively for this check.
    Mounts,
}

impl Tolerated {
    fn includes(self, user: &DeviceUser) -> bool {
        match self {
            Self::None => false,
            Self::Readers => user.is_reader(),
            Self::Mounts => {
                user.is_reader() || matches!(user, DeviceUser::Mount(_) | DeviceUser::Process { .. })
            }
        }
    }
}

/// Refuses a device that has users other than the tolerated ones.
pub(crate) fn refuse(device: &BlockDevice, operation: &'static str, tolerated: Tolerated) -> Result<()> {
    let mut users = match tolerated {
        Tolerated::Mounts => identified_users(&[device.number()])?,
        Tolerated::None | Tolerated::Readers => all_users(device)?,
    };
    users.retain(|user| !tolerated.includes(user));
    if users.is_empty() {
        return Ok(());
    }
    Err(in_use_error(operation, &format!("the device ({})", device.number()), &users).at(device.path()))
}

pub(crate) fn all_users(device: &BlockDevice) -> Result<Vec<DeviceUser>> {
    // This is checked first: a user that comes after it is then not mistaken for one that was found.
    let held = device.in_use()?;
    let mut users = identified_users(&[device.number()])?;
    let explains = |user: &DeviceUser| {
        matches!(user, DeviceUser::Mount(_) | DeviceUser::Holder(_) | DeviceUser::Swap(_))
    };
    if held == DeviceUse::InUse && !users.iter().any(explains) {
        let openers = openers::openers(device.number(), MAX_NAMED);
        if openers.is_empty() {
            users.push(DeviceUser::Unknown);
        }
        users.extend(openers);
    }
    Ok(users)
}

/// The processes that have the device open, exclusively or not, except this one and those that it forked and
/// that run no other program: they wait for a disk that does not answer.
#[cfg(feature = "remote")]
pub(crate) fn open_in(number: DeviceNumber) -> Vec<DeviceUser> {
    let parent = format!("PPid:\t{}", std::process::id());
    let program = |id: &str| fs::read_link(format!("/proc/{id}/exe")).ok();
    let is_child = |id: u32| {
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        status.lines().any(|line| line == parent) && program(&id.to_string()) == program("self")
    };
    let mut found = openers::openers(number, usize::MAX);
    found.retain(|user| !matches!(user, DeviceUser::Process { id, .. } if is_child(*id)));
    found
}

/// As [`all_users`], for several devices, without users that are visible only as an exclusive holder.
pub(crate) fn identified_users(devices: &[DeviceNumber]) -> Result<Vec<DeviceUser>> {
    identified_users_in(&Sysfs::system(), devices)
}

fn identified_users_in(sysfs: &Sysfs, devices: &[DeviceNumber]) -> Result<Vec<DeviceUser>> {
    let overlaps: Vec<_> = devices.iter().flat_map(|device| sysfs.overlaps(*device)).collect();
    let mut users: Vec<_> = overlaps
        .iter()
        .flat_map(|overlap| sysfs.holders_at(overlap.number))
        .map(DeviceUser::Holder)
        .collect();
    users.extend(swap_spaces(&overlaps).map(DeviceUser::Swap));
    let mut nodes: Vec<(DeviceNumber, OsString)> =
        overlaps.iter().map(|overlap| (overlap.number, overlap.name.clone())).collect();
    for over in LoopDevice::over(&nodes)? {
        let common = |overlap: &Overlap| {
            overlap.number.dev_t() == over.info.rdevice && has_common_bytes(overlap, &over.info)
        };
        if overlaps.iter().any(common) {
            let path = over.listed.node();
            nodes.push((over.listed.number, path.file_name().unwrap_or_default().to_owned()));
            users.push(DeviceUser::LoopDevice { path, access: loop_device::access_of(&over.info) });
        }
    }
    // Users at a path are named first.
    let mut at_places: Vec<DeviceUser> =
        mount_places::find(&nodes)?.into_iter().map(|(kind, place)| at_place(kind, place, sysfs)).collect();
    // Of these, writers first: if there are many users, only some are named.
    at_places.sort_by_key(DeviceUser::is_reader);
    at_places.append(&mut users);
    Ok(at_places)
}

fn at_place(kind: UseKind, place: MountPlace, sysfs: &Sysfs) -> DeviceUser {
    match kind {
        UseKind::Filesystem => DeviceUser::Mount(place),
        UseKind::Node(number) => {
            let access =
                if sysfs.is_read_only(number) { DeviceAccess::ReadOnly } else { DeviceAccess::ReadWrite };
            DeviceUser::Published { place, access }
        }
    }
}

fn has_common_bytes(overlap: &Overlap, over: &crate::sys::ioctl::LoopInfo) -> bool {
    let end = match over.size_limit {
        0 => u64::MAX,
        limit => over.offset.saturating_add(limit),
    };
    over.offset < overlap.range.end && overlap.range.start < end
}

/// The swap spaces on these devices. The kernel shows only their paths, which can be of another mount namespace:
/// one that leads to no node here counts by its name.
fn swap_spaces(devices: &[Overlap]) -> impl Iterator<Item = PathBuf> {
    users::swap_spaces().into_iter().filter(|path| {
        let node = lookup::cached_node(path);
        devices
            .iter()
            .any(|device| node.map_or(path.file_name() == Some(&device.name), |node| node == device.number))
    })
}

/// The error that refuses a device because of these users, some of which it names.
pub(crate) fn in_use_error(operation: &'static str, device: &str, users: &[DeviceUser]) -> Error {
    let error = Error::new(ErrorKind::Busy, operation, format!("{device} is in use: {}", named(users)));
    match users.first() {
        Some(user) => error.hint(user.hint()),
        None => error,
    }
}

/// As [`in_use_error`], with the device's path and number.
pub(crate) fn device_in_use_error(
    operation: &'static str,
    device: &BlockDevice,
    users: &[DeviceUser],
) -> Error {
    let name = format!("the device {} ({})", device.path().display(), device.number());
    in_use_error(operation, &name, users)
}

/// The first few users, and how many more there are.
pub(crate) fn named(users: &[impl fmt::Display]) -> String {
    let mut text = users.iter().take(MAX_NAMED).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if users.len() > MAX_NAMED {
        text.push_str(&format!("; and {} more", users.len() - MAX_NAMED));
    }
    text
}

impl BlockDevice {
    /// See [`Devices::users`](crate::Devices::users).
    pub(crate) fn users(&self) -> Result<Vec<DeviceUser>> {
        all_users(self)
    }
}

#[cfg(test)]
mod tests;
