//! Volumes and snapshots that are made, and grow.

use crate::erase::{self, EraseMode};
use crate::error::{ErrorKind, Result};
use crate::lvm::command::Turn;
use crate::lvm::group::{Group, LvmLayout, LvmVolume, Ours, VolumeGroup};
use crate::lvm::report::{Kind, Report};
use crate::lvm::tags::{LvmName, LvmState, Record};

const CREATE: &str = "create a logical volume in";
const GROW: &str = "grow a logical volume of";

/// A volume to create.
#[derive(Debug, Clone)]
#[must_use]
pub struct LvmRequest {
    name: String,
    bytes: u64,
    limit: Option<u64>,
    layout: LvmLayout,
    source: Option<LvmName>,
    erase: EraseMode,
    header: u64,
}

impl LvmRequest {
    /// A thick volume with this name, of at least this size. Sizes are rounded up to whole extents.
    pub fn new(name: impl Into<String>, bytes: u64) -> Self {
        Self {
            name: name.into(),
            bytes,
            limit: None,
            layout: LvmLayout::Thick,
            source: None,
            erase: EraseMode::Zero,
            header: 0,
        }
    }

    /// The largest size that is right too, in bytes.
    pub fn limit(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.limit = bytes.into();
        self
    }

    /// Where its blocks are.
    pub fn layout(mut self, layout: LvmLayout) -> Self {
        self.layout = layout;
        self
    }

    /// Its first content: a copy of this snapshot or volume, which must be thin and in the same pool. It then has at
    /// least the size of its source.
    pub fn source(mut self, source: impl Into<Option<LvmName>>) -> Self {
        self.source = source.into();
        self
    }

    /// What the volume is a copy of.
    pub fn source_name(&self) -> Option<&LvmName> {
        self.source.as_ref()
    }

    /// What [`VolumeGroup::delete`] does with the data of a thick volume: [`EraseMode::Zero`] unless set. It is recorded
    /// with the volume.
    pub fn erase(mut self, mode: EraseMode) -> Self {
        self.erase = mode;
        self
    }

    /// How many bytes of the device its user does not get: [`Luks::HEADER_BYTES`](crate::Luks::HEADER_BYTES) of an encrypted
    /// volume. They are added to every size of the volume, also when it grows, and recorded with it. A copy has the
    /// header of its source.
    pub fn header(mut self, bytes: u64) -> Self {
        self.header = bytes;
        self
    }
}

impl VolumeGroup {
    /// Creates a volume. One that exists with this name is returned if it has the requested size, source, layout and,
    /// if it is thick, erase mode.
    ///
    /// A thin volume reads as zeros by its pool's own rule. A thick one is [erased](crate::erase::erase), which can take hours,
    /// unless this driver has erased all of its extents before and no other command has changed the group since. The volume is
    /// not active afterwards.
    ///
    /// # Errors
    /// - [`ErrorKind::AlreadyExists`]: the volume exists, and differs.
    /// - [`ErrorKind::Pending`]: the volume of this name is being created or erased.
    /// - [`ErrorKind::NoSpace`]: it does not fit, or there is no such thin pool; see [`capacity`](Self::capacity).
    /// - [`ErrorKind::OutOfRange`]: no size in whole extents is within the limit, or the source is larger than it.
    /// - [`ErrorKind::NotFound`]: there is no such source.
    /// - [`ErrorKind::Unsupported`]: the source is not in this thin pool or has another header, or the pool does not
    ///   zero new blocks.
    /// - [`ErrorKind::ToolFailed`]: lvm failed. Nothing exists, or a repeated call finishes it.
    /// - Those of [`open`](Self::open).
    pub fn create(&self, request: &LvmRequest) -> Result<LvmVolume> {
        let name = LvmName::Volume(request.name.clone());
        name.check()?;
        let group = &*self.0;
        let (turn, mut report) = group.begin(CREATE)?;
        if report.find(group, &name).is_none() {
            report = self.allocate(&turn, &report, request, &name)?;
        }
        let made = report.find(group, &name).ok_or_else(|| group.missing(CREATE, &name))?;
        match made.record.state {
            LvmState::Erasing => Err(group.error(
                ErrorKind::Pending,
                CREATE,
                format!("the deleted {name} is still being erased"),
            )),
            LvmState::Ready => judge(group, &report, &made, request).map(|()| made.volume()),
            LvmState::Creating => {
                judge(group, &report, &made, request)?;
                self.finish(turn, &report, &made, request)?;
                let report = group.read()?;
                let made = report.find(group, &name).ok_or_else(|| group.missing(CREATE, &name))?;
                group.require_ready(CREATE, &made)?;
                Ok(made.volume())
            }
        }
    }

