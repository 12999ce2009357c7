//! The attached loop devices: listed from `/proc/partitions` and sysfs, which ask no filesystem, and
//! queried one by one in a child process, so that the caller can't hang.
//!
//! Only the loop device itself can say what it is attached to, and the kernel then stats the backing file.
//! If the server of that file's filesystem is gone, a query about *any* such loop device hangs, unless a
//! child process makes it and is given up in time. An answer is kept: it stays true while the device keeps
//! its sequence number. Silence is kept too ([`in_flight`]), so that one device that does not answer delays
//! one call and not each call of each volume.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::libc;

use crate::bounded::in_flight::{self, Asked, Repeat, Subject, Unanswered};
use crate::device::block_device::BlockDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::path::lookup;
use crate::sys::child::{self, ChildCall};
use crate::sys::features::{self, Feature};
use crate::sys::ids::DeviceNumber;
use crate::sys::ioctl::{self, LoopInfo, LoopStatus};

const BLOCK: &str = "/sys/block";
const PARTITIONS: &str = "/proc/partitions";
const ASK: &str = "read the status of loop device";
/// How many bytes are asked for at once: more than the kernel returns.
const PIECE: usize = 64 * 1024;
/// How often a table is read that changes each time. A disk that stays is missing in all of them only if
/// another one is removed at the same point of each read.
const MAX_TABLES: usize = 10;

/// An attached loop device, as sysfs lists it.
#[derive(Debug, Clone)]
pub(crate) struct ListedDevice {
    /// The kernel's name: `loop3`.
    name: OsString,
    pub(crate) number: DeviceNumber,
    /// The disk sequence number, from Linux 5.15.
    pub(crate) sequence: Option<u64>,
}

/// A loop device and what it reports that it is attached to.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) listed: ListedDevice,
    pub(crate) info: LoopInfo,
}

/// What is known of a loop device before it is queried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relevance {
    /// It can't be a wanted one.
    Unwanted,
    /// It is most likely not a wanted one. If it does not answer, it counts as unrelated and is left out, and is
    /// not asked by later calls.
    Unlikely,
    /// As unlikely, but each call asks it: the filesystem of the wanted file can be one that does not always
    /// answer.
    Possible,
    /// It looks like a wanted one. If it does not answer, the result is unknown, which is an error.
    Likely,
}

impl ListedDevice {
    fn read(name: &OsStr, number: DeviceNumber) -> io::Result<Self> {
        let sequence = if features::has(Feature::DiskSequence) {
            optional(attribute(&Path::new(BLOCK).join(name).join("diskseq")))?
        } else {
            None
        };
        let sequence = sequence.and_then(|text| std::str::from_utf8(&text).ok()?.trim_end().parse().ok());
        Ok(Self { name: name.to_owned(), number, sequence })
    }

    /// The path of the backing file as the kernel writes it: relative to the caller's root if it is
    /// reachable from there, otherwise relative to that of some other mount namespace. This is a hint, not
    /// a proof: it can be the path of another file. Empty if the device was detached, or the path is too long.
    pub(crate) fn backing(&self) -> PathBuf {
        self.read_backing().ok().flatten().unwrap_or_default()
    }

    /// None if nothing is attached.
    fn read_backing(&self) -> io::Result<Option<PathBuf>> {
        let path = Path::new(BLOCK).join(&self.name).join("loop/backing_file");
        let read = match attribute(&path) {
            // It is longer than the kernel writes there.
            Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => Ok(Vec::new()),
            read => read,
        };
        let Some(mut backing) = optional(read)? else { return Ok(None) };
        if backing.last() == Some(&b'\n') {
            backing.pop();
        }
        Ok(Some(OsString::from_vec(backing).into()))
    }

