//! A kernel in memory, which can also fail in the rare ways of a real kernel.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::libc;

use super::table::{Condition, Location, Mounted, Table, device};
use crate::mounting::mount;
use crate::path::paths;
use crate::table::details;
use crate::{
    Created, Detach, Error, ErrorKind, MountAttributes, MountEntry, MountHealth, MountId, MountOps,
    MountOptions, MountPoint, MountState, Outcome, Removed, Result, Stats, Unmounted, Usage,
};

/// Types of filesystems that the model has.
const FILESYSTEMS: [&str; 9] = ["ext4", "xfs", "btrfs", "ext3", "vfat", "tmpfs", "nfs4", "cifs", "fuse"];

/// A model of the kernel's mounts: directories, filesystems, mount tables with propagation and stacking.
///
/// It behaves as [`Kernel`](crate::Kernel) does, and a test can make it fail in addition. A clone is the
/// same model. It has only directories and no files; block devices are any sources below `/dev`.
///
/// ```
/// use csi_mount::testing::Model;
/// use csi_mount::{Detach, MountHealth, MountOps, MountOptions, MountState};
/// # fn main() -> csi_mount::Result<()> {
/// let model = Model::new();
/// let host = model.peer();
/// let target = "/pod".as_ref();
/// model.create_dir(target)?;
/// model.mount("nfs4", "server:/volume".as_ref(), &MountOptions::new(), target)?;
/// assert!(matches!(host.state(target)?, MountState::Mounted(_)));
///
/// model.stop_answering(target);
/// assert_eq!(model.health(target)?, MountHealth::Unresponsive);
/// model.unmount(target, Detach::Never)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Model {
    state: Arc<Mutex<ModelState>>,
    namespace: usize,
}

#[derive(Debug)]
struct ModelState {
    table: Table,
    /// The number of steps taken, and the one after which the process stops.
    steps: u64,
    crash_after: Option<u64>,
    is_crashed: bool,
    next_failure: Option<ErrorKind>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("namespace", &self.namespace).field("state", &*self.state()).finish()
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl Model {
    /// A machine with only a root directory, which is a shared mount.
    pub fn new() -> Self {
        let state = ModelState {
            table: Table::new(),
            steps: 0,
            crash_after: None,
            is_crashed: false,
            next_failure: None,
        };
        Self { state: Arc::new(Mutex::new(state)), namespace: 0 }
    }

    fn state(&self) -> MutexGuard<'_, ModelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same machine from a second mount namespace, which receives the mounts of this one.
    #[must_use]
    pub fn peer(&self) -> Self {
        let namespace = self.state().table.copy_namespace(self.namespace);
        Self { state: self.state.clone(), namespace }
    }

    /// Makes a directory and its parents.
    pub fn make_dirs(&self, path: impl AsRef<Path>) {
        let mut state = self.state();
        let ancestors: Vec<_> = path.as_ref().ancestors().map(Path::to_owned).collect();
        for ancestor in ancestors.iter().rev() {
            let Location { mount, inner, .. } = state.table.place(self.namespace, ancestor);
            state.table.filesystems[mount.filesystem].directories.insert(inner);
        }
    }

    /// Mounts a tmpfs over whatever is there, as another program would that does not check.
    pub fn mount_over(&self, path: impl AsRef<Path>) {
        let mut state = self.state();
        let place = state.table.place(self.namespace, path.as_ref());
        let filesystem = state.table.add_filesystem("tmpfs", Path::new("layer"), false);
        let attributes = MountAttributes::empty();
        state.table.attach(&place, path.as_ref(), filesystem, Path::new(""), attributes);
    }

    /// Opens a file there, as another program would: the mount is busy until it is
    /// [released](Self::close_files).
    pub fn open_file(&self, path: impl AsRef<Path>) {
        let mut state = self.state();
        let id = state.table.place(self.namespace, path.as_ref()).mount.id;
        state.table.held.insert(id);
    }

    /// Closes every open file on every mount.
    pub fn close_files(&self) {
        self.state().table.held.clear();
    }

    /// Makes the filesystem there stop answering.
    pub fn stop_answering(&self, path: impl AsRef<Path>) {
        self.set(path.as_ref(), Condition::Unresponsive);
    }

    /// Ends the daemon of the filesystem there.
    pub fn kill_daemon(&self, path: impl AsRef<Path>) {
        self.set(path.as_ref(), Condition::Dead);
    }

    /// Makes the filesystem there read-only, as after an error of its device.
    pub fn turn_read_only(&self, path: impl AsRef<Path>) {
        self.set(path.as_ref(), Condition::TurnedReadOnly);
    }

    fn set(&self, path: &Path, condition: Condition) {
        let mut state = self.state();
        let filesystem = state.table.place(self.namespace, path).mount.filesystem;
        state.table.filesystems[filesystem].condition = condition;
    }

    /// Makes the next call that changes something fail with this kind of error, without a change.
    pub fn fail_next(&self, kind: ErrorKind) {
        self.state().next_failure = Some(kind);
    }

    /// Returns how many steps were taken: each call that changes something has one before the change and
    /// one after it.
    pub fn steps(&self) -> u64 {
        self.state().steps
    }

    /// Kills the process after this many more steps: then every call fails until it is
    /// [restarted](Self::restart).
    pub fn crash_after(&self, steps: u64) {
        let mut state = self.state();
        state.crash_after = Some(state.steps + steps);
    }

    /// Starts the process again. The machine stays as it was.
    pub fn restart(&self) {
        let mut state = self.state();
        (state.is_crashed, state.crash_after) = (false, None);
    }

    /// Reboots the machine: directories stay, mounts are gone.
    pub fn reboot(&self) {
        self.restart();
        let mut state = self.state();
        state.table.mounts.retain(|mount| mount.parent == 0);
        state.table.held.clear();
    }
}

impl ModelState {
    /// A point at which the process can be killed.
    fn step(&mut self) -> Result<()> {
        self.is_crashed |= self.crash_after.is_some_and(|last| self.steps >= last);
        if self.is_crashed {
            return Err(Error::new(ErrorKind::Io, "run", "the process was killed"));
        }
        self.steps += 1;
        Ok(())
    }

