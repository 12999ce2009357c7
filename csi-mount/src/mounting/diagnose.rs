//! Why a filesystem did not mount: the kernel's own messages, and what the device shows in addition.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::libc;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind};
use crate::mounting::MOUNT;
use crate::mounting::options::{FsOption, MountOptions};
use crate::path::lookup;
use crate::place::on_device::block_device_at;
use crate::place::target::Target;
use crate::sys::descriptor::path_of;
use crate::sys::ids::DeviceNumber;
use crate::table::facts;
use crate::table::mountinfo::{self, MountEntry};

/// The messages that a filesystem left in its context (`ext4: Unknown parameter 'x'`), with the values of
/// options hidden.
pub(crate) fn context_log(context: &OwnedFd, options: &MountOptions) -> Vec<String> {
    let mut lines = Vec::new();
    let mut buffer = [0; 1024];
    // Each read returns one message; ENODATA after the last.
    while let Ok(length) = rustix::io::read(context, &mut buffer) {
        if length == 0 || lines.len() == 32 {
            break;
        }
        let text = String::from_utf8_lossy(&buffer[..length]);
        // The first letter is the severity: error, warning, information.
        let message = text.split_once(' ').map_or(&*text, |(_, message)| message);
        lines.push(hidden(message.trim_end(), options));
    }
    lines
}

/// Hides the values of options in the message. Values too short for a secret stay, because replacing them
/// would break words apart.
pub(crate) fn hidden(message: &str, options: &MountOptions) -> String {
    let values = options.filesystem().iter().filter_map(FsOption::value).filter(|value| value.len() > 3);
    values.fold(message.to_owned(), |message, value| message.replace(value, "***"))
}

/// The error for opening a type of filesystem.
pub(crate) fn type_error(target: &Target, fs_type: &str, error: Errno) -> Error {
    let failed = target.error(MOUNT, error);
    match error {
        Errno::NODEV => {
            Error::new(ErrorKind::Unsupported, MOUNT, format!("the kernel has no filesystem {fs_type:?}"))
                .at(target.path())
                .hint(format!("load its module (modprobe {fs_type}) on the node"))
        }
        Errno::PERM => failed.hint("the process needs CAP_SYS_ADMIN"),
        _ => failed,
    }
}

/// Adds to the error what its number means for this device, and how to fix it.
pub(crate) fn explained(error: Error, source: &Path, options: &MountOptions) -> Error {
    let device = block_device_at(source.as_os_str());
    let number = error.raw_os_error();
    if let Some(device) = device
        && matches!(number, Some(libc::EACCES | libc::EROFS))
        && !options.is_read_only()
        && is_read_only(device)
    {
        return error
            .with_kind(ErrorKind::ReadOnly)
            .add_reason(format_args!("the device {} is read-only", source.display()))
            .hint("ask for a read-only mount, or make the device writable");
    }
    if let Some(device) = device
        && options.is_read_only()
        && is_read_only(device)
        && needs_replay(number, source, device)
    {
        return error
            .with_kind(ErrorKind::ReadOnly)
            .add_reason(format_args!(
                "its log must be replayed, and the device {} is read-only",
                source.display()
            ))
            .hint(
                "mount it once from a writable device, or without the newest changes: with noload (ext4), \
                 norecovery (XFS), rescue=nologreplay (btrfs)",
            );
    }
    let has_nouuid = options.filesystem().iter().any(|option| option.key() == "nouuid");
    match (number, device) {
        (Some(libc::EBUSY), Some(_)) => {
            error.add_reason(format_args!("the device {} is in use", source.display())).hint(
                "it is mounted elsewhere as read-only or writable in conflict with this mount, or opened \
                 exclusively",
            )
        }
        (Some(libc::EINVAL), Some(device)) => match mount_with_same_uuid(source, device)
            .filter(|_| !has_nouuid)
        {
            Some(twin) => error
                .with_kind(ErrorKind::Busy)
                .add_reason(format_args!(
                    "{} is mounted and has the same XFS UUID",
                    Path::new(&twin.source).display()
                ))
                .hint("mount a clone with the option nouuid"),
            None => error
                .hint("read the kernel's log; the type or an option can be wrong, or the filesystem damaged"),
        },
        (Some(libc::EEXIST), Some(_)) => {
            error.with_kind(ErrorKind::Busy).add_reason("another btrfs with its UUID is mounted").hint(
                "use Linux 6.7 or later for clones, or give the clone a UUID of its own first (btrfstune -m)",
            )
        }
        (Some(libc::ENOTBLK), _) => {
            error.add_reason(format_args!("{} is not a block device", source.display()))
        }
        (Some(libc::ENOENT), _) => error.hint("check whether the device is attached to the node"),
        (Some(libc::EUCLEAN | libc::EBADMSG), _) => error.hint("check the filesystem"),
        (Some(libc::EPERM), _) => error.hint("the process needs CAP_SYS_ADMIN"),
        _ => error,
    }
}

/// Whether a read-only mount of a read-only device failed with this number because of its log. ext4 and XFS
/// return EROFS then, and for nothing else; btrfs returns EIO.
fn needs_replay(number: Option<i32>, source: &Path, device: DeviceNumber) -> bool {
    match number {
        Some(libc::EROFS) => true,
        Some(libc::EIO) => has_btrfs_log(source, device).unwrap_or(false),
        _ => false,
    }
}

