//! Who uses a mount, so that an error can name them.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::place::target::Seen;
use crate::table::mountinfo;
use crate::{DeviceNumber, MountEntry, MountId, MountState, Result, Target, parse_mountinfo};

/// How long the processes are gone through: some of many are better than a late answer.
const SCAN_LIMIT: Duration = Duration::from_secs(1);
/// How many users are named.
const NAMED: usize = 8;

/// Something that keeps a mount busy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MountUser {
    /// A process that has a file open on it, or its working directory, root or program.
    Process {
        /// Its number in this process's namespace of processes.
        id: u32,
        /// The name of its program, of 15 bytes at most.
        name: String,
    },
    /// A mount that is mounted below it.
    Mount(PathBuf),
    /// A loop device with its backing file there.
    LoopDevice(PathBuf),
    /// A swap file there.
    Swap(PathBuf),
}

/// `process 71 (sleep)`
impl fmt::Display for MountUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { id, name } => write!(f, "process {id} ({name})"),
            Self::Mount(path) => write!(f, "{} is mounted below it", path.display()),
            Self::LoopDevice(path) => write!(f, "loop device {}", path.display()),
            Self::Swap(path) => write!(f, "swap file {}", path.display()),
        }
    }
}

/// Who keeps the mount at the target busy, as far as can be seen: at most eight of them, within a second.
///
/// Only processes of this process's pid namespace are seen, so a driver in a container needs `hostPID` to see
/// those of pods. A file that is mapped into memory and closed is not noticed: to look there can hang. Nothing is
/// asked of the filesystem. Linux 5.8; before that no process is found, only the rest.
///
/// # Errors
/// As [`Target::state`] and [`mounts`](crate::mounts).
#[doc(alias = "fuser")]
pub fn mount_users(target: &Target) -> Result<Vec<MountUser>> {
    let MountState::Mounted(_) = target.state()? else { return Ok(Vec::new()) };
    let seen = target.look("look for users of")?;
    let mut users: Vec<_> = mounts_below(&seen)?.into_iter().map(MountUser::Mount).collect();
    users.extend(loop_devices(target.path()));
    users.extend(swap_files(target.path()));
    let (mount, device) = (seen.facts.mount, seen.facts.device);
    let root = mountinfo::mount_by_id(mount)?.map(|entry| entry.root).unwrap_or_default();
    let place = Place { mount, device, root };
    // This process's own look at it is none of its users.
    drop(seen);
    users.truncate(NAMED);
    processes(&place, NAMED - users.len(), &mut users);
    Ok(users)
}

/// The paths of the mounts that are mounted on this one.
pub(crate) fn mounts_below(seen: &Seen) -> Result<Vec<PathBuf>> {
    let mounts = mountinfo::mounts()?.into_iter().filter(|entry| entry.parent == seen.facts.mount);
    Ok(mounts.map(|entry| entry.mount_point).collect())
}

#[derive(Debug)]
struct Place {
    mount: MountId,
    device: DeviceNumber,
    /// What of the filesystem is mounted.
    root: PathBuf,
}

/// Adds the processes on that very mount, or, when there are none, those on another mount of the same directory:
/// copies of it in other namespaces make it busy, too.
fn processes(place: &Place, most: usize, users: &mut Vec<MountUser>) {
    let deadline = Instant::now() + SCAN_LIMIT;
    let Ok(all) = fs::read_dir("/proc") else { return };
    let (mut on_mount, mut on_copy) = (Vec::new(), Vec::new());
    for entry in all.flatten() {
        if Instant::now() > deadline || on_mount.len() >= most {
            break;
        }
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let process = entry.path();
        // The command line is not read: it waits for the process's memory, which may wait for the filesystem.
        let name = || fs::read_to_string(process.join("comm")).unwrap_or_default().trim_end().to_owned();
        match nearest(place, &process) {
            Some(Distance::Mount) => on_mount.push(MountUser::Process { id, name: name() }),
            Some(Distance::Copy) => on_copy.push(MountUser::Process { id, name: name() }),
            None => {}
        }
    }
    users.extend(if on_mount.is_empty() { on_copy } else { on_mount }.into_iter().take(most));
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    Mount,
    Copy,
}

/// How near a process's files come to the place.
fn nearest(place: &Place, process: &Path) -> Option<Distance> {
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|file| file.path());
    let others = ["cwd", "root", "exe"].map(|name| process.join(name));
    let mounts = others.into_iter().chain(files).filter_map(|link| mount_on_device(place, &link));
    let mounts: BTreeSet<MountId> = mounts.collect();
    if mounts.contains(&place.mount) {
        return Some(Distance::Mount);
    }
    if mounts.is_empty() {
        return None;
    }
    // The whole of a filesystem may be in use by everybody: what counts is the directory that is mounted.
    let table = parse_mountinfo(&fs::read(process.join("mountinfo")).ok()?).ok()?;
    let is_copy = |entry: &MountEntry| mounts.contains(&entry.id) && entry.root == place.root;
    table.iter().any(is_copy).then_some(Distance::Copy)
}

/// The mount that a file of a process was opened on, if it is one of the same filesystem.
fn mount_on_device(place: &Place, link: &Path) -> Option<MountId> {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(CWD, link, flags, StatxFlags::MNT_ID).ok()?;
    let device = DeviceNumber { major: found.stx_dev_major, minor: found.stx_dev_minor };
    let knows_mount = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    (knows_mount && device == place.device).then_some(MountId(found.stx_mnt_id))
}

fn loop_devices(mount_point: &Path) -> Vec<MountUser> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let on_mount = devices.filter(|device| {
        let file = fs::read_to_string(device.path().join("loop/backing_file"));
        file.is_ok_and(|file| Path::new(file.trim_end()).starts_with(mount_point))
    });
    on_mount.map(|device| MountUser::LoopDevice(Path::new("/dev").join(device.file_name()))).collect()
}

fn swap_files(mount_point: &Path) -> Vec<MountUser> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let files = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(PathBuf::from);
    files.filter(|file| file.starts_with(mount_point)).map(MountUser::Swap).collect()
}
