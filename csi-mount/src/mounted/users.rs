//! Finds who uses a mount, so that an error can name the users.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};

use crate::error::Result;
use crate::path::lookup;
use crate::place::target::{OpenTarget, Target};
use crate::sys::exec::{self, Program, program_name};
use crate::sys::ids::{DeviceNumber, MountId};
use crate::table::facts::MountState;
use crate::table::fd_info::FdInfo;
use crate::table::mountinfo::{self, MountEntry, parse_mountinfo};
use crate::table::smb_root;

/// The time limit of the scan: some users of many are better than a late answer.
const SCAN_TIME_LIMIT: Duration = Duration::from_secs(1);
/// How many users are named.
const MAX_NAMED: usize = 8;

/// A user that keeps a mount busy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MountUser {
    /// A process with an open file, its working directory, its root or its program on the mount.
    Process {
        /// Its process id in this process's pid namespace.
        id: u32,
        /// The name of its program, at most 15 bytes.
        name: String,
    },
    /// A mount that is mounted below it.
    Mount(PathBuf),
    /// A loop device whose backing file is on the mount.
    LoopDevice(PathBuf),
    /// A swap file on the mount.
    Swap(PathBuf),
}

/// For example `process 71 (sleep)`.
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

/// Returns the visible users that keep the mount at the target busy: at most eight, within one second.
///
/// Only processes in this process's pid namespace are visible, so a driver in a container needs `hostPID` to
/// see the processes of pods. A file that is mapped into memory and closed is not found, because that check
/// can hang. The filesystem is not asked. Needs Linux 5.8; before that it finds no processes, only the other
/// users.
///
/// # Errors
/// Those of [`Mounts::state`](crate::Mounts::state) and [`mounts`](crate::mounts).
#[doc(alias = "fuser")]
pub fn mount_users(target: &Target) -> Result<Vec<MountUser>> {
    let MountState::Mounted(_) = target.state()? else { return Ok(Vec::new()) };
    let opened = target.open("look for users of")?;
    let mut users: Vec<_> = mounts_below(&opened)?.into_iter().map(MountUser::Mount).collect();
    users.extend(loop_devices(&opened, target.path()));
    users.extend(swap_files(&opened));
    let mount = opened.facts.mount;
    let device = opened.facts.device;
    let place = MountRoot { mount, device, entry: mountinfo::mount_by_id(mount)? };
    // Close our own descriptor, so that this process does not count as a user.
    drop(opened);
    users.truncate(MAX_NAMED);
    processes(&place, MAX_NAMED - users.len(), &mut users);
    Ok(users)
}

/// The mount points of the mounts on this mount.
pub(crate) fn mounts_below(opened: &OpenTarget) -> Result<Vec<PathBuf>> {
    let mounts = mountinfo::mounts()?.into_iter().filter(|entry| entry.parent == opened.facts.mount);
    Ok(mounts.map(|entry| entry.mount_point).collect())
}

#[derive(Debug)]
struct MountRoot {
    mount: MountId,
    device: DeviceNumber,
    /// The mount's row in the table.
    entry: Option<MountEntry>,
}

/// Adds the processes on this mount. If there are none, adds those on other mounts of the same directory:
/// copies in other namespaces keep it busy too.
fn processes(place: &MountRoot, max: usize, users: &mut Vec<MountUser>) {
    let deadline = Instant::now() + SCAN_TIME_LIMIT;
    let Ok(all) = exec::processes() else { return };
    let mut on_mount = Vec::new();
    let mut on_copy = Vec::new();
    for id in all {
        if Instant::now() > deadline || on_mount.len() >= max {
            break;
        }
        if Program::of(id) == Program::InExec {
            continue;
        }
        match nearest(place, &Path::new("/proc").join(id.to_string())) {
            Some(Distance::Mount) => on_mount.push(MountUser::Process { id, name: program_name(id) }),
            Some(Distance::Copy) => on_copy.push(MountUser::Process { id, name: program_name(id) }),
            None => {}
        }
    }
    users.extend(if on_mount.is_empty() { on_copy } else { on_mount }.into_iter().take(max));
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    Mount,
    Copy,
}