    pub(crate) fn node(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    /// What a query about it is about: this attachment, and not a later one with the same number.
    fn subject(&self) -> Subject {
        // Before Linux 5.15: each attachment gets a new directory in sysfs.
        let directory =
            || fs::metadata(Path::new(BLOCK).join(&self.name).join("loop")).map(|found| found.ino());
        Subject::LoopDevice(self.number, self.sequence.or_else(|| directory().ok()))
    }

    /// Whether the backing file looks like the node of one of these devices: by its name, or by what is at
    /// its path.
    pub(crate) fn can_be_node_of(&self, devices: &[(DeviceNumber, OsString)]) -> bool {
        let backing = self.backing();
        let name = backing.file_name();
        devices.iter().any(|(_, device)| Some(device.as_os_str()) == name)
            || lookup::cached_node(&backing)
                .is_some_and(|node| devices.iter().any(|(number, _)| *number == node))
    }

    fn attribute(&self, name: &str) -> Option<String> {
        let path = Path::new(BLOCK).join(&self.name).join(name);
        fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
    }
}

pub(crate) fn likely_if(looks_wanted: bool) -> Relevance {
    if looks_wanted { Relevance::Likely } else { Relevance::Unlikely }
}

/// The attached loop devices that `hint` allows, and whose own answer `wanted` accepts.
///
/// # Errors
///
/// [`Unresponsive`](ErrorKind::Unresponsive) if a [likely](Relevance::Likely) one does not answer.
pub(crate) fn attached(
    hint: impl Fn(&ListedDevice) -> Relevance,
    wanted: impl Fn(&ListedDevice, &LoopInfo) -> bool,
) -> Result<Vec<Attached>> {
    let listed = list()?;
    let mut known = Vec::new();
    let mut unknown = Vec::new();
    {
        let answers = answers();
        for listed in listed {
            match answers.get(&listed.number).filter(|answer| Some(answer.sequence) == listed.sequence) {
                Some(answer) => known.push((listed, answer.info)),
                None => unknown.push(listed),
            }
        }
    }
    // The answer of a known one is still true, so nothing else is read of it: every volume's steps come here,
    // and there can be many devices.
    let mut attached = Vec::new();
    for listed in unknown {
        if listed.read_backing().map_err(failed_to_list)?.is_some() {
            attached.push(listed);
        }
    }
    let mut unknown = attached;
    unknown.retain(|listed| hint(listed) != Relevance::Unwanted);
    // One that looks wanted is asked each time: the caller depends on it.
    let relevance: Vec<_> = unknown.iter().map(&hint).collect();
    let unknown: Vec<_> = unknown.into_iter().zip(relevance).collect();
    let repeat = |relevance| match relevance {
        Relevance::Likely | Relevance::Possible => Repeat::Always,
        Relevance::Unlikely | Relevance::Unwanted => Repeat::UnlessSilent,
    };
    let answers = in_flight::ask_all(&unknown, |(listed, relevance)| ask(listed, repeat(*relevance)));
    let mut silent = Vec::new();
    for ((listed, relevance), answer) in unknown.into_iter().zip(answers) {
        match answer? {
            Answer::Status(status) => {
                // It can be attached to something else since it was listed.
                let sequence = listed.sequence.map(|_| status.sequence);
                known.push((ListedDevice { sequence, ..listed }, status.info));
            }
            Answer::Gone => {}
            Answer::Unanswered(error) if relevance == Relevance::Likely => {
                return Err(Error::os(ASK, listed.node(), error)
                    .with_kind(ErrorKind::Unresponsive)
                    .add_reason(format!("it can be attached to {}", listed.backing().display())));
            }
            Answer::SilentBefore => silent.push(listed),
            Answer::Unanswered(error) => {
                tracing::warn!(device = %listed.node().display(), backing = %listed.backing().display(), %error,
                    "a loop device does not return its status, and is ignored as another program's device");
            }
        }
    }
    ask_again(silent);
    let mut found: Vec<_> = known.into_iter().filter(|(listed, info)| wanted(listed, info)).collect();
    found.sort_by_key(|(listed, _)| listed.number);
    Ok(found.into_iter().map(|(listed, info)| up_to_date(listed, info)).collect())
}

/// What a loop device is attached to; none if it is detached.
pub(crate) fn status(node: &Path, number: DeviceNumber) -> Result<Option<LoopInfo>> {
    let name = node.file_name().unwrap_or_default();
    let failed = |error: io::Error| Error::os(ASK, node, error);
    let listed = ListedDevice::read(name, number).map_err(failed)?;
    if listed.read_backing().map_err(failed)?.is_none() {
        return Ok(None);
    }
    match ask(&listed, Repeat::Always)? {
        Answer::Status(status) => Ok(Some(status.info)),
        Answer::Gone => Ok(None),
        Answer::SilentBefore => Err(failed(Unanswered::Silent.into())),
        Answer::Unanswered(error) => Err(failed(error)),
    }
}

/// What an open device is attached to, if it is a loop device and answers in time.
pub(crate) fn attached_as(device: &BlockDevice) -> Option<Attached> {
    let link = fs::read_link(format!("/sys/dev/block/{}", device.number())).ok()?;
    let listed = ListedDevice::read(link.file_name()?, device.number()).ok()?;
    listed.read_backing().ok()??;
    let sequence = ioctl::disk_sequence(device.as_fd()).ok();
    if listed.sequence != sequence {
        return None;
    }
    let info = match ask(&listed, Repeat::Always).ok()? {
        Answer::Status(status) if sequence.is_none_or(|sequence| sequence == status.sequence) => status.info,
        _ => return None,
    };
    Some(up_to_date(listed, info))
}

/// Keeps what this process has attached itself.
pub(crate) fn remember(number: DeviceNumber, sequence: Option<u64>, info: LoopInfo) {
    if let Some(sequence) = sequence {
        answers().insert(number, LoopStatus { info, sequence });
    }
}

/// Reads offset and size limit again: they can be changed while the device is attached.
fn up_to_date(listed: ListedDevice, mut info: LoopInfo) -> Attached {
    let number = |name| listed.attribute(name).and_then(|text| text.parse().ok());
    info.offset = number("loop/offset").unwrap_or(info.offset);
    info.size_limit = number("loop/sizelimit").unwrap_or(info.size_limit);
    Attached { listed, info }
}

/// One answer for each number. Those of devices that are gone stay, because a list can be older than an
/// answer: a caller that removed what its list lacks would make the others ask for new devices again.
static ANSWERS: Mutex<BTreeMap<DeviceNumber, LoopStatus>> = Mutex::new(BTreeMap::new());

fn answers() -> MutexGuard<'static, BTreeMap<DeviceNumber, LoopStatus>> {
    ANSWERS.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Answer {
    Status(Box<LoopStatus>),
    /// Nothing is attached any more.
    Gone,
    /// The filesystem of the backing file does not answer, or fails.
    Unanswered(io::Error),
    /// It did not answer an earlier question, and was not asked.
    SilentBefore,
}

/// Asks devices again whose turn it is, in a thread: no caller waits for them. The answers are kept.
fn ask_again(mut silent: Vec<ListedDevice>) {
    silent.retain(|listed| in_flight::takes_next_turn(&listed.subject()));
    if silent.is_empty() {
        return;
    }
    let ask_all = move || drop(in_flight::ask_all(&silent, |listed| ask(listed, Repeat::Always)));
    if let Err(error) = std::thread::Builder::new().name("loop-devices".to_owned()).spawn(ask_all) {
        tracing::debug!(%error, "silent loop devices are not asked again now");
    }
}

/// Asks the device, unless its answer is kept: at the latest when this caller's turn comes, because many
/// callers find a new device at the same time.
fn ask(listed: &ListedDevice, repeat: Repeat) -> Result<Answer> {
    let kept = || -> Option<Answer> {
        let kept = answers().get(&listed.number).copied();
        let kept = kept.filter(|kept| listed.sequence == Some(kept.sequence));
        kept.map(|status| Answer::Status(Box::new(status)))
    };
    if let Some(kept) = kept() {
        return Ok(kept);
    }
    let failed = |error: io::Error| Error::os(ASK, listed.node(), error);
    let node = in_flight::c_string(&listed.node()).map_err(failed)?;
    let keep = |answer: &child::ChildReply| {
        if answer.error == 0 {
            let status = LoopStatus::from_words(answer.words);
            remember(listed.number, listed.sequence.map(|_| status.sequence), status.info);
        }
    };
    let question = ChildCall::LoopStatus(&node);
    let asked = in_flight::ask_foreign_unless_known(listed.subject(), question, repeat, kept, keep);
    let answer = match asked {
        Ok(Asked::Answered(answer)) => answer,
        Ok(Asked::Known(kept)) => return Ok(kept),
        Err(Unanswered::Silent) => return Ok(Answer::SilentBefore),
        Err(silent @ (Unanswered::TimedOut(_) | Unanswered::Stuck)) => {
            return Ok(Answer::Unanswered(silent.into()));
        }
        Err(error @ (Unanswered::QueueTooLong | Unanswered::Failed(_))) => return Err(failed(error.into())),
    };
    match answer.error as i32 {
        0 => {}
        libc::ENXIO => return Ok(Answer::Gone),
        // Without a node, this process can't query it.
        number => return Ok(Answer::Unanswered(io::Error::from_raw_os_error(number))),
    }
    Ok(Answer::Status(Box::new(LoopStatus::from_words(answer.words))))
}

/// The loop devices that have a size: few of the nodes are attached, and `/proc/partitions` names just
/// these.
fn list() -> Result<Vec<ListedDevice>> {
    let tables = read_tables(PIECE).map_err(failed_to_list)?;
    let listed: BTreeMap<_, _> = tables.iter().flat_map(|table| numbered(table)).collect();
    let read = |(number, name)| ListedDevice::read(name, number).map_err(failed_to_list);
    listed.into_iter().map(read).collect()
}

/// Reads the table until it is whole, or the same twice; together the tables have all that stayed.
///
/// One read returns at most a page, and the next one continues after a *number* of disks. If one of those is
/// removed in between, the table lacks a disk that stays. The standard library's reads begin with 32 bytes.
fn read_tables(at_once: usize) -> io::Result<Vec<String>> {
    let mut tables = Vec::<String>::new();
    let mut piece = vec![0; at_once];
    while tables.len() < MAX_TABLES {
        let mut table = Vec::new();
        let mut pieces = 0;
        let mut file = fs::File::open(PARTITIONS)?;
        loop {
            let length = file.read(&mut piece)?;
            if length == 0 {
                break;
            }
            table.extend_from_slice(&piece[..length]);
            pieces += 1;
        }
        let table = String::from_utf8_lossy(&table).into_owned();
        let is_last = pieces < 2 || tables.last() == Some(&table);
        tables.push(table);
        if is_last {
            break;
        }
    }
    Ok(tables)
}

fn failed_to_list(error: io::Error) -> Error {
    Error::os("list the loop devices in", PARTITIONS, error)
}

/// The loop devices in the lines `major minor #blocks name`, without partitions (`loop0p1`).
fn numbered(table: &str) -> impl Iterator<Item = (DeviceNumber, &OsStr)> {
    table.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let major = fields.next()?;
        let minor = fields.next()?;
        let name = fields.nth(1)?;
        let index = name.strip_prefix("loop")?;
        let is_whole = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
        let number = DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? };
        is_whole.then_some((number, OsStr::new(name)))
    })
}

