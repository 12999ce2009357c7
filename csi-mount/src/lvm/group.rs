//! A volume group that is open: what it may be, and what is in it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::error::{Error, ErrorKind, Result};
use crate::lvm::command::{Lvm, Turn};
use crate::lvm::disks::{self, Known};
use crate::lvm::pool::LvmPool;
use crate::lvm::report::{self, Found, Kind, Report};
use crate::lvm::tags::{LvmName, LvmState, Record};
use crate::lvm::zeros::Zeros;

/// How long a call waits for lvm by default.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// How many logical volumes of others an error names.
const MAX_NAMED: usize = 3;

/// How a [`VolumeGroup`] is used.
#[derive(Debug, Clone)]
#[must_use]
pub struct LvmOptions {
    pub(super) driver: String,
    memory: Option<PathBuf>,
    launcher: Vec<String>,
    time_limit: Duration,
    allows_others: bool,
    pub(super) reserve: u64,
    pub(super) overcommit: u32,
    pub(super) erase_rate: Option<u64>,
}

impl LvmOptions {
    /// The options for the driver with this name, which is recorded at each of its logical volumes.
    pub fn new(driver: impl Into<String>) -> Self {
        Self {
            driver: driver.into(),
            memory: None,
            launcher: Vec::new(),
            time_limit: TIME_LIMIT,
            allows_others: false,
            reserve: 0,
            overcommit: 100,
            erase_rate: None,
        }
    }

    /// Remembers the group's UUID, its disks, and which free extents the driver has erased in this file, from its first use on. A group of this name with another UUID or
    /// with other disks is refused then. Without a file they are known until this process ends.
    ///
    /// The first use is before any volume: what a tenant wrote to a disk of another driver could be taken for the group.
    /// Remove the file when an administrator has changed the disks of the group (`vgextend`, `vgreduce`), and restart.
    pub fn known_by(mut self, file: impl Into<PathBuf>) -> Self {
        self.memory = Some(file.into());
        self
    }

    /// Runs lvm by this program and arguments: see [`HOST_LAUNCHER`](super::HOST_LAUNCHER). Without it lvm runs here, and
    /// does not wait for udev.
    pub fn launcher(mut self, words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.launcher = words.into_iter().map(Into::into).collect();
        self
    }

    /// How long a call waits for lvm: 60 seconds unless set. A command that changes something runs on afterwards.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Also uses a volume group that has logical volumes of others. They are never changed, but a driver of another
    /// cluster can't be told from them.
    pub fn allow_others(mut self) -> Self {
        self.allows_others = true;
        self
    }

    /// Keeps this many bytes free for the administrator. They are not part of the capacity for thick volumes.
    pub fn reserve(mut self, bytes: u64) -> Self {
        self.reserve = bytes;
        self
    }

    /// The sizes of all volumes of a thin pool can add up to this many percent of the pool. The default is 100: a pool
    /// never runs out of space.
    pub fn overcommit(mut self, percent: u32) -> Self {
        self.overcommit = percent;
        self
    }

    /// Limits the bandwidth of an erase in bytes per second, so that other volumes on the same disk stay usable. A
    /// value below 1 MiB counts as 1 MiB.
    pub fn erase_rate(mut self, bytes_per_second: u64) -> Self {
        self.erase_rate = Some(bytes_per_second);
        self
    }
}

/// A volume group of LVM, used by one driver. A clone is the same group.
///
/// Every call reads the volume group again. It is refused, by [`ErrorKind::Unreadable`], while it is not there or not
/// complete: that a volume does not exist is only said of a complete volume group.
///
/// Calls that change something run one after another. One that waits longer than its
/// [time limit](LvmOptions::time_limit) ends with [`ErrorKind::Pending`], and a command that it started runs on: a
/// repeated call finds its result.
#[derive(Clone)]
pub struct VolumeGroup(pub(super) Arc<Group>);

pub(super) struct Group {
    pub(super) name: String,
    pub(super) uuid: String,
    pub(super) options: LvmOptions,
    pub(super) lvm: Lvm,
    known: Mutex<Known>,
    /// The UUIDs of thin pools of which this process knows that the kernel had them.
    pub(super) seen_pools: Mutex<BTreeSet<String>>,
    /// As the last report says.
    pub(super) pools: Mutex<Vec<LvmPool>>,
    /// UUIDs of the logical volumes that this process erases now.
    pub(super) at_erase: Mutex<BTreeSet<String>>,
    /// Raised when a volume is marked for its erase.
    pub(super) marked: (Mutex<u64>, Condvar),
}

