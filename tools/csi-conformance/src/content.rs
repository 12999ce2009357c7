//! The content of a published volume, written and read as a workload does it.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::{Failure, Outcome, check};

/// The two access types of a volume: mount and block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Files,
    Device,
}

/// The size of one write in bytes. All bytes of a write are the same letter.
pub(crate) const PIECE: usize = 64 << 10;

const IO_TIME_LIMIT: Duration = Duration::from_secs(30);
/// The slowest volume whose bulk writes end in time, in bytes per second.
const SLOWEST: u64 = 4 << 20;

/// Runs work that can block, and gives it up after 30 s, because a volume can hang. Hanging work stays on its
/// own thread, which neither the runtime nor the process waits for at exit.
pub(crate) async fn io<T: Send + 'static>(
    what: &str,
    path: &Path,
    work: impl FnOnce(&Path) -> std::io::Result<T> + Send + 'static,
) -> Outcome<T> {
    io_within(IO_TIME_LIMIT, what, path, work).await
}

async fn io_within<T: Send + 'static>(
    limit: Duration,
    what: &str,
    path: &Path,
    work: impl FnOnce(&Path) -> std::io::Result<T> + Send + 'static,
) -> Outcome<T> {
    let owned = path.to_owned();
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || drop(tell.send(work(&owned))));
    let done = tokio::time::timeout(limit, told).await;
    let failed = |came: String| Box::new(Failure::new(what, format!("{}: {came}", path.display())));
    match done {
        Ok(Ok(result)) => result.map_err(|error| failed(error.to_string())),
        Ok(Err(_)) => Err(failed("the work panicked".into())),
        Err(_) => Err(failed(format!("no answer in {limit:?}"))),
    }
}

pub(crate) async fn at(
    path: &Path,
    look: fn(&Path) -> std::io::Result<std::fs::Metadata>,
) -> Outcome<Option<std::fs::Metadata>> {
    io("a check of the target", path, move |path| Ok(look(path).ok())).await
}

fn place(target: &Path, kind: Kind) -> PathBuf {
    if kind == Kind::Files { target.join("file") } else { target.to_owned() }
}

fn write_piece(path: &Path, kind: Kind, letter: u8, at: u64) -> std::io::Result<()> {
    // If a device is missing at its path, no file is created there.
    let mut file = File::options().write(true).create(kind == Kind::Files).truncate(false).open(path)?;
    file.seek(SeekFrom::Start(at))?;
    file.write_all(&[letter; PIECE])?;
    file.sync_all()
}

/// Writes a piece of this letter, and syncs it to the volume.
pub(crate) async fn write(target: &Path, kind: Kind, letter: u8) -> Outcome {
    write_at(target, kind, letter, 0).await
}

pub(crate) async fn write_at(target: &Path, kind: Kind, letter: u8, at: u64) -> Outcome {
    let work = move |path: &Path| write_piece(path, kind, letter, at);
    io("a write through the target", &place(target, kind), work).await
}

/// Whether a write succeeds. It also fails if the target does not exist, so check that first.
pub(crate) async fn takes_writes(target: &Path, kind: Kind) -> Outcome<bool> {
    let work = move |path: &Path| Ok(write_piece(path, kind, b'w', 0).is_ok());
    io("a write that ends", &place(target, kind), work).await
}

pub(crate) async fn holds(target: &Path, kind: Kind, letter: u8) -> Outcome {
    let work = |path: &Path| {
        let mut piece = vec![0; PIECE];
        File::open(path)?.read_exact(&mut piece)?;
        Ok(piece)
    };
    let due = format!("the written content {:?}", char::from(letter));
    let found = io(&due, &place(target, kind), work).await?;
    check(found == vec![letter; PIECE], &due, || {
        if found.iter().all(|one| *one == found[0]) {
            format!("{:?}", char::from(found[0]))
        } else {
            "other content".into()
        }
    })
}

/// The size that a workload sees, in bytes.
pub(crate) async fn size(target: &Path, kind: Kind) -> Outcome<u64> {
    #[cfg(target_os = "linux")]
    if kind == Kind::Files {
        let total = |path: &Path| {
            csi_mount::Host::kernel()
                .mounts()
                .stats(path)
                .map(|stats| stats.bytes.total)
                .map_err(std::io::Error::other)
        };
        return io("the filesystem's size", target, total).await;
    }
    let end = |path: &Path| File::open(path)?.seek(SeekFrom::End(0));
    io("the device's size", &place(target, kind), end).await
}

/// The bytes that the kernel reports as used and as available on the filesystem at a target. None on systems
/// other than Linux.
pub(crate) async fn kernel_usage(target: &Path) -> Outcome<Option<(u64, u64)>> {
    #[cfg(target_os = "linux")]
    {
        let ask = |path: &Path| {
            let stats = csi_mount::Host::kernel().mounts().stats(path).map_err(std::io::Error::other)?;
            Ok(Some((stats.bytes.used, stats.bytes.available)))
        };
        io("the filesystem's usage", target, ask).await
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = target;
        Ok(None)
    }
}

const BULK: &str = "bulk";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Filled {
    pub(crate) bytes: u64,
    /// Whether the volume had no room for more.
    pub(crate) is_full: bool,
}

/// Writes this number of bytes to a file of the volume, or as many as fit. The bytes can't be compressed.
pub(crate) async fn fill(target: &Path, bytes: u64) -> Outcome<Filled> {
    let limit = IO_TIME_LIMIT + Duration::from_secs(bytes / SLOWEST);
    let work = move |path: &Path| {
        #[cfg(target_os = "linux")]
        become_workload()?;
        write_bulk(path, bytes)
    };
    io_within(limit, "writes until the volume is full", &target.join(BULK), work).await
}

/// Removes the file of [`fill`].
pub(crate) async fn clear(target: &Path) -> Outcome {
    let remove = |path: &Path| {
        std::fs::remove_file(path.join(BULK))?;
        // Some filesystems report freed space only after a sync.
        File::open(path)?.sync_all()
    };
    io("the removal of a file", target, remove).await
}

/// Takes a capability from this thread that workloads do not have: with it the quotas of ext4 are no limit.
#[cfg(target_os = "linux")]
fn become_workload() -> std::io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    sets.effective.remove(rustix::thread::CapabilitySet::SYS_RESOURCE);
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

fn write_bulk(path: &Path, most: u64) -> std::io::Result<Filled> {
    let mut file = File::create(path)?;
    let mut bytes = 0;
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut piece = vec![0; PIECE];
    while bytes < most {
        for word in piece.chunks_exact_mut(8) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            word.copy_from_slice(&random.to_le_bytes());
        }
        // A filesystem that allocates late reports a lack of room only when data is synced.
        let wrote = file.write_all(&piece).and_then(|()| match bytes % (8 << 20) {
            0 => file.sync_data(),
            _ => Ok(()),
        });
        match wrote {
            Ok(()) => bytes += PIECE as u64,
            Err(error) if is_no_room(&error) => return Ok(Filled { bytes, is_full: true }),
            Err(error) => return Err(error),
        }
    }
    match file.sync_all() {
        Err(error) if is_no_room(&error) => Ok(Filled { bytes: bytes.min(most), is_full: true }),
        synced => synced.map(|()| Filled { bytes, is_full: false }),
    }
}

/// ENOSPC, EDQUOT or EFBIG.
fn is_no_room(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
