//! The workload's view of a volume: the kernel's mount table for a target, and reads and writes through it.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use csi_mount::{MountAttributes, MountEntry, mounts};
use nix::errno::Errno;

/// The text that is written through a target and read back.
const WORDS: &[u8] = b"A volume is where data stays.\n";
/// The unit of raw devices, in bytes.
const SECTOR: usize = 4096;

/// The type of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A directory with files in it.
    Files,
    /// A raw device.
    Device,
}

/// Returns the only mount at a path.
///
/// # Errors
/// When there is none, or several are stacked.
pub(crate) fn mount_at(path: &Path) -> Result<MountEntry, String> {
    mount_if_any(path)?.ok_or_else(|| format!("nothing is mounted at {}", path.display()))
}

/// Returns the only mount at a path, if there is one.
///
/// # Errors
/// When several are stacked.
pub(crate) fn mount_if_any(path: &Path) -> Result<Option<MountEntry>, String> {
    let mut found = mounted_at(path)?;
    match found.len() {
        0 | 1 => Ok(found.pop()),
        more => Err(format!("{more} mounts are stacked at {}", path.display())),
    }
}

pub(crate) fn is_gone(path: &Path) -> Result<(), String> {
    if !mounted_at(path)?.is_empty() {
        return Err(format!("{} is still mounted", path.display()));
    }
    Ok(())
}

fn mounted_at(path: &Path) -> Result<Vec<MountEntry>, String> {
    let mut found = mounts().map_err(|error| error.to_string())?;
    found.retain(|entry| entry.mount_point == path);
    Ok(found)
}

pub(crate) fn is_read_only(entry: &MountEntry) -> bool {
    entry.attributes.contains(MountAttributes::RDONLY)
}

pub(crate) fn size(target: &Path, content: Content) -> Result<u64, String> {
    match content {
        Content::Files => Ok(csi_mount::Host::kernel()
            .mounts()
            .stats(target)
            .map_err(|error| error.to_string())?
            .bytes
            .total),
        Content::Device => {
            let end = File::open(target).and_then(|mut device| device.seek(SeekFrom::End(0)));
            end.map_err(|error| format!("{}: {error}", target.display()))
        }
    }
}

pub(crate) fn write_and_read(write: &Path, read: &Path, content: Content) -> Result<String, String> {
    let to = place(write, content);
    let from = place(read, content);
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let wrote = open(&to, content).and_then(|mut file| {
        file.write_all(&block(content))?;
        file.sync_all()
    });
    wrote.map_err(|error| failed(&to, error))?;
    let back = read_back(&from, content).map_err(|error| failed(&from, error))?;
    if back != block(content) {
        return Err(format!("{} does not contain the data that was written", from.display()));
    }
    let seen = if read == write { "" } else { ", seen at the other target too" };
    Ok(format!("{} bytes{seen}", back.len()))
}

pub(crate) fn refused_write(target: &Path, content: Content) -> Result<String, String> {
    let path = match content {
        Content::Files => target.join("intruder"),
        Content::Device => target.to_owned(),
    };
    let wrote = open(&path, content).and_then(|mut file| {
        file.write_all(&block(content))?;
        file.sync_all()
    });
    match wrote {
        Ok(()) => Err(format!("a write through {} succeeded, although it is read-only", target.display())),
        Err(error) if is_refusal(error.kind(), content) => Ok(error_text(&error)),
        Err(error) => Err(format!(
            "a write through {} failed, but not because it is read-only: {error}",
            target.display()
        )),
    }
}

/// The system's text for the error, without its number.
fn error_text(error: &std::io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |number| Errno::from_raw(number).desc().to_owned())
}

/// A read-only device returns EPERM or EROFS, a read-only filesystem EROFS.
fn is_refusal(kind: ErrorKind, content: Content) -> bool {
    match content {
        Content::Files => kind == ErrorKind::ReadOnlyFilesystem,
        Content::Device => matches!(kind, ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem),
    }
}

pub(crate) fn check_data(target: &Path, content: Content) -> Result<(), String> {
    let path = place(target, content);
    match read_back(&path, content) {
        Ok(back) if back == block(content) => Ok(()),
        Ok(_) => Err(format!("the data in {} has changed", path.display())),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn place(target: &Path, content: Content) -> PathBuf {
    match content {
        Content::Files => target.join("hello"),
        Content::Device => target.to_owned(),
    }
}

fn block(content: Content) -> Vec<u8> {
    let mut block = WORDS.to_vec();
    if content == Content::Device {
        block.resize(SECTOR, 0);
    }
    block
}

/// Reads the written data back. A raw device is read with O_DIRECT: a device published read-only is a
/// separate device, whose page cache can hold older data, for example after a program probed the new device.
fn read_back(path: &Path, content: Content) -> std::io::Result<Vec<u8>> {
    let length = block(content).len();
    let (flags, unit) = match content {
        Content::Files => (0, 1),
        Content::Device => (nix::libc::O_DIRECT, SECTOR),
    };
    // O_DIRECT needs a buffer of whole, aligned sectors.
    let mut memory = vec![0; length + unit];
    let start = memory.as_ptr().align_offset(unit);
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    file.read_exact(&mut memory[start..start + length])?;
    Ok(memory[start..start + length].to_vec())
}

fn open(path: &Path, content: Content) -> std::io::Result<File> {
    match content {
        Content::Files => File::create(path),
        Content::Device => {
            // A regular file in the device's place would accept any write.
            if !fs::metadata(path)?.file_type().is_block_device() {
                return Err(std::io::Error::other("it is not a block device"));
            }
            OpenOptions::new().write(true).open(path)
        }
    }
}
