//! The mount table of this thread's namespace, as `/proc/self/mountinfo` lists it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::{Error, ErrorKind, Result};
use crate::sys::attributes::MountAttributes;
use crate::sys::features::{self, Feature};
use crate::sys::ids::{DeviceNumber, MountId};
use crate::sys::super_options::SuperOptions;

const TABLE: &str = "/proc/thread-self/mountinfo";
const OPERATION: &str = "read mount table";
/// How many times the table is read again because it changed meanwhile.
const MAX_ATTEMPTS: u32 = 20;
/// The same on kernels where every read lists all mounts that stay.
const MAX_WHOLE_ATTEMPTS: u32 = 3;

/// One mount; see `proc_pid_mountinfo(5)`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountEntry {
    /// The id of the mount.
    pub id: MountId,
    /// The mount that it is mounted on.
    pub parent: MountId,
    /// The device of the filesystem. A filesystem without its own block device has a number with major 0.
    pub device: DeviceNumber,
    /// The directory or file of the filesystem that is visible at the mount point. If it was deleted, the kernel
    /// adds `//deleted`, and several can have had this path: see [`shows_same`](Self::shows_same).
    pub root: PathBuf,
    /// Where it is mounted, relative to this process's root. Bytes that are not UTF-8 are kept.
    pub mount_point: PathBuf,
    /// The attributes of the mount.
    pub attributes: MountAttributes,
    /// The peer group that it shares propagation with.
    pub peer_group: Option<u64>,
    /// The peer group that it receives mounts from.
    pub master: Option<u64>,
    /// The type of the filesystem, with its subtype: `ext4`, `fuse.sshfs`.
    pub fs_type: String,
    /// What was mounted: the path of a device, a server, or an arbitrary word.
    pub source: OsString,
    /// The options of the filesystem.
    pub super_options: SuperOptions,
}

impl MountEntry {
    /// Returns whether both mounts show one file or directory. False if that cannot be known, because it was
    /// deleted.
    pub fn shows_same(&self, other: &Self) -> bool {
        self.id == other.id
            || (self.device == other.device && self.root == other.root && !is_deleted(&self.root))
                && !is_deleted(&other.root)
    }

    /// Returns whether the file or directory that the mount shows was deleted.
    pub fn is_root_deleted(&self) -> bool {
        is_deleted(&self.root)
    }
}

/// Whether the root of a mount was deleted. The kernel writes `//` in no other path. To [`Path`], the text is
/// equal to that of a directory `deleted`.
pub(crate) fn is_deleted(root: &Path) -> bool {
    root.as_os_str().as_bytes().ends_with(b"//deleted")
}

/// Returns every mount of this thread's namespace that is reachable from its root, parents before children.
///
/// The time grows with the number of mounts; for one path use [`Mounts::state`](crate::Mounts::state).
///
/// If the kernel reports that the table changed during the read, it is read again. If it keeps changing, the
/// result contains every mount that existed during the whole of one read; mounts that came or went meanwhile
/// can be in it or not. That needs Linux 5.8; before, a mount could be missed because another one went.
///
/// # Errors
/// - [`ErrorKind::Busy`]: before Linux 5.8, the table changed during each of many reads.
/// - [`ErrorKind::Io`]: /proc is not mounted, or a line cannot be parsed.
pub fn mounts() -> Result<Vec<MountEntry>> {
    read_until(
        |bytes, is_whole| is_whole.then(|| parse_mountinfo(bytes)).transpose(),
        |bytes| {
            let mut entries = parse_mountinfo(bytes)?;
            // A mount that was moved meanwhile can be listed twice.
            let mut seen = BTreeSet::new();
            entries.reverse();
            entries.retain(|entry| seen.insert(entry.id));
            entries.reverse();
            Ok(entries)
        },
    )
}

/// The mount with this id, if this namespace has it. The caller holds the mount open, so that the id is not
/// reused.
pub(crate) fn mount_by_id(id: MountId) -> Result<Option<MountEntry>> {
    let entry = |bytes: &[u8]| -> Result<_> {
        Ok(line_of(bytes, id).map(parse_mountinfo).transpose()?.and_then(|mut found| found.pop()))
    };
    let take = |bytes: &[u8], is_whole| {
        let found = entry(bytes)?;
        Ok((found.is_some() || is_whole).then_some(found))
    };
    read_until(take, entry)
}

