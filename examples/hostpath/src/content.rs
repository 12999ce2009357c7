//! The content of volumes and snapshots: an image file, or a directory.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use csi_core::mount::{Target, copy_file};
use csi_core::{IoContext as _, Result};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::kind::Kind;
use crate::store::sync;

/// In the directory of an object whose image had a filesystem once: it is never formatted again, whatever it reads as.
const STAGED: &str = "staged";

/// Whether an image's room is taken on the disk at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    Thin,
    Thick,
}

impl Fill {
    pub(crate) fn thick(is_thick: bool) -> Self {
        if is_thick { Self::Thick } else { Self::Thin }
    }
}

/// Puts new, empty content into the directory of an object.
pub(crate) fn make(kind: Kind, place: &Path, bytes: u64, fill: Fill) -> Result<()> {
    let content = kind.content(place);
    match kind {
        Kind::Image => {
            File::options().write(true).create_new(true).open(&content).at("create", &content)?;
            grow(kind, place, bytes, fill)
        }
        Kind::Directory => {
            fs::create_dir(&content).at("create", &content)?;
            fs::set_permissions(&content, fs::Permissions::from_mode(0o755))
                .at("change the mode of", &content)?;
            sync(&content)
        }
    }
}

/// Notes that the image in the directory of an object has a filesystem.
pub(crate) fn note_staged(place: &Path) -> Result<()> {
    if !was_staged(place)? {
        File::create(place.join(STAGED)).at("create", place.join(STAGED))?;
        sync(place)?;
    }
    Ok(())
}

/// Whether the image in the directory of an object had a filesystem, or is a copy of one that had.
pub(crate) fn was_staged(place: &Path) -> Result<bool> {
    place.join(STAGED).try_exists().at("look for", place.join(STAGED))
}

/// Puts a copy of another object's content into the directory of one; its blocks are shared where the disk can.
pub(crate) fn copy(kind: Kind, from: &Path, place: &Path) -> Result<()> {
    // Before the content is copied: of a volume that is staged meanwhile the copy can still be blank.
    if was_staged(from)? {
        note_staged(place)?;
    }
    let (from, to) = (kind.content(from), kind.content(place));
    match kind {
        Kind::Image => {
            let copied = copy_file(&from, &to)?;
            tracing::debug!(?copied, "copied {}", from.display());
            sync(&to)
        }
        Kind::Directory => {
            let copied = Target::new(&from)?.copy_tree(&Target::new(&to)?)?;
            tracing::debug!(?copied, "copied {}", from.display());
            sync(&to)
        }
    }
}

/// Makes the content at least so large. A directory is as large as the disk.
pub(crate) fn grow(kind: Kind, place: &Path, bytes: u64, fill: Fill) -> Result<()> {
    if kind == Kind::Directory {
        return Ok(());
    }
    let path = kind.content(place);
    let image = File::options().write(true).open(&path).at("open", &path)?;
    if fill == Fill::Thick {
        unshare(kind, place)?;
        // Before the size: when the disk is full, the image is as it was.
        rustix::fs::fallocate(&image, FallocateFlags::KEEP_SIZE, 0, bytes).at("allocate", &path)?;
    }
    if image.metadata().at("look at", &path)?.len() < bytes {
        image.set_len(bytes).at("grow", &path)?;
    }
    image.sync_all().at("sync", &path)
}

/// Gives an image blocks of its own for those that it shares with another, so that a write to either needs no new ones.
/// Where the disk's filesystem can't (btrfs), they stay shared.
pub(crate) fn unshare(kind: Kind, place: &Path) -> Result<()> {
    if kind == Kind::Directory {
        return Ok(());
    }
    let path = kind.content(place);
    let image = File::options().write(true).open(&path).at("open", &path)?;
    let mode = FallocateFlags::UNSHARE_RANGE | FallocateFlags::KEEP_SIZE;
    let bytes = image.metadata().at("look at", &path)?.len();
    if bytes == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(&image, mode, 0, bytes) {
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error).at("unshare", &path),
    }
}

/// How large the content is in bytes; of a directory nobody knows.
pub(crate) fn size(kind: Kind, place: &Path) -> Result<Option<u64>> {
    match kind {
        Kind::Image => {
            let path = kind.content(place);
            Ok(Some(path.metadata().at("look at", &path)?.len()))
        }
        Kind::Directory => Ok(None),
    }
}