/// A volume or snapshot of this driver.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LvmVolume {
    /// The name by which it was created.
    pub name: LvmName,
    /// Its size, without its [header](crate::lvm::LvmRequest::header).
    pub bytes: u64,
    /// Where its blocks are.
    pub layout: LvmLayout,
    /// Its state.
    pub state: LvmState,
    /// The volume or snapshot that it was made from. It can be deleted already.
    pub source: Option<LvmName>,
    /// Whether it, or what it is a copy of, was ever in use: see [`VolumeGroup::set_staged`].
    pub was_staged: bool,
    /// When it was made, to the second.
    pub created: SystemTime,
    /// The name of its logical volume.
    pub logical_volume: String,
    /// The UUID of its logical volume.
    pub uuid: String,
}

/// Where the blocks of a volume are.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LvmLayout {
    /// In extents of its own, on any disk of the volume group.
    Thick,
    /// The same, on the physical volumes with this tag: a class of disks.
    ThickOn(String),
    /// In this thin pool, which the administrator has made.
    Thin(String),
}

impl VolumeGroup {
    /// Finds lvm, and checks the volume group with this name.
    ///
    /// # Errors
    /// - [`ErrorKind::MissingTool`]: there is no `lvm`, or not the launcher.
    /// - [`ErrorKind::Unreadable`]: the volume group is missing, incomplete, exported or shared.
    /// - [`ErrorKind::WrongDevice`]: it has another UUID.
    /// - [`ErrorKind::NotOwned`]: it has logical volumes of others.
    pub fn open(name: &str, options: LvmOptions) -> Result<Self> {
        // As lvm2 allows it: it must be no option and no path.
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_+.-".contains(&byte);
        if name.is_empty() || name.starts_with('-') || !name.bytes().all(is_allowed) {
            let reason = format!("{name:?} is no name of a volume group");
            return Err(Error::new(ErrorKind::InvalidInput, OPEN, reason));
        }
        let mut lvm = Lvm::find(name, &options.launcher, options.time_limit)?;
        let before = options.memory.as_deref().map_or(Ok(None), Known::read)?;
        lvm.disks = before.as_ref().map(|known| known.disks.clone());
        let report = read(name, before.as_ref().map(|known| &*known.uuid), &options, &lvm)?;
        let known = match before {
            Some(known) => known,
            None => {
                let known = Known::of(&report, &lvm.sysfs).map_err(|error| error.at(name))?;
                if let Some(file) = &options.memory {
                    known.write(file)?;
                }
                known
            }
        };
        lvm.disks = Some(known.disks.clone());
        let group = Group {
            name: name.to_owned(),
            known: Mutex::new(known),
            seen_pools: Mutex::default(),
            pools: Mutex::new(report.pools()),
            uuid: report.uuid.clone(),
            options,
            lvm,
            at_erase: Mutex::default(),
            marked: <(Mutex<u64>, Condvar)>::default(),
        };
        group.thaw_above(&report)?;
        if !group.suspended()?.is_empty() {
            group.begin(OPEN)?;
        }
        Ok(Self(Arc::new(group)))
    }

    /// All volumes and snapshots of this driver.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn list(&self) -> Result<Vec<LvmVolume>> {
        let report = self.0.read()?;
        let whole = report.ours(&self.0).filter(|ours| !matches!(ours.record.name, LvmName::Growth(_)));
        Ok(whole.map(|ours| ours.volume()).collect())
    }

    /// The volume or snapshot with this name; none if it does not exist.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn find(&self, name: &LvmName) -> Result<Option<LvmVolume>> {
        Ok(self.0.read()?.find(&self.0, name).map(|ours| ours.volume()))
    }

    /// Records durably that a volume was in use, so that it is never taken for a new one: a driver that formats volumes
    /// calls it after the first stage. Copies made later have the record too.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such volume; otherwise those of [`create`](Self::create) for lvm itself.
    pub fn set_staged(&self, volume: &str) -> Result<()> {
        let name = LvmName::Volume(volume.into());
        let group = &*self.0;
        let (turn, report) = group.begin(RECORD)?;
        let ours = report.find(group, &name).ok_or_else(|| group.missing(RECORD, &name))?;
        let new = Record { was_staged: true, ..ours.record.clone() };
        group.set_record(&turn, &ours, &new)
    }
}

impl fmt::Debug for VolumeGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeGroup")
            .field("name", &self.0.name)
            .field("uuid", &self.0.uuid)
            .finish_non_exhaustive()
    }
}