/// A file of sysfs, which has at most one page and is read in one call.
fn attribute(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = vec![0; 4096];
    let length = fs::File::open(path)?.read(&mut content)?;
    content.truncate(length);
    Ok(content)
}

/// A file of sysfs that can be gone: with nothing attached there is no `loop` directory, or its files fail.
fn optional<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(content) => Ok(Some(content)),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO | libc::EINVAL) => Ok(None),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_loop_devices_are_listed_and_nothing_else() {
        let table = "major minor  #blocks  name\n\n   7        0       8192 loop0\n 259        0       4096 loop0p1\n \
                     7       11          0 loop11\n 254        0  268435456 vda\n   8        0          1 loopy\n";
        let found: Vec<_> = numbered(table).map(|(number, name)| (number.to_string(), name)).collect();
        assert_eq!(
            found,
            [("7:0".to_owned(), OsStr::new("loop0")), ("7:11".to_owned(), OsStr::new("loop11"))]
        );
    }
}

#[cfg(test)]
mod needs_root {
    use std::os::fd::BorrowedFd;

    use rustix::io::Errno;

    use super::*;
    use crate::device::loop_device::LoopOptions;

    /// How many disks are removed while the others are listed.
    const REMOVED: u32 = 24;
    const STAYING: u32 = 8;