/// Reads the table until `take` accepts a read. Its second argument says whether the read is whole. If every
/// read lists all mounts that stayed, `last` gets the last of several torn reads.
fn read_until<T>(
    take: impl Fn(&[u8], bool) -> Result<Option<T>>,
    last: impl FnOnce(&[u8]) -> Result<T>,
) -> Result<T> {
    let mut table = open()?;
    // Since kernels report mount ids by statx, they continue a read after a mount, and not after a number of
    // mounts.
    let lists_all_that_stay = features::probe(Feature::StatxMount);
    let mut pause = Duration::from_millis(1);
    for attempt in 1.. {
        let (bytes, consistency) = read(&mut table)?;
        if let Some(taken) = take(&bytes, consistency == Consistency::Whole)? {
            return Ok(taken);
        }
        if lists_all_that_stay && attempt >= MAX_WHOLE_ATTEMPTS {
            return last(&bytes);
        }
        if attempt >= MAX_ATTEMPTS {
            break;
        }
        if !lists_all_that_stay {
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }
    Err(Error::new(ErrorKind::Busy, OPERATION, "it changed during each of many reads").at(TABLE))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Consistency {
    Whole,
    Torn,
}

fn open() -> Result<File> {
    File::open(TABLE).map_err(|error| Error::os(OPERATION, TABLE, error))
}

fn read(table: &mut File) -> Result<(Vec<u8>, Consistency)> {
    let mut bytes = Vec::with_capacity(16 * 1024);
    // The kernel reports each change of the table once, as an exceptional condition of the file.
    let changed = || -> io::Result<bool> {
        let mut fds = [PollFd::new(table.as_fd(), PollFlags::POLLPRI)];
        Ok(poll(&mut fds, PollTimeout::ZERO)? > 0
            && fds[0].revents().is_some_and(|found| found.contains(PollFlags::POLLPRI)))
    };
    let read = (|| {
        changed()?;
        let mut reader: &File = table;
        reader.rewind()?;
        reader.read_to_end(&mut bytes)?;
        changed()
    })();
    if read.map_err(|error| Error::os(OPERATION, TABLE, error))? {
        Ok((bytes, Consistency::Torn))
    } else {
        Ok((bytes, Consistency::Whole))
    }
}

/// The line of that mount. The other lines are not parsed.
fn line_of(text: &[u8], id: MountId) -> Option<&[u8]> {
    let start = format!("{} ", id.0);
    text.split(|byte| *byte == b'\n').find(|line| line.starts_with(start.as_bytes()))
}

/// Parses the text of a mountinfo file, for example that of another process.
///
/// Escaped characters (`\040`) are decoded, and unknown optional fields are skipped.
///
/// # Errors
/// [`ErrorKind::Io`] with the number of the line that is not in this form.
pub fn parse_mountinfo(text: &[u8]) -> Result<Vec<MountEntry>> {
    let lines = text.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    lines
        .map(|(index, line)| {
            parse_line(line).ok_or_else(|| {
                let reason = format!("line {} is not in the format of mountinfo", index + 1);
                Error::new(ErrorKind::Io, OPERATION, reason)
            })
        })
        .collect()
}

/// Parses `36 35 98:0 /root /mount/point rw,noatime shared:1 master:2 - ext4 /dev/source rw,errors=continue`.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut next = || fields.next();
    let id = MountId(number(next()?)?);
    let parent = MountId(number(next()?)?);
    let device = device(next()?)?;
    let root = unescaped(next()?).into();
    let mount_point = unescaped(next()?).into();
    let attributes = attributes(next()?);
    let mut peer_group = None;
    let mut master = None;
    loop {
        match next()? {
            b"-" => break,
            field => match field.iter().position(|byte| *byte == b':').map(|at| field.split_at(at)) {
                Some((b"shared", group)) => peer_group = Some(number(&group[1..])?),
                Some((b"master", group)) => master = Some(number(&group[1..])?),
                _ => {}
            },
        }
    }
    let fs_type = unescaped(next()?).into_string().unwrap_or_else(|raw| raw.to_string_lossy().into_owned());
    let source = unescaped(next()?);
    // An empty list of options leaves no field.
    let super_options = SuperOptions::new(unescaped(next().unwrap_or_default()).into_vec());
    Some(MountEntry {
        id,
        parent,
        device,
        root,
        mount_point,
        attributes,
        peer_group,
        master,
        fs_type,
        source,
        super_options,
    })
}

fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn device(field: &[u8]) -> Option<DeviceNumber> {
    let colon = field.iter().position(|byte| *byte == b':')?;
    Some(DeviceNumber { major: number(&field[..colon])?, minor: number(&field[colon + 1..])? })
}

/// mountinfo names every access time mode except strictatime.
fn attributes(field: &[u8]) -> MountAttributes {
    // The attributes of nearly every mount.
    if field == b"rw,relatime" {
        return MountAttributes::empty();
    }
    let words = field.split(|byte| *byte == b',').filter_map(|word| std::str::from_utf8(word).ok());
    let start = MountAttributes::STRICTATIME;
    words.fold(start, |attributes, word| attributes.apply_option(word).unwrap_or(attributes))
}

/// Decodes what the kernel escapes as a backslash and three octal digits.
pub(crate) fn unescaped(field: &[u8]) -> OsString {
    if !field.contains(&b'\\') {
        return OsStr::from_bytes(field).to_owned();
    }
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if *first == b'\\' => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(bytes)
}

/// The directory that a mount covers, independent of the path that leads there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CoveredDirectory {
    /// The filesystem that has the directory.
    pub(crate) device: DeviceNumber,
    /// Its path in that filesystem.
    pub(crate) path: PathBuf,
}