    /// Makes the logical volume with its tags, in one command.
    fn allocate(&self, turn: &Turn, report: &Report, request: &LvmRequest, name: &LvmName) -> Result<Report> {
        let group = &*self.0;
        let bytes = size(group, report, request)?;
        let source = match &request.source {
            None => None,
            Some(source) => Some(source_of(group, report, source, request)?),
        };
        let source_bytes = source.as_ref().map(|source| source.found.bytes);
        group.require_room(CREATE, report, name, &request.layout, bytes)?;
        let is_complete =
            matches!(request.layout, LvmLayout::Thin(_)) && source_bytes.is_none_or(|its| its == bytes);
        let state = if is_complete { LvmState::Ready } else { LvmState::Creating };
        let mut record = Record::new(name.clone(), state);
        record.source.clone_from(&request.source);
        record.erase = request.erase;
        record.header = request.header;
        record.was_staged = source.as_ref().is_some_and(|source| source.record.was_staged);
        let options = match (&request.layout, &source) {
            (LvmLayout::Thin(_), Some(source)) => {
                let origin = format!("{}/{}", group.name, source.found.name);
                words(&["--snapshot", "-an", "--permission", "rw", &origin])
            }
            (LvmLayout::Thin(pool), None) => {
                let size = format!("{bytes}b");
                words(&["--type", "thin", "-an", "--virtualsize", &size, "--thinpool", pool, &group.name])
            }
            (LvmLayout::Thick | LvmLayout::ThickOn(_), _) => {
                if let LvmLayout::ThickOn(tag) = &request.layout {
                    record.disks = Some(tag.clone());
                }
                group.linear(&record, bytes / report.extent)
            }
        };
        let frozen = source.as_ref().map(|source| group.freeze_above(source)).transpose()?;
        group.create(turn, &record, options, frozen)
    }

    /// Finishes a volume that is allocated: a thick one must read as zeros, a copy must have its size.
    fn finish(&self, turn: Turn, report: &Report, made: &Ours<'_>, request: &LvmRequest) -> Result<()> {
        let group = &*self.0;
        if !made.is_thin() {
            return self.clean(turn, report, made).map(drop);
        }
        let bytes = size(group, report, request)?;
        if bytes > made.found.bytes {
            group.extend(&turn, report, made, bytes, &[])?;
        }
        let record = Record { state: LvmState::Ready, ..made.record.clone() };
        group.set_record(&turn, made, &record)
    }

    /// Makes new extents ready: they must read as zeros. Returns the turn, which others had meanwhile.
    fn clean(&self, turn: Turn, report: &Report, made: &Ours<'_>) -> Result<Turn> {
        let group = &*self.0;
        let _at_erase = group.begin_erase(&made.found.uuid)?;
        let is_zero = group.know(|zeros| zeros.take(report, made.found));
        let device = group.activate(&turn, made)?;
        // The volume group is free for others while the device is read and written.
        drop(turn);
        let mut stored = made.record.clone();
        if !is_zero || erase::nonzero_place(&device)?.is_some() {
            stored = self.erase_contents(&device, made, EraseMode::Zero, &|| true)?;
        }
        drop(device);
        let turn = group.lvm.turn(CREATE)?;
        group.deactivate(&turn, &made.found.uuid)?;
        let record = Record { state: LvmState::Ready, erased: None, ..stored.clone() };
        // By its UUID: if the volume was deleted meanwhile, nothing is changed.
        group.set_record(&turn, &Ours { found: made.found, record: stored }, &record)?;
        Ok(turn)
    }

