//! The memory limit of a daemon: a control group (version 2) for each place.
//!
//! The groups are below the group of this process, so that its own limits and its end also apply to the
//! daemons. A group whose children have memory limits must have no processes itself ("no internal processes",
//! kernel documentation of cgroup v2). So the processes of this process's group move into a child group first.
//! A later process that starts in that child, or again beside it, finds the groups of the daemons by their
//! names.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::libc;

use crate::error::{Error, ErrorKind, Result};
use crate::sys::hash::fnv1a;
use crate::table::mountinfo::{MountEntry, mounts};

const LIMIT: &str = "limit the memory of a daemon";
/// The child group for the processes of the driver itself. systemd calls this `DelegateSubgroup=`.
const OWN: &str = "csi-driver";
/// How often the processes of a group are moved out of it: they can start others meanwhile.
const MOVES: u32 = 20;
/// How long the kernel can take to take a killed process out of its group.
const EMPTY_TIME_LIMIT: Duration = Duration::from_secs(2);

pub(super) enum MemoryLimit {
    Group(MemoryGroup),
    /// The private memory of each process, in bytes.
    EachProcess(u64),
}

impl MemoryLimit {
    pub(super) fn group(place: &Path, bytes: u64) -> Result<Self> {
        MemoryGroup::make(place, bytes).map(Self::Group)
    }

    /// A mounter often can't make control groups.
    pub(super) fn in_mounter(place: &Path, bytes: u64) -> Result<Self> {
        match Self::group(place, bytes) {
            Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied) => {
                tracing::info!(
                    "each process of a FUSE daemon has the memory limit, and not all together: {error}"
                );
                Ok(Self::EachProcess(bytes))
            }
            made => made,
        }
    }
}

/// The control group of one daemon.
pub(super) struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// Makes the empty group of a place, with this limit in bytes.
    pub(super) fn make(place: &Path, bytes: u64) -> Result<Self> {
        let parent = Parent::find()?;
        parent.enable()?;
        let group = Self(parent.group(place));
        group.remove()?;
        let made = fs::create_dir(&group.0).map_err(|error| denied(&group.0, error));
        made.and_then(|()| group.configure(bytes)).inspect_err(|_| drop(group.remove()))?;
        Ok(group)
    }

    fn configure(&self, bytes: u64) -> Result<()> {
        self.set(bytes)?;
        // A daemon can have helper processes, and without one of them it is of no use.
        write(&self.0.join("memory.oom.group"), "1")
    }

    /// The group of a place, if it exists.
    pub(super) fn existing(place: &Path) -> Option<Self> {
        let group = Self(Parent::find().ok()?.group(place));
        group.0.is_dir().then_some(group)
    }

    /// Changes the limit, also of a daemon that runs.
    pub(super) fn set(&self, bytes: u64) -> Result<()> {
        write(&self.0.join("memory.max"), &bytes.to_string())
    }

    /// What a process writes to in order to enter the group.
    pub(super) fn entrance(&self) -> Result<OwnedFd> {
        let path = self.0.join("cgroup.procs");
        let file = File::options().write(true).open(&path).map_err(|error| denied(&path, error))?;
        Ok(file.into())
    }

    /// The limit in bytes, if the kernel has killed a process of the group because of it.
    pub(super) fn exceeded(&self) -> Option<u64> {
        let events = fs::read_to_string(self.0.join("memory.events")).ok()?;
        let kills = events.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
        let limit = fs::read_to_string(self.0.join("memory.max")).ok()?;
        (kills.trim() != "0").then(|| limit.trim().parse().ok())?
    }

    /// Removes the group, whose processes have ended. A group that does not exist is removed already.
    pub(super) fn remove(&self) -> Result<()> {
        let deadline = Instant::now() + EMPTY_TIME_LIMIT;
        loop {
            match fs::remove_dir(&self.0) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline => {
                    sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(Error::os("remove the control group of a daemon", &self.0, error)),
            }
        }
    }
}

/// Removes the group of a place, whoever made it.
pub(super) fn remove_group(place: &Path) {
    if let Some(Err(error)) = MemoryGroup::existing(place).map(|group| group.remove()) {
        tracing::warn!(%error, "the control group of a FUSE daemon stays until its volume is staged again");
    }
}

/// `, killed: over its memory limit of N bytes`, or nothing.
pub(super) fn over_memory_limit(place: &Path) -> String {
    let limit = MemoryGroup::existing(place).and_then(|group| group.exceeded());
    limit.map_or_else(String::new, |bytes| format!(", killed: over its memory limit of {bytes} bytes"))
}