impl CoveredDirectory {
    /// What the mount covers in `below`, its parent mount.
    pub(crate) fn of(entry: &MountEntry, below: &MountEntry) -> Option<Self> {
        let relative = entry.mount_point.strip_prefix(&below.mount_point).ok()?;
        Some(Self { device: below.device, path: below.root.join(relative) })
    }
}

/// The other mounts of the same filesystem, at other places: an operation on the filesystem through one mount affects
/// all of them. A copy of the mount by propagation covers the same directory by another path and disappears together
/// with the mount, so it does not count.
pub(crate) fn siblings<'t>(table: &'t [MountEntry], mount: &MountEntry) -> Vec<&'t MountEntry> {
    let covered = |entry: &MountEntry| {
        let below = table.iter().find(|other| other.id == entry.parent)?;
        CoveredDirectory::of(entry, below)
    };
    let own = covered(mount);
    let is_sibling = |other: &&MountEntry| {
        other.id != mount.id && other.device == mount.device && (own.is_none() || covered(other) != own)
    };
    table.iter().filter(is_sibling).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &[u8]) -> MountEntry {
        parse_mountinfo(line).unwrap().remove(0)
    }

    #[test]
    fn a_line_is_found_by_its_whole_number() {
        let text = b"11 0 0:1 / /a rw - tmpfs x rw\n1 0 0:1 / /b rw - tmpfs x rw\n";
        let entry = one(line_of(text, MountId(1)).unwrap());
        assert_eq!(entry.mount_point, Path::new("/b"));
        assert_eq!(line_of(text, MountId(0)), None);
    }

    #[test]
    fn accepts_an_empty_source_and_no_options() {
        let entry = one(b"1 0 0:1 / /a rw - tmpfs  ");
        assert_eq!(entry.source, "");
    }

    /// [`Path`] compares `//` as `/`, and several deleted directories can have had one path.
    #[test]
    fn a_deleted_root_is_like_no_other() {
        let entry =
            |id: u64, root: &str| one(format!("{id} 1 8:1 {root} /at rw - ext4 /dev/sda1 rw").as_bytes());
        let deleted = entry(36, "/vol//deleted");
        let live = entry(37, "/vol/deleted");
        assert!(deleted.is_root_deleted() && !live.is_root_deleted());
        assert!(!deleted.shows_same(&live) && !live.shows_same(&deleted));
        assert!(!deleted.shows_same(&entry(38, "/vol//deleted")));
        assert!(deleted.shows_same(&deleted) && live.shows_same(&entry(39, "/vol/deleted")));
    }

    #[test]
    fn names_the_first_line_that_is_not_mountinfo() {
        let good = "1 0 0:1 / /a rw - tmpfs x rw\n";
        for bad in
            ["x", "1 0 0:1 / /a rw tmpfs x rw", "1 0 01 / /a rw - tmpfs x rw", "-1 0 0:1 / /a rw - t x rw"]
        {
            let error = parse_mountinfo(format!("{good}{bad}\n").as_bytes()).unwrap_err();
            assert!(error.to_string().contains("line 2"), "{bad}: {error}");
        }
    }
}