/// Whether a process has a file on the mount itself or on a copy of it.
fn nearest(place: &MountRoot, process: &Path) -> Option<Distance> {
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|file| file.path());
    let others = ["cwd", "root", "exe"].map(|name| process.join(name));
    let on_smb = smb_mounts(process);
    let mount = |link: PathBuf| match on_smb.is_empty() {
        true => mount_on_device(place, &link),
        // Their server is not asked.
        false => match on_smb.iter().find(|entry| Some(entry.id) == mount_in_proc(&link)) {
            Some(entry) => (entry.device == place.device).then_some(entry.id),
            None => mount_on_device(place, &link),
        },
    };
    let mounts: BTreeSet<MountId> = others.into_iter().chain(files).filter_map(mount).collect();
    if mounts.contains(&place.mount) {
        return Some(Distance::Mount);
    }
    if mounts.is_empty() {
        return None;
    }
    // Other mounts of the same filesystem can have many users. Only mounts of the same directory count.
    let table = parse_mountinfo(&fs::read(process.join("mountinfo")).ok()?).ok()?;
    let of_place = |entry: &MountEntry| place.entry.as_ref().is_some_and(|place| entry.shows_same(place));
    let is_copy = |entry: &MountEntry| mounts.contains(&entry.id) && of_place(entry);
    table.iter().any(is_copy).then_some(Distance::Copy)
}

/// The mount that a process's file was opened on, if it is a mount of the same filesystem.
fn mount_on_device(place: &MountRoot, link: &Path) -> Option<MountId> {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(CWD, link, flags, StatxFlags::MNT_ID).ok()?;
    let device = DeviceNumber { major: found.stx_dev_major, minor: found.stx_dev_minor };
    let knows_mount = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    (knows_mount && device == place.device).then_some(MountId(found.stx_mnt_id))
}

/// The SMB mounts of a process's namespace, whose server would be asked about their files.
pub(crate) fn smb_mounts(process: &Path) -> Vec<MountEntry> {
    if !smb_root::can_exist() {
        return Vec::new();
    }
    let table = fs::read(process.join("mountinfo")).ok().and_then(|table| parse_mountinfo(&table).ok());
    table.into_iter().flatten().filter(|entry| smb_root::is_smb(&entry.fs_type)).collect()
}

/// Whether a process's file is on one of these mounts.
pub(crate) fn is_on_any(mounts: &[MountEntry], link: &Path) -> bool {
    !mounts.is_empty()
        && mount_in_proc(link).is_some_and(|mount| mounts.iter().any(|entry| entry.id == mount))
}

/// The mount of a process's file, as /proc reports it.
fn mount_in_proc(link: &Path) -> Option<MountId> {
    let directory = link.parent()?;
    let name = link.file_name()?;
    if directory.ends_with("fd") {
        let text = fs::read_to_string(directory.with_file_name("fdinfo").join(name)).ok()?;
        return Some(FdInfo::parse(&text).ok()?.mount);
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = rustix::fs::open(link, flags, Mode::empty()).ok()?;
    Some(FdInfo::read(file.as_fd()).ok()?.mount)
}

/// The loop devices whose file's path, as the kernel shows it, is on this mount. They are only named.
fn loop_devices(opened: &OpenTarget, mount_point: &Path) -> Vec<MountUser> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let on_mount = devices.filter(|device| {
        let Ok(file) = fs::read(device.path().join("loop/backing_file")) else { return false };
        let file = Path::new(OsStr::from_bytes(file.strip_suffix(b"\n").unwrap_or(&file)));
        let is_deleted = file.as_os_str().as_bytes().ends_with(b" (deleted)");
        file.starts_with(mount_point) && (is_deleted || is_on(opened, file))
    });
    on_mount.map(|device| MountUser::LoopDevice(Path::new("/dev").join(device.file_name()))).collect()
}

fn swap_files(opened: &OpenTarget) -> Vec<MountUser> {
    swap_spaces().into_iter().filter(|file| is_on(opened, file)).map(MountUser::Swap).collect()
}

const CACHE_ATTEMPTS: usize = 100;

/// Whether the file at a path is on this mount, as far as the kernel's cache shows: a path that the kernel
/// writes can be one of another mount namespace.
fn is_on(opened: &OpenTarget, file: &Path) -> bool {
    // While anybody mounts or renames, the cache can have no answer.
    (0..CACHE_ATTEMPTS).find_map(|_| lookup::cached_mount(file)) == Some(opened.facts.mount)
}

/// The paths in `/proc/swaps`.
pub(crate) fn swap_spaces() -> Vec<PathBuf> {
    let table = fs::read("/proc/swaps").unwrap_or_default();
    let lines = table.split(|byte| *byte == b'\n').skip(1);
    let paths = lines.filter_map(|line| line.split(|byte| b" \t".contains(byte)).next());
    paths.filter(|path| !path.is_empty()).map(|path| mountinfo::unescaped(path).into()).collect()
}