    /// Makes a snapshot of a thin volume, or returns the one that exists. If the volume is mounted on this node, its
    /// filesystem is frozen for the moment, also one on a mapping of it as of LUKS, so that the snapshot is consistent.
    /// A filesystem that a killed process left frozen is thawed by [`open`](Self::open).
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if the snapshot exists with another source; [`ErrorKind::NotFound`] if there is no
    /// such volume; [`ErrorKind::Unsupported`] if it is thick; otherwise those of [`create`](Self::create).
    pub fn snapshot(&self, name: &str, volume: &str) -> Result<LvmVolume> {
        let name = LvmName::Snapshot(name.into());
        name.check()?;
        let source_name = LvmName::Volume(volume.into());
        let group = &*self.0;
        let (turn, mut report) = group.begin(SNAPSHOT)?;
        if report.find(group, &name).is_none() {
            let source =
                report.find(group, &source_name).ok_or_else(|| group.missing(SNAPSHOT, &source_name))?;
            let Kind::Thin { pool, .. } = &source.found.kind else {
                let reason = format!("{source_name} is thick: only thin volumes have snapshots");
                return Err(group.error(ErrorKind::Unsupported, SNAPSHOT, reason));
            };
            group.require_ready(SNAPSHOT, &source)?;
            // It counts with the size of its volume, whose blocks it keeps when they are overwritten there.
            let layout = LvmLayout::Thin(pool.clone());
            group.require_room(SNAPSHOT, &report, &name, &layout, source.found.bytes)?;
            let mut record = Record::new(name.clone(), LvmState::Ready);
            record.source = Some(source_name.clone());
            record.header = source.record.header;
            record.was_staged = source.record.was_staged;
            let origin = format!("{}/{}", group.name, source.found.name);
            let options = words(&["--snapshot", "-an", "--permission", "r", &origin]);
            let frozen = group.freeze_above(&source)?;
            report = group.create(&turn, &record, options, frozen)?;
        }
        let made = report.find(group, &name).ok_or_else(|| group.missing(SNAPSHOT, &name))?;
        if made.record.source.as_ref() != Some(&source_name) {
            let reason = format!("{name} exists, and is not of {source_name}");
            return Err(group.error(ErrorKind::AlreadyExists, SNAPSHOT, reason));
        }
        Ok(made.volume())
    }

    /// Grows a volume to at least this size and at most the limit, also while it is in use. A volume that has the size
    /// already is returned as it is, whatever the limit; none ever shrinks.
    ///
    /// The new part of a thick volume is first a logical volume of its own, which is erased as
    /// [`create`](Self::create) does it; only then the volume gets it. The filesystem is grown afterwards, by
    /// [`BlockVolumes::expand`](crate::BlockVolumes::expand).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such volume; [`ErrorKind::Pending`] if it is not ready; otherwise those of
    /// [`create`](Self::create).
    pub fn grow(&self, volume: &str, bytes: u64, limit: Option<u64>) -> Result<LvmVolume> {
        let name = LvmName::Volume(volume.into());
        let group = &*self.0;
        let (turn, report) = group.begin(GROW)?;
        let ours = report.find(group, &name).ok_or_else(|| group.missing(GROW, &name))?;
        group.require_ready(GROW, &ours)?;
        let least = bytes.saturating_add(ours.record.header);
        if least <= ours.found.bytes {
            return Ok(ours.volume());
        }
        let limit = limit.map(|limit| limit.saturating_add(ours.record.header));
        let wanted = group.round_up(GROW, &report, least, limit)?;
        let report = if ours.is_thin() {
            let more = wanted - ours.found.bytes;
            group.require_room(GROW, &report, &name, &ours.volume().layout, more)?;
            group.extend(&turn, &report, &ours, wanted, &[])?
        } else {
            self.grow_thick(turn, &report, &ours, wanted)?
        };
        let ours = report.find(group, &name).ok_or_else(|| group.missing(GROW, &name))?;
        Ok(ours.volume())
    }