    fn begin(&mut self, operation: &'static str, path: &Path) -> Result<()> {
        self.step()?;
        match self.next_failure.take() {
            Some(kind) => Err(Error::new(kind, operation, "the test wants it to fail").at(path)),
            None => Ok(()),
        }
    }

    /// The place of a path. Fails if the filesystem on the path does not answer.
    fn walk(&self, namespace: usize, operation: &'static str, path: &Path) -> Result<(PathBuf, Location)> {
        let path = paths::absolute(operation, path)?;
        let place = self.table.place(namespace, &path);
        let condition = self.table.filesystems[place.mount.filesystem].condition;
        match condition {
            Condition::Unresponsive if !place.is_mount_root => Err(silent(operation, &path)),
            Condition::Dead if !place.is_mount_root => Err(dead(operation, &path)),
            _ => Ok((path, place)),
        }
    }

    fn condition(&self, mount: &Mounted) -> Condition {
        self.table.filesystems[mount.filesystem].condition
    }

    /// Removes one layer. `Ok(false)`: it was detached.
    fn unmount_top(&mut self, mount: &Mounted, path: &Path, detach: Detach) -> Result<bool> {
        let copies = self.table.copies(mount);
        let below = self.table.below(mount.id).map(|below| below.mount_point.clone());
        let is_held = copies.iter().any(|id| self.table.held.contains(id));
        let is_busy = below.is_some() || is_held;
        let is_remote = details::is_remote(&self.table.filesystems[mount.filesystem].fs_type);
        let is_lost = is_remote && matches!(self.condition(mount), Condition::Unresponsive | Condition::Dead);
        let may_detach = match detach {
            Detach::Never => false,
            Detach::IfUnresponsive => is_lost,
            Detach::IfBusy => true,
        };
        if is_busy && !may_detach {
            let reason = below.map_or("a file on it is open".into(), |below| {
                format!("{} is mounted below it", below.display())
            });
            return Err(Error::new(ErrorKind::Busy, "unmount", reason).at(path));
        }
        let is_forced = is_busy && is_lost && detach == Detach::IfUnresponsive;
        if is_forced && !self.table.is_mounted_elsewhere(mount, &copies) {
            self.table.filesystems[mount.filesystem].condition = Condition::Dead;
        }
        let mut gone = copies;
        // Together with everything that is mounted below.
        while let Some(id) = self
            .table
            .mounts
            .iter()
            .find(|mount| gone.contains(&mount.parent) && !gone.contains(&mount.id))
            .map(|mount| mount.id)
        {
            gone.push(id);
        }
        self.table.mounts.retain(|mount| !gone.contains(&mount.id));
        Ok(!is_busy)
    }