/// Whether a btrfs superblock, at 64 KiB, has the address of a log: at byte 96; the magic number is at byte 64.
fn has_btrfs_log(path: &Path, device: DeviceNumber) -> io::Result<bool> {
    let mut block = [0; 104];
    open_device(path, device)?.read_exact_at(&mut block, 64 << 10)?;
    Ok(&block[64..72] == b"_BHRfS_M" && block[96..] != [0; 8])
}

/// The error for an option that the filesystem refused by its name.
pub(crate) fn option_refused(error: Error, key: &str) -> Error {
    use ErrorKind::{OutOfMemory, PermissionDenied, Unresponsive};
    match error.kind() {
        OutOfMemory | PermissionDenied | Unresponsive => error.hint(format!("while it got the option {key}")),
        _ => error
            .with_kind(ErrorKind::InvalidOption)
            .hint(format!("the filesystem does not accept the option {key} with this value")),
    }
}

/// Options with which a filesystem can be mounted if anything at all can mount it, and without a write to its
/// device. None if they are not known.
pub(crate) fn options_without_writes(fs_type: &str, given: &MountOptions) -> Option<MountOptions> {
    let flags: &[&str] = match fs_type {
        "ext3" | "ext4" => &["noload"],
        "xfs" => &["norecovery", "nouuid"],
        "btrfs" => &["rescue=nologreplay"],
        "tmpfs" | "ramfs" => &[],
        // The given mount would also have replayed its log.
        _ if !given.is_read_only() => &[],
        _ => return None,
    };
    MountOptions::parse(flags).ok().map(MountOptions::read_only)
}

/// Whether a read-only mount of an ext4 shows if its journal is the cause of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Log {
    Clean,
    /// Such a mount would write: the journal is to be replayed, or deleted files are to be removed. Or a writable
    /// one can fail for another reason: a kernel without quotas.
    Unclear,
}

/// What the superblock of an ext4 says; none for another filesystem.
pub(crate) fn ext4_log(fs_type: &str, source: &Path) -> Option<Log> {
    const NEEDS_RECOVERY: u32 = 0x4;
    const ORPHAN_PRESENT: u32 = 0x1_0000;
    const QUOTA: u32 = 0x100 | 0x2000;
    if !matches!(fs_type, "ext3" | "ext4") {
        return None;
    }
    let mut block = [0; 1024];
    open_device(source, block_device_at(source.as_os_str())?).ok()?.read_exact_at(&mut block, 1024).ok()?;
    let word = |at: usize| u32::from_le_bytes(block[at..].first_chunk().copied().unwrap_or_default());
    let last_orphan = word(0xe8);
    let is_unclear = word(0x60) & NEEDS_RECOVERY | word(0x64) & (ORPHAN_PRESENT | QUOTA) | last_orphan != 0;
    Some(if is_unclear { Log::Unclear } else { Log::Clean })
}

fn is_read_only(device: DeviceNumber) -> bool {
    fs::read_to_string(format!("/sys/dev/block/{device}/ro")).is_ok_and(|text| text.trim() == "1")
}

/// A mount of another device with the same UUID: XFS refuses to mount both.
pub(crate) fn mount_with_same_uuid(source: &Path, device: DeviceNumber) -> Option<MountEntry> {
    let uuid = xfs_uuid(source, device).ok()??;
    let others = mountinfo::mounts().ok()?.into_iter();
    let mut others = others.filter(|entry| entry.fs_type == "xfs" && entry.device != device);
    // The path of the source can lead to another device here, which is then not opened.
    let uuid_of = |entry: &MountEntry| xfs_uuid(Path::new(&entry.source), entry.device).ok().flatten();
    others.find(|entry| uuid_of(entry) == Some(uuid))
}

/// The UUID in an XFS superblock: at byte 32; the magic number is at byte 0.
fn xfs_uuid(path: &Path, device: DeviceNumber) -> io::Result<Option<[u8; 16]>> {
    let mut block = [0; 48];
    open_device(path, device)?.read_exact_at(&mut block, 0)?;
    let uuid = <[u8; 16]>::try_from(&block[32..]).ok();
    Ok(uuid.filter(|_| block.starts_with(b"XFSB")))
}

/// Opens a block device by a path that must lead to it. The path can be from a mount table, and can lead to
/// anything meanwhile, also to a pipe that would block the open.
fn open_device(path: &Path, device: DeviceNumber) -> io::Result<File> {
    let place = lookup::open_path(path, OFlags::empty())?;
    if facts::from_fd(&place)?.block_device() != Some(device) {
        return Err(Errno::NODEV.into());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path_of(&place), flags, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_a_filesystem_repeats_are_hidden() {
        let options = MountOptions::parse(["vers=s3cret", "password=hunter2", "commit=5"]).unwrap();
        let hide = |message| hidden(message, &options);
        assert_eq!(
            hide("cifs: Unknown vers= option specified: s3cret"),
            "cifs: Unknown vers= option specified: ***"
        );
        assert_eq!(hide("hunter2 and s3cret"), "*** and ***");
        assert_eq!(hide("sector 512 of 5"), "sector 512 of 5", "too short for a secret");
    }
}
