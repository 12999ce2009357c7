//! The content of a published volume, written and read as a workload does it.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::{Failure, Outcome, check};
use crate::test::Kind;

/// The size of one write in bytes. All bytes of a write are the same letter.
pub(crate) const PIECE: usize = 64 << 10;

/// Runs work that can block, and gives it up after 30 s, because a volume can hang. Hanging work stays on its
/// own thread, which neither the runtime nor the process waits for at exit.
pub(crate) async fn io<T: Send + 'static>(
    what: &str,
    path: &Path,
    work: impl FnOnce(&Path) -> std::io::Result<T> + Send + 'static,
) -> Outcome<T> {
    let owned = path.to_owned();
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || drop(tell.send(work(&owned))));
    let done = tokio::time::timeout(Duration::from_secs(30), told).await;
    let failed = |came: String| Box::new(Failure::new(what, format!("{}: {came}", path.display())));
    match done {
        Ok(Ok(result)) => result.map_err(|error| failed(error.to_string())),
        Ok(Err(_)) => Err(failed("the work panicked".into())),
        Err(_) => Err(failed("no answer in 30 s".into())),
    }
}

/// The metadata of a path, if it exists.
pub(crate) async fn at(
    path: &Path,
    look: fn(&Path) -> std::io::Result<std::fs::Metadata>,
) -> Outcome<Option<std::fs::Metadata>> {
    io("a check of the target", path, move |path| Ok(look(path).ok())).await
}

/// The path that a volume's content is written to.
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

/// Checks that the volume holds a piece of this letter.
pub(crate) async fn holds(target: &Path, kind: Kind, letter: u8) -> Outcome {
    let work = |path: &Path| {
        let mut piece = vec![0; PIECE];
        File::open(path)?.read_exact(&mut piece)?;
        Ok(piece)
    };
    let due = format!("the written content {:?}", char::from(letter));
    let found = io(&due, &place(target, kind), work).await?;
    check(found == vec![letter; PIECE], &due, || match found.iter().all(|one| *one == found[0]) {
        true => format!("{:?}", char::from(found[0])),
        false => "other content".into(),
    })
}

/// The size that a workload sees, in bytes.
pub(crate) async fn size(target: &Path, kind: Kind) -> Outcome<u64> {
    #[cfg(target_os = "linux")]
    if kind == Kind::Files {
        let total = |path: &Path| {
            csi_mount::stats(path).map(|stats| stats.bytes.total).map_err(std::io::Error::other)
        };
        return io("the filesystem's size", target, total).await;
    }
    let end = |path: &Path| File::open(path)?.seek(SeekFrom::End(0));
    io("the device's size", &place(target, kind), end).await
}