    /// Gives a thick volume new extents, which are a logical volume of their own until they read as zeros.
    fn grow_thick(&self, turn: Turn, report: &Report, ours: &Ours<'_>, wanted: u64) -> Result<Report> {
        let group = &*self.0;
        let name = &ours.record.name;
        let part_name = LvmName::Growth(name.as_str().to_owned());
        let more = wanted - ours.found.bytes;
        let part = report.find(group, &part_name);
        if part.as_ref().is_some_and(|part| part.found.bytes != more) {
            // A call for another size was interrupted.
            self.remove_growth(&turn, report, name)?;
            let report = group.read()?;
            let ours = report.find(group, name).ok_or_else(|| group.missing(GROW, name))?;
            return self.grow_thick(turn, &report, &ours, wanted);
        }
        let made;
        let report = if part.is_some() {
            report
        } else {
            group.require_room(GROW, report, name, &ours.volume().layout, more)?;
            let mut record = Record::new(part_name.clone(), LvmState::Creating);
            record.disks.clone_from(&ours.record.disks);
            made = group.create(&turn, &record, group.linear(&record, more / report.extent), ())?;
            &made
        };
        let part = report.find(group, &part_name).ok_or_else(|| group.missing(GROW, &part_name))?;
        let turn =
            if part.record.state == LvmState::Creating { self.clean(turn, report, &part)? } else { turn };
        let report = group.read()?;
        let ours = report.find(group, name).ok_or_else(|| group.missing(GROW, name))?;
        group.require_ready(GROW, &ours)?;
        let part = report.find(group, &part_name).filter(|part| part.record.state == LvmState::Ready);
        let Some(part) = part.filter(|part| ours.found.bytes + part.found.bytes == wanted) else {
            let reason = format!("{name} was changed by another call");
            return Err(group.error(ErrorKind::Pending, GROW, reason));
        };
        // Nobody else has the turn while these extents are free, and another command of lvm would be noticed.
        group.know(|zeros| zeros.add(&report, part.found));
        self.remove(&turn, &part)?;
        if !group.know(|zeros| zeros.take(&report, part.found)) {
            let reason = format!("the group was changed while {name} grew");
            return Err(group.error(ErrorKind::Pending, GROW, reason));
        }
        group.extend(&turn, &report, &ours, wanted, &part.found.extents)
    }

    /// Removes what an interrupted growth of this volume left.
    pub(super) fn remove_growth(&self, turn: &Turn, report: &Report, name: &LvmName) -> Result<()> {
        let part = report.find(&self.0, &LvmName::Growth(name.as_str().to_owned()));
        let Some(part) = part else { return Ok(()) };
        let _at_erase = self.0.begin_erase(&part.found.uuid)?;
        self.remove(turn, &part)
    }
}

const SNAPSHOT: &str = "make a snapshot in";

impl Group {
    /// Makes a logical volume. Nothing but this driver activates it: neither a boot nor `vgchange -ay`.
    fn create(
        &self,
        turn: &Turn,
        record: &Record,
        options: Vec<String>,
        guard: impl Send + 'static,
    ) -> Result<Report> {
        let mut arguments = words(&["lvcreate", "--yes", "--setactivationskip", "y", "--name"]);
        arguments.push(record.name.logical_volume());
        for tag in record.tags(&self.options.driver) {
            arguments.extend(["--addtag".to_owned(), tag]);
        }
        // Of a pool, before and after the message to the kernel.
        let commits = if options.iter().any(|option| option == "linear") { 1 } else { 2 };
        arguments.extend(options);
        self.make(turn, &arguments, commits, guard, |report| report.find(self, &record.name).is_some())
    }

    /// The options for a linear logical volume. What is on it is this driver's to look at: lvm wipes only the signatures
    /// that it knows.
    fn linear(&self, record: &Record, extents: u64) -> Vec<String> {
        let extents = extents.to_string();
        let mut words = words(&["--type", "linear", "-an", "-Zn", "-Wn", "--extents", &extents, &self.name]);
        words.extend(record.disks.as_ref().map(|tag| format!("@{tag}")));
        words
    }

    fn require_room(
        &self,
        operation: &'static str,
        report: &Report,
        name: &LvmName,
        layout: &LvmLayout,
        bytes: u64,
    ) -> Result<()> {
        let room = report.room(self, layout)?;
        if bytes <= room {
            return Ok(());
        }
        let reason = format!("{name} needs {bytes} bytes, and {room} are free for {layout:?}");
        Err(self.error(ErrorKind::NoSpace, operation, reason))
    }