    /// Loop devices with numbers that nothing else uses; the last ones are attached.
    struct Disks {
        first: u32,
        attached: Vec<fs::File>,
    }

    impl Disks {
        fn new(control: BorrowedFd<'_>, backing: &fs::File) -> Self {
            let first = 10_000 + std::process::id() % 1000 * 500;
            (first..first + REMOVED + STAYING).for_each(|number| ioctl::loop_add(control, number).unwrap());
            let mut disks = Self { first, attached: Vec::new() };
            for number in first + REMOVED..first + REMOVED + STAYING {
                let node =
                    fs::File::options().read(true).write(true).open(format!("/dev/loop{number}")).unwrap();
                let info = LoopOptions::new().info(Path::new("staying"));
                ioctl::loop_set_up_in_steps(node.as_fd(), backing.as_fd(), 0, info).unwrap();
                disks.attached.push(node);
            }
            disks
        }
    }

    impl Drop for Disks {
        fn drop(&mut self) {
            self.attached.drain(..).for_each(|node| _ = ioctl::loop_clear(node.as_fd()));
            let control = fs::File::open("/dev/loop-control").unwrap();
            for number in self.first..self.first + REMOVED + STAYING {
                // A detached device is free a moment later.
                for _ in 0..1000 {
                    match ioctl::loop_remove(control.as_fd(), number) {
                        Err(Errno::BUSY) => std::thread::sleep(std::time::Duration::from_millis(5)),
                        _ => break,
                    }
                }
            }
        }
    }

