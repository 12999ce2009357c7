//! The content of a volume or snapshot: an image file, or a directory.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Once;

use csi_core::mount::{ErrorKind, Filesystem, Host, Target, copy_file};
use csi_core::{IoContext as _, Result};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::kind::Kind;
use crate::store::sync;

/// A file in an object's directory that marks an image that has had a filesystem. Such an image is never
/// formatted again, even if it reads as blank.
const STAGED: &str = "staged";

/// Whether the blocks of an image are allocated at once.
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

/// Creates new, empty content in the directory of an object.
pub(crate) fn make(host: &Host, kind: Kind, place: &Path, bytes: u64, fill: Fill) -> Result<()> {
    let content = kind.content(place);
    match kind {
        Kind::Image => {
            File::options().write(true).create_new(true).open(&content).at("create", &content)?;
            grow(host, kind, place, bytes, fill)
        }
        Kind::Directory => {
            make_limited(host, place, bytes)?;
            fs::set_permissions(&content, fs::Permissions::from_mode(0o755))
                .at("change the mode of", &content)?;
            sync(&content)
        }
    }
}

/// Creates the directory of a volume. Where the disk's filesystem enforces sizes, it holds at most so many bytes.
pub(crate) fn make_limited(host: &Host, place: &Path, bytes: u64) -> Result<()> {
    static SAID: Once = Once::new();
    let content = Kind::Directory.content(place);
    match host.directories().create(&content, bytes.into()) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            SAID.call_once(|| tracing::warn!("the sizes of volumes are not enforced: {error}"));
            fs::create_dir(&content).at("create", &content)
        }
        made => Ok(made.map(drop)?),
    }
}

/// Records that the image of an object has a filesystem.
pub(crate) fn note_staged(place: &Path) -> Result<()> {
    if !was_staged(place)? {
        File::create(place.join(STAGED)).at("create", place.join(STAGED))?;
        sync(place)?;
    }
    Ok(())
}

/// Whether the image of an object has had a filesystem, or is a copy of an image that has.
pub(crate) fn was_staged(place: &Path) -> Result<bool> {
    place.join(STAGED).try_exists().at("look for", place.join(STAGED))
}

/// What an image is known to hold, by its first blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// Zeros, or nothing that can be known, as in a directory.
    Nothing,
    Filesystem(Filesystem),
    /// Something else: a partition table, encrypted data, the data of a program.
    Other,
}

/// Reads what the content of an object begins with. No device is needed, so a controller that can't attach
/// one can decide what a copy can be used for.
pub(crate) fn held(kind: Kind, place: &Path) -> Result<Held> {
    const MAGIC: [(Filesystem, usize, &[u8]); 3] = [
        (Filesystem::Ext4, 0x438, &[0x53, 0xef]),
        (Filesystem::Xfs, 0, b"XFSB"),
        (Filesystem::Btrfs, 0x1_0040, b"_BHRfS_M"),
    ];
    if kind == Kind::Directory {
        return Ok(Held::Nothing);
    }
    let path = kind.content(place);
    let mut head = Vec::new();
    File::open(&path).at("open", &path)?.take(128 << 10).read_to_end(&mut head).at("read", &path)?;
    let found = MAGIC.iter().find(|(_, at, magic)| head.get(*at..at + magic.len()) == Some(*magic));
    Ok(match found {
        Some((filesystem, ..)) => Held::Filesystem(*filesystem),
        None if head.iter().all(|byte| *byte == 0) => Held::Nothing,
        None => Held::Other,
    })
}

/// Copies another object's content into the directory of this one, where a directory for it can be already, but empty.
/// Blocks are shared if the disk can do that.
pub(crate) fn copy(kind: Kind, from: &Path, place: &Path) -> Result<()> {
    // Checked before the copy: if the source is staged meanwhile, a blank copy must not be marked.
    if was_staged(from)? {
        note_staged(place)?;
    }
    let from = kind.content(from);
    let to = kind.content(place);
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

/// Grows the content to at least `bytes`: an image, or the limit of a directory.
pub(crate) fn grow(host: &Host, kind: Kind, place: &Path, bytes: u64, fill: Fill) -> Result<()> {
    let path = kind.content(place);
    if kind == Kind::Directory {
        let limit = host.directories().limit(&path)?;
        if limit.is_some_and(|limit| limit.bytes < bytes) {
            host.directories().set_limit(&path, bytes.into())?;
        }
        return Ok(());
    }
    let image = File::options().write(true).open(&path).at("open", &path)?;
    if fill == Fill::Thick {
        unshare(kind, place)?;
        // Allocated before the size changes: on a full disk the image stays as it was.
        rustix::fs::fallocate(&image, FallocateFlags::KEEP_SIZE, 0, bytes).at("allocate", &path)?;
    }
    if image.metadata().at("look at", &path)?.len() < bytes {
        image.set_len(bytes).at("grow", &path)?;
    }
    image.sync_all().at("sync", &path)
}

/// Gives an image its own blocks in place of shared ones, so that a write to either copy allocates nothing.
/// If the disk's filesystem can't do that (btrfs), the blocks stay shared.
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

/// The size of the content in bytes; `None` for a directory without a limit.
pub(crate) fn size(host: &Host, kind: Kind, place: &Path) -> Result<Option<u64>> {
    let path = kind.content(place);
    match kind {
        Kind::Image => Ok(Some(path.metadata().at("look at", &path)?.len())),
        Kind::Directory => Ok(host.directories().limit(&path)?.map(|limit| limit.bytes)),
    }
}