    /// Grows a logical volume to this size, a thick one by these extents.
    fn extend(
        &self,
        turn: &Turn,
        report: &Report,
        ours: &Ours<'_>,
        bytes: u64,
        extents: &[String],
    ) -> Result<Report> {
        let size = (bytes / report.extent).to_string();
        let volume = format!("{}/{}", self.name, ours.found.name);
        let mut arguments = words(&["lvextend", "--yes", "--extents", &size, &volume]);
        arguments.extend_from_slice(extents);
        let has_size = |now: Ours<'_>| now.found.bytes >= bytes;
        self.make(turn, &arguments, 1, (), |report| {
            report.find(self, &ours.record.name).is_some_and(has_size)
        })
    }

    /// Runs a command that makes something. If it fails because a command of a process that is gone was faster, and came
    /// after the group was read, that is no failure. The callers judge what the group has then.
    fn make(
        &self,
        turn: &Turn,
        arguments: &[String],
        commits: u64,
        guard: impl Send + 'static,
        is_made: impl FnOnce(&Report) -> bool,
    ) -> Result<Report> {
        self.run(turn, arguments, commits, guard).or_else(|error| match self.read() {
            Ok(report) if error.kind() == ErrorKind::ToolFailed && is_made(&report) => Ok(report),
            _ => Err(error),
        })
    }

    /// The size in whole extents, which is within the limit.
    fn round_up(
        &self,
        operation: &'static str,
        report: &Report,
        bytes: u64,
        limit: Option<u64>,
    ) -> Result<u64> {
        let rounded = report.round_up(bytes).filter(|rounded| limit.is_none_or(|limit| *rounded <= limit));
        rounded.ok_or_else(|| {
            let reason = format!("{bytes} bytes in extents of {} are more than the limit", report.extent);
            self.error(ErrorKind::OutOfRange, operation, reason)
        })
    }
}

/// The size of a new volume in whole extents.
fn size(group: &Group, report: &Report, request: &LvmRequest) -> Result<u64> {
    let source = request.source.as_ref().and_then(|source| report.find(group, source));
    let asked = request.bytes.saturating_add(request.header);
    let least = asked.max(source.map_or(0, |source| source.found.bytes));
    let limit = request.limit.map(|limit| limit.saturating_add(request.header));
    group.round_up(CREATE, report, least, limit)
}

/// The source of a copy, which shares its blocks and so has to be in the same thin pool.
fn source_of<'r>(
    group: &'r Group,
    report: &'r Report,
    name: &LvmName,
    request: &LvmRequest,
) -> Result<Ours<'r>> {
    let source = report.find(group, name).ok_or_else(|| group.missing(CREATE, name))?;
    group.require_ready(CREATE, &source)?;
    if source.record.header != request.header {
        let headers = format!("{} bytes, and the new volume {}", source.record.header, request.header);
        let reason = format!("{name} has a header of {headers}: only one of them is encrypted");
        return Err(group.error(ErrorKind::Unsupported, CREATE, reason));
    }
    match (&request.layout, &source.found.kind) {
        (LvmLayout::Thin(pool), Kind::Thin { pool: its, .. }) if pool == its => Ok(source),
        _ => {
            let reason = format!("{name} is not in the thin pool of the new volume, so it can't be copied");
            Err(group.error(ErrorKind::Unsupported, CREATE, reason))
        }
    }
}

/// Compares a volume that exists with a request for it.
fn judge(group: &Group, report: &Report, made: &Ours<'_>, request: &LvmRequest) -> Result<()> {
    // A copy that is not finished can still grow.
    let is_unfinished_copy = made.record.state == LvmState::Creating && made.is_thin();
    let bytes = made.bytes();
    let is_large_enough = bytes >= request.bytes || is_unfinished_copy;
    let differs = if !is_large_enough || request.limit.is_some_and(|limit| bytes > limit) {
        format!("with another size ({bytes} bytes)")
    } else if made.record.source != request.source {
        "with another source".to_owned()
    } else if made.volume().layout != request.layout {
        "with another layout".to_owned()
    } else if made.record.erase != request.erase && !made.is_thin() {
        format!("with another erase mode ({})", made.record.erase)
    } else if made.record.header != request.header {
        format!("with another header ({} bytes)", made.record.header)
    } else {
        return Ok(());
    };
    let reason = format!("{} exists {differs}, in extents of {} bytes", made.record.name, report.extent);
    Err(group.error(ErrorKind::AlreadyExists, CREATE, reason))
}

pub(super) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