    /// The last step of every kind of mount: at most one mount, and only the requested one.
    fn mount_once(
        &mut self,
        operation: &'static str,
        (path, place): (&Path, &Location),
        (filesystem, root): (usize, &Path),
        attributes: MountAttributes,
    ) -> Result<Outcome> {
        if place.is_mount_root && path.parent().is_some() {
            let found = &place.mount;
            if (found.filesystem, &*found.root, found.attributes) == (filesystem, root, attributes) {
                return match self.condition(found) {
                    Condition::Unresponsive => Err(silent(operation, path)),
                    Condition::Dead => Err(dead(operation, path)),
                    Condition::TurnedReadOnly | Condition::Healthy => Ok(Outcome::AlreadyMounted),
                };
            }
            let reason = format!("something else is mounted, or its attributes are not {attributes}");
            return Err(Error::new(ErrorKind::AlreadyMounted, operation, reason).at(path));
        }
        if !self.table.exists(place) {
            return Err(absent(operation, path));
        }
        self.table.attach(place, path, filesystem, root, attributes);
        self.step()?;
        Ok(Outcome::Mounted)
    }
}

fn absent(operation: &'static str, path: &Path) -> Error {
    Error::os(operation, path, io::Error::from_raw_os_error(libc::ENOENT))
}

fn silent(operation: &'static str, path: &Path) -> Error {
    Error::new(ErrorKind::Unresponsive, operation, "the filesystem did not answer").at(path)
}

fn dead(operation: &'static str, path: &Path) -> Error {
    Error::os(operation, path, io::Error::from_raw_os_error(libc::ENOTCONN))
}

impl MountOps for Model {
    fn create_dir(&self, target: &Path) -> Result<Created> {
        let operation = "make directory";
        let mut state = self.state();
        state.begin(operation, target)?;
        let (path, place) = state.walk(self.namespace, operation, target)?;
        if state.table.exists(&place) {
            return Ok(Created::Existed);
        }
        let parent = state.table.place(self.namespace, path.parent().unwrap_or(&path));
        if !state.table.exists(&parent) {
            return Err(absent(operation, &path));
        }
        state.table.filesystems[place.mount.filesystem].directories.insert(place.inner);
        state.step()?;
        Ok(Created::Created)
    }

    fn remove(&self, target: &Path) -> Result<Removed> {
        let operation = "remove";
        let mut state = self.state();
        state.begin(operation, target)?;
        let (path, place) = state.walk(self.namespace, operation, target)?;
        let busy = |reason| Err(Error::new(ErrorKind::Busy, operation, reason).at(&path));
        if place.is_mount_root {
            return busy("something is mounted on it");
        }
        if !state.table.exists(&place) {
            return Ok(Removed::WasAbsent);
        }
        let directories = &mut state.table.filesystems[place.mount.filesystem].directories;
        if directories.iter().any(|other| *other != place.inner && other.starts_with(&place.inner)) {
            return busy("the directory is not empty");
        }
        directories.remove(&place.inner);
        state.step()?;
        Ok(Removed::Removed)
    }

    fn mount(&self, fs_type: &str, source: &Path, options: &MountOptions, target: &Path) -> Result<Outcome> {
        let operation = "mount at";
        let mut state = self.state();
        state.begin(operation, target)?;
        let (path, place) = state.walk(self.namespace, operation, target)?;
        mount::check(fs_type, source, &path)?;
        if !FILESYSTEMS.contains(&fs_type) {
            let reason = format!("the kernel has no filesystem {fs_type:?}");
            return Err(Error::new(ErrorKind::Unsupported, operation, reason).at(path));
        }
        let is_same = |index: usize, table: &Table| {
            (&*table.filesystems[index].fs_type, &*table.filesystems[index].source) == (fs_type, source)
        };
        let on_target = place.is_mount_root && is_same(place.mount.filesystem, &state.table);
        // One device is one filesystem, however often it is mounted.
        let known = (0..state.table.filesystems.len())
            .find(|index| source.starts_with("/dev") && is_same(*index, &state.table));
        if on_target && state.condition(&place.mount) == Condition::TurnedReadOnly && !options.is_read_only()
        {
            return Err(
                Error::new(ErrorKind::ReadOnly, operation, "the filesystem turned read-only").at(path)
            );
        }
        let filesystem = match known {
            _ if on_target => place.mount.filesystem,
            Some(filesystem) => filesystem,
            None => state.table.add_filesystem(fs_type, source, options.is_read_only()),
        };
        state.mount_once(operation, (&path, &place), (filesystem, Path::new("")), options.attributes())
    }