    /// What is remembered of a silent device is not true of the next one with its number.
    #[test]
    fn each_attachment_is_a_subject_of_its_own() {
        let control = fs::File::open("/dev/loop-control").unwrap();
        let backing = tempfile::tempfile().unwrap();
        backing.set_len(1 << 20).unwrap();
        let number = 9_000 + std::process::id() % 1000;
        ioctl::loop_add(control.as_fd(), number).unwrap();
        let path = format!("/dev/loop{number}");
        let attached = || loop {
            let node = fs::File::options().read(true).write(true).open(&path).unwrap();
            let info = LoopOptions::new().info(Path::new("attached"));
            match ioctl::loop_set_up_in_steps(node.as_fd(), backing.as_fd(), 0, info) {
                Ok(()) => return node,
                // It is being detached.
                Err(Errno::BUSY) => std::thread::sleep(std::time::Duration::from_millis(5)),
                Err(error) => panic!("{error}"),
            }
        };
        let subject = |node: &fs::File| {
            let number =
                DeviceNumber::from_dev_t(std::os::unix::fs::MetadataExt::rdev(&node.metadata().unwrap()));
            ListedDevice::read(Path::new(&path).file_name().unwrap(), number).unwrap().subject()
        };
        for old in [&[][..], &[Feature::DiskSequence]] {
            crate::internal::without_features(old, || {
                let mut seen: Vec<Subject> = Vec::new();
                for _ in 0..3 {
                    let node = attached();
                    let found = subject(&node);
                    assert_eq!(subject(&node), found, "the same attachment");
                    assert!(!seen.contains(&found), "{found:?}");
                    seen.push(found);
                    ioctl::loop_clear(node.as_fd()).unwrap();
                }
            });
        }
        while let Err(Errno::BUSY) = ioctl::loop_remove(control.as_fd(), number) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[test]
    fn a_device_is_listed_while_other_disks_are_removed() {
        let control = fs::File::open("/dev/loop-control").unwrap();
        let backing = tempfile::tempfile().unwrap();
        backing.set_len(1 << 20).unwrap();
        let disks = Disks::new(control.as_fd(), &backing);
        std::thread::scope(|scope| {
            let removed = scope.spawn(|| {
                (disks.first..disks.first + REMOVED).for_each(|number| {
                    ioctl::loop_remove(control.as_fd(), number).unwrap();
                });
            });
            while !removed.is_finished() {
                // As with a table of many pages, and as it is.
                for at_once in [64, PIECE] {
                    let tables = read_tables(at_once).unwrap();
                    let listed: Vec<_> = tables.iter().flat_map(|table| numbered(table)).collect();
                    for number in disks.first + REMOVED..disks.first + REMOVED + STAYING {
                        let name = format!("loop{number}");
                        assert!(
                            listed.iter().any(|(_, listed)| *listed == &*name),
                            "{name} is missing: {tables:?}"
                        );
                    }
                }
            }
        });
    }
}