/// How many processes of this process's control group the kernel has killed because its memory was used up: in a container,
/// those of the container. `None` if that can't be read.
pub(super) fn killed_for_memory() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let table = mounts().ok()?;
    groups.lines().find_map(|line| {
        let (controllers, own) = line.split_once(':')?.1.split_once(':')?;
        let (fs_type, file) = match controllers {
            "" => ("cgroup2", "memory.events"),
            names if names.split(',').any(|name| name == "memory") => ("cgroup", "memory.oom_control"),
            _ => return None,
        };
        let of_memory = |entry: &&MountEntry| {
            entry.fs_type == fs_type && (fs_type == "cgroup2" || entry.super_options.has_flag("memory"))
        };
        table.iter().filter(of_memory).find_map(|entry| {
            let below = Path::new(own).strip_prefix(&entry.root).ok()?;
            let events = fs::read_to_string(entry.mount_point.join(below).join(file)).ok()?;
            events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
        })
    })
}

/// The group whose children are the groups of the daemons.
struct Parent {
    directory: PathBuf,
    /// Whether this process is in a child group of it already.
    is_left: bool,
}

impl Parent {
    fn find() -> Result<Self> {
        let failed = |error| Error::os(LIMIT, "/proc/self/cgroup", error);
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(failed)?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
        let own = mounts()?.into_iter().filter(|entry| entry.fs_type == "cgroup2").find_map(|entry| {
            let below = Path::new(own).strip_prefix(&entry.root).ok()?;
            Some(entry.mount_point.join(below))
        });
        let Some(own) = own else {
            let reason = "the control group of this process is not visible: no cgroup2 filesystem has it";
            return Err(Error::new(ErrorKind::Unsupported, LIMIT, reason).hint("mount cgroup2"));
        };
        let controllers = fs::read_to_string(own.join("cgroup.controllers")).unwrap_or_default();
        if !controllers.split_whitespace().any(|name| name == "memory") {
            let reason = "this control group has no memory controller in cgroup version 2";
            let hint =
                "boot with version 2 alone, or enable `memory` in cgroup.subtree_control of the group above";
            return Err(Error::new(ErrorKind::Unsupported, LIMIT, reason).at(own).hint(hint));
        }
        let is_left = own.file_name().is_some_and(|name| name == OWN);
        let directory = own.parent().filter(|_| is_left).unwrap_or(&own).to_owned();
        Ok(Self { directory, is_left })
    }

    /// The name is the place's, so that a later process finds the group.
    fn group(&self, place: &Path) -> PathBuf {
        self.directory.join(format!("csi-fuse-{:016x}", fnv1a(place.as_os_str().as_bytes())))
    }

    /// Lets the children have memory limits. Moves the processes of the group into a child group if that is
    /// necessary.
    fn enable(&self) -> Result<()> {
        let control = self.directory.join("cgroup.subtree_control");
        let enabled = fs::read_to_string(&control).unwrap_or_default();
        if enabled.split_whitespace().any(|name| name == "memory") {
            return Ok(());
        }
        for _ in 0..MOVES {
            match fs::write(&control, "+memory") {
                Ok(()) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && !self.is_left => self.leave()?,
                Err(error) => return Err(denied(&control, error)),
            }
        }
        let reason = "its processes start others faster than they can be moved out of it";
        Err(Error::new(ErrorKind::Busy, LIMIT, reason).at(&self.directory))
    }

    /// Moves the processes of the group into the child group for the driver.
    fn leave(&self) -> Result<()> {
        let path = self.directory.join("cgroup.procs");
        let found = fs::read_to_string(&path).map_err(|error| denied(&path, error))?;
        let found: Vec<i32> = found.lines().filter_map(|line| line.parse().ok()).collect();
        let own = std::process::id().cast_signed();
        // With the first process in it, the group is a whole container's.
        let is_container = found.contains(&1);
        let other = found.iter().find(|pid| **pid == 0 || !(is_container || is_descendant(**pid, own)));
        if let Some(other) = other {
            let reason =
                format!("the control group of this process also has process {other}, which is not its own");
            return Err(Error::new(ErrorKind::Unsupported, LIMIT, reason).at(&self.directory).hint(
                "start the driver in a control group of its own: in a container, or by systemd with \
                 Delegate=yes and DelegateSubgroup=csi-driver",
            ));
        }
        let child = self.directory.join(OWN);
        match fs::create_dir(&child) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(denied(&child, error)),
            _ => {}
        }
        for pid in found {
            match fs::write(child.join("cgroup.procs"), pid.to_string()) {
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(denied(&child, error)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether a process is this one, or was started by it, directly or not.
fn is_descendant(mut pid: i32, of: i32) -> bool {
    while pid > 1 && pid != of {
        // The process name in it can be any bytes, but no line feed.
        let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        pid = parent.and_then(|parent| parent.trim().parse().ok()).unwrap_or_default();
    }
    pid == of
}

fn write(path: &Path, value: &str) -> Result<()> {
    fs::write(path, value).map_err(|error| denied(path, error))
}

fn denied(path: &Path, error: io::Error) -> Error {
    let is_denied = matches!(error.raw_os_error(), Some(libc::EROFS | libc::EACCES | libc::EPERM));
    let error = Error::os(LIMIT, path, error);
    if is_denied {
        error
            .with_kind(ErrorKind::PermissionDenied)
            .hint("the driver must be able to write to its own control group: a privileged container, or Delegate=yes")
    } else {
        error
    }
}