    fn bind(&self, source: &Path, attributes: MountAttributes, target: &Path) -> Result<Outcome> {
        let mut state = self.state();
        state.begin("bind", source)?;
        let (source, from) = state.walk(self.namespace, "bind", source)?;
        if !state.table.exists(&from) {
            return Err(absent("bind", &source));
        }
        let operation = "bind to";
        let (path, onto) = state.walk(self.namespace, operation, target)?;
        let attributes = from.mount.attributes.combined_with(attributes);
        let is_one_filesystem = from.mount.filesystem == onto.mount.filesystem;
        if is_one_filesystem && !onto.is_mount_root && state.table.exists(&onto) {
            let relation = match (onto.inner.starts_with(&from.inner), from.inner.starts_with(&onto.inner)) {
                (true, _) => Some("it is inside"),
                (_, true) => Some("it contains"),
                _ => None,
            };
            if let Some(relation) = relation {
                let reason = format!("{relation} the source {}", source.display());
                return Err(Error::new(ErrorKind::InvalidInput, operation, reason).at(path));
            }
        }
        state.mount_once(operation, (&path, &onto), (from.mount.filesystem, &from.inner), attributes)
    }

    fn unmount(&self, target: &Path, detach: Detach) -> Result<Unmounted> {
        let mut state = self.state();
        let (mut layers, mut is_detached) = (0, false);
        loop {
            let (path, place) = state.walk(self.namespace, "unmount", target)?;
            if !place.is_mount_root {
                break;
            }
            state.begin("unmount", &path)?;
            is_detached |= !state.unmount_top(&place.mount, &path, detach)?;
            layers += 1;
            state.step()?;
        }
        Ok(match layers {
            _ if is_detached => Unmounted::Detached,
            0 => Unmounted::NotMounted,
            layers => Unmounted::Unmounted { layers },
        })
    }

    fn state(&self, path: &Path) -> Result<MountState> {
        let state = self.state();
        let (_, place) = state.walk(self.namespace, "look for a mount at", path)?;
        let id = MountId(place.mount.id);
        Ok(match (place.is_mount_root, state.table.exists(&place)) {
            (true, _) => MountState::Mounted(MountPoint { id, device: device(place.mount.filesystem) }),
            (false, true) => MountState::NotMounted,
            (false, false) => MountState::Absent,
        })
    }

    fn health(&self, path: &Path) -> Result<MountHealth> {
        let state = self.state();
        let (_, place) = state.walk(self.namespace, "check the health of the mount at", path)?;
        let is_writable = !place.mount.attributes.contains(MountAttributes::RDONLY);
        Ok(match state.condition(&place.mount) {
            _ if !place.is_mount_root => MountHealth::NotMounted,
            Condition::Unresponsive => MountHealth::Unresponsive,
            Condition::Dead => MountHealth::Dead(libc::ENOTCONN),
            Condition::TurnedReadOnly if is_writable => MountHealth::ReadOnly,
            Condition::TurnedReadOnly | Condition::Healthy => MountHealth::Healthy,
        })
    }

    fn stats(&self, path: &Path) -> Result<Stats> {
        let operation = "read the usage of";
        let state = self.state();
        let (path, place) = state.walk(self.namespace, operation, path)?;
        if !state.table.exists(&place) {
            return Err(absent(operation, &path));
        }
        match state.condition(&place.mount) {
            Condition::Unresponsive => Err(silent(operation, &path)),
            Condition::Dead => Err(dead(operation, &path)),
            Condition::Healthy | Condition::TurnedReadOnly => {
                let bytes = Usage { total: 1 << 30, used: 1 << 20, available: (1 << 30) - (1 << 20) };
                Ok(Stats { bytes, inodes: Some(Usage { total: 1000, used: 1, available: 999 }) })
            }
        }
    }

    fn mounts(&self) -> Result<Vec<MountEntry>> {
        let state = self.state();
        let own = state.table.mounts.iter().filter(|mount| mount.namespace == self.namespace);
        Ok(own.map(|mount| state.table.entry(mount)).collect())
    }
}
