//! Copies a file: with shared blocks if possible, otherwise as sparse as the original. Used for snapshots and
//! clones of images.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::sys::descriptor::reopen_file;

const COPY: &str = "copy";

/// What was copied, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Copied {
    /// The number of entries: files, directories, links.
    pub entries: u64,
    /// Bytes of files that were copied, without holes. A write that happens meanwhile can be in the copy
    /// partly.
    pub bytes: u64,
    /// Bytes of files that share their blocks with the copy until one of the two is written (`FICLONE`). All
    /// bytes of such a file are of the same moment.
    pub shared: u64,
}

impl Copied {
    pub(crate) fn add(&mut self, other: Self) {
        let Self { entries, bytes, shared } = other;
        self.entries += entries;
        self.bytes += bytes;
        self.shared += shared;
    }
}

/// Copies a regular file to a new file.
///
/// It makes a reflink if the filesystem supports that (btrfs, XFS, bcachefs, NFS 4.2 and others); otherwise
/// it copies the data without the holes. The new file belongs to the caller, has mode 0600 and is not synced.
/// After a failure the caller has to remove the incomplete copy.
///
/// Man pages: ioctl_ficlone(2) (Linux 4.5), copy_file_range(2), lseek(2).
///
/// # Errors
/// - [`NotFound`](crate::ErrorKind::NotFound): the file does not exist.
/// - [`InvalidInput`](crate::ErrorKind::InvalidInput): it is a symbolic link or any other special file, which
///   is not opened.
/// - [`OutOfRange`](crate::ErrorKind::OutOfRange): it is larger than the filesystem of the copy allows.
/// - [`NoSpace`](crate::ErrorKind::NoSpace): the filesystem has no space left.
/// - [`Io`](crate::ErrorKind::Io): the copy exists already.
pub fn copy_file(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Copied> {
    let from = from.as_ref();
    let to = to.as_ref();
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let source = rustix::fs::open(from, flags, Mode::empty())
        .and_then(|place| reopen_file(place, OFlags::RDONLY))
        .map_err(|error| match error {
            Errno::INVAL => Error::os(COPY, from, error).add_reason("it is not a regular file"),
            _ => Error::os(COPY, from, error),
        })?;
    let source = File::from(source);
    let copy = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(to)
        .map_err(|error| Error::os(COPY, to, error))?;
    let copied = copy_contents(&source, &copy).map_err(|error| Error::os(COPY, from, error))?;
    Ok(Copied { entries: 1, ..copied })
}

/// The same between open files. `to` is empty.
pub(crate) fn copy_contents(from: &File, to: &File) -> io::Result<Copied> {
    let size = from.metadata()?.len();
    match rustix::fs::ioctl_ficlone(to, from) {
        Ok(()) => return Ok(Copied { shared: size, ..Copied::default() }),
        // Another filesystem, one without reflinks, or a kernel that does not know the request.
        Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOTTY | Errno::NOSYS) => {}
        Err(error) => return Err(error.into()),
    }
    // Only up to the size at the start: a copy of a file that keeps growing would never end.
    to.set_len(size)?;
    let mut bytes = 0;
    for range in data_ranges(from, 0) {
        let Range { start, end } = range?;
        let end = end.min(size);
        if start >= end {
            break;
        }
        rustix::fs::seek(from, SeekFrom::Start(start))?;
        rustix::fs::seek(to, SeekFrom::Start(start))?;
        // The kernel or the server does the copy where it can (`copy_file_range`).
        bytes += io::copy(&mut from.take(end - start), &mut &*to)?;
    }
    Ok(Copied { bytes, ..Copied::default() })
}

/// The ranges of a file that hold data, in ascending order, from an offset on.
///
/// Between them are holes, which read as zeros (`SEEK_DATA`, `SEEK_HOLE`). A hole that the filesystem does
/// not report counts as data. The call moves the position of the file. Man page: lseek(2).
///
/// # Errors
/// An item can be the error of lseek(2); it is then the last one.
pub fn data_ranges(file: &File, from: u64) -> impl Iterator<Item = io::Result<Range<u64>>> + '_ {
    let mut at = Some(from);
    std::iter::from_fn(move || {
        let range = next_data(file, at.take()?).transpose()?;
        at = range.as_ref().ok().map(|range| range.end);
        Some(range)
    })
}

fn next_data(file: &File, from: u64) -> io::Result<Option<Range<u64>>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        Ok(end) => Ok((end > start).then_some(start..end)),
        // The file was truncated meanwhile.
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