const OPEN: &str = "use volume group";
const RECORD: &str = "record the use of a logical volume of";

/// A logical volume of this driver.
pub(super) struct Ours<'r> {
    pub(super) found: &'r Found,
    pub(super) record: Record,
}

impl Ours<'_> {
    pub(super) fn volume(&self) -> LvmVolume {
        let layout = match (&self.found.kind, &self.record.disks) {
            (Kind::Thin { pool, .. }, _) => LvmLayout::Thin(pool.clone()),
            (_, Some(tag)) => LvmLayout::ThickOn(tag.clone()),
            (_, None) => LvmLayout::Thick,
        };
        LvmVolume {
            name: self.record.name.clone(),
            bytes: self.bytes(),
            layout,
            state: self.record.state,
            source: self.record.source.clone(),
            was_staged: self.record.was_staged,
            created: SystemTime::UNIX_EPOCH + Duration::from_secs(self.found.time),
            logical_volume: self.found.name.clone(),
            uuid: self.found.uuid.clone(),
        }
    }

    /// What its user has of it.
    pub(super) fn bytes(&self) -> u64 {
        self.found.bytes.saturating_sub(self.record.header)
    }

    pub(super) fn is_thin(&self) -> bool {
        matches!(self.found.kind, Kind::Thin { .. })
    }
}

impl Report {
    pub(super) fn ours<'r>(&'r self, group: &'r Group) -> impl Iterator<Item = Ours<'r>> {
        let record = |found: &Found| Record::from_tags(&group.options.driver, &found.tags);
        self.volumes.iter().filter_map(move |found| Some(Ours { found, record: record(found)? }))
    }

    pub(super) fn find<'r>(&'r self, group: &'r Group, name: &LvmName) -> Option<Ours<'r>> {
        self.ours(group).find(|ours| ours.record.name == *name)
    }
}

impl Group {
    pub(super) fn read(&self) -> Result<Report> {
        let report = read(&self.name, Some(&self.uuid), &self.options, &self.lvm)?;
        *self.pools.lock().unwrap_or_else(PoisonError::into_inner) = report.pools();
        Ok(report)
    }

    /// Runs a command that changes the metadata of the group this many times, and reads it again. `guard` is dropped when the
    /// command has ended.
    pub(super) fn run(
        &self,
        turn: &Turn,
        arguments: &[String],
        commits: u64,
        guard: impl Send + 'static,
    ) -> Result<Report> {
        self.lvm.change_with(turn, arguments, guard)?;
        let report = self.read()?;
        self.know(|zeros| zeros.follow(&report, commits));
        Ok(report)
    }

    /// Changes what is known about free extents, and remembers it.
    pub(super) fn know<T>(&self, change: impl FnOnce(&mut Zeros) -> T) -> T {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.zeros.clone();
        let result = change(&mut known.zeros);
        // Without extents, the file says nothing about them.
        if known.zeros != before
            && !(known.zeros.is_empty() && before.is_empty())
            && let Some(file) = &self.options.memory
            && let Err(error) = known.write(file)
        {
            // The old one is of a group that has changed, and so says nothing.
            tracing::warn!(%error, "new volumes are erased after the next start");
        }
        result
    }

    /// Changes logical volumes by a command with a selection, so that lvm itself compares the UUID, under its lock: a
    /// command that was started earlier can't reach another volume that has the name now.
    ///
    /// One that selects nothing succeeds, so the group is read again. `is_done` judges what it has then with this UUID.
    pub(super) fn change(
        &self,
        turn: &Turn,
        command: &[&str],
        commits: u64,
        uuid: &str,
        is_done: impl FnOnce(Option<&Found>) -> bool,
    ) -> Result<()> {
        let selection = format!("lv_uuid={uuid}");
        let mut arguments: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        arguments.extend(["--yes".to_owned(), "--select".to_owned(), selection, self.name.clone()]);
        let report = self.run(turn, &arguments, commits, ())?;
        if is_done(report.volumes.iter().find(|found| found.uuid == uuid)) {
            return Ok(());
        }
        let reason = format!("lvm {} succeeded, and has not changed {uuid}", command[0]);
        Err(self.error(ErrorKind::ToolFailed, "change a logical volume of", reason))
    }

    /// Replaces the record of a logical volume, in one change of the metadata.
    pub(super) fn set_record(&self, turn: &Turn, ours: &Ours<'_>, new: &Record) -> Result<()> {
        let old = ours.record.tags(&self.options.driver);
        let new = new.tags(&self.options.driver);
        let removed = old.iter().filter(|tag| !new.contains(tag)).flat_map(|tag| ["--deltag", &**tag]);
        let added = new.iter().filter(|tag| !old.contains(tag)).flat_map(|tag| ["--addtag", &**tag]);
        let command: Vec<&str> = ["lvchange"].into_iter().chain(removed).chain(added).collect();
        if command.len() == 1 {
            return Ok(());
        }
        // It can have been deleted meanwhile.
        let has_new = |found: &Found| new.iter().all(|tag| found.tags.contains(tag));
        self.change(turn, &command, 1, &ours.found.uuid, |found| found.is_none_or(has_new))
    }

    pub(super) fn error(&self, kind: ErrorKind, operation: &'static str, reason: impl Into<String>) -> Error {
        Error::new(kind, operation, reason).at(&self.name)
    }

    /// The error for a volume that a complete volume group does not have.
    pub(super) fn missing(&self, operation: &'static str, name: &LvmName) -> Error {
        self.error(ErrorKind::NotFound, operation, format!("it has no {name}"))
    }

    /// Marks a logical volume as one that this process erases, until the guard is dropped.
    pub(super) fn begin_erase(&self, uuid: &str) -> Result<AtErase<'_>> {
        let mut at_erase = self.at_erase.lock().unwrap_or_else(PoisonError::into_inner);
        if !at_erase.insert(uuid.to_owned()) {
            return Err(self.error(
                ErrorKind::Pending,
                "erase a logical volume of",
                "another call erases it",
            ));
        }
        Ok(AtErase { group: self, uuid: uuid.to_owned() })
    }
}

pub(super) struct AtErase<'g> {
    group: &'g Group,
    uuid: String,
}

impl Drop for AtErase<'_> {
    fn drop(&mut self) {
        self.group.at_erase.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.uuid);
    }
}

/// Reads a volume group, and refuses one that is not as it should be.
fn read(name: &str, uuid: Option<&str>, options: &LvmOptions, lvm: &Lvm) -> Result<Report> {
    let printed = lvm.report(&report::arguments(name)).map_err(|error| match error.kind() {
        // lvm has one exit status for everything.
        ErrorKind::ToolFailed => error
            .with_kind(ErrorKind::Unreadable)
            .at(name)
            .hint(
                "look at `vgs` and `pvs` on the node: the volume group or its disks are missing, or this process can't \
                 run the host's lvm (hostPID, privileged)",
            ),
        _ => error.at(name),
    })?;
    let report = Report::parse(&printed).map_err(|error| error.at(name))?;
    judge(&report, uuid, options).map_err(|error| error.at(name))?;
    if let Some(disks) = &lvm.disks {
        disks::judge(&report, disks).map_err(|error| {
            let file = options.memory.as_ref().map(|file| format!("remove {} and ", file.display()));
            let hint =
                format!("if they were changed on purpose, {}restart the driver", file.unwrap_or_default());
            error.at(name).hint(hint)
        })?;
    }
    Ok(report)
}

pub(super) fn judge(report: &Report, uuid: Option<&str>, options: &LvmOptions) -> Result<()> {
    if let Some(expected) = uuid.filter(|expected| **expected != *report.uuid) {
        let reason = format!("its UUID is {} and not {expected}", report.uuid);
        let error = Error::new(ErrorKind::WrongDevice, OPEN, reason);
        return Err(error.hint(
            "another disk has a group of this name: attach the right one, or use another name; if the group was made again \
             on purpose, remove the file that the driver knows it by, and restart the driver",
        ));
    }
    if !report.flaws.is_empty() {
        let error = Error::new(ErrorKind::Unreadable, OPEN, report.flaws.join(", "));
        return Err(error
            .hint("nothing is known about what is missing or changed elsewhere; use a complete local one"));
    }
    let is_ours = |found: &Found| Record::from_tags(&options.driver, &found.tags).is_some();
    let is_pool = |found: &Found| matches!(found.kind, Kind::Pool(_));
    let others: Vec<&str> = report
        .volumes
        .iter()
        .filter(|found| !is_ours(found) && !is_pool(found))
        .map(|found| &*found.name)
        .collect();
    if !others.is_empty() && !options.allows_others {
        let reason = format!(
            "{} of its logical volumes are not of {}, such as {}",
            others.len(),
            options.driver,
            others[..others.len().min(MAX_NAMED)].join(", ")
        );
        let error = Error::new(ErrorKind::NotOwned, OPEN, reason);
        return Err(error.hint("use a volume group for this driver alone, or allow others in it"));
    }
    Ok(())
}
