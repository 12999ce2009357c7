//! Why a filesystem did not mount: the kernel's own messages, and what the device shows in addition.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::libc;
use rustix::io::Errno;

use crate::mounting::mount::MOUNT;
use crate::place::on_device::block_device_at;
use crate::table::mountinfo;
use crate::{DeviceNumber, Error, ErrorKind, FsOption, MountEntry, MountOptions, Target};

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
    match (number, device) {
        (Some(libc::EBUSY), Some(_)) => {
            error.add_reason(format_args!("the device {} is in use", source.display())).hint(
                "it is mounted elsewhere as read-only or writable in conflict with this mount, or opened \
                 exclusively",
            )
        }
        (Some(libc::EINVAL), Some(device)) => match mount_with_same_uuid(source, device) {
            Some(twin) => error
                .with_kind(ErrorKind::Busy)
                .add_reason(format_args!(
                    "{} is mounted and has the same XFS UUID",
                    Path::new(&twin.source).display()
                ))
                .hint("mount a clone with the option nouuid, or give it its own UUID (StagePlan::own_uuid)"),
            None => error
                .hint("read the kernel's log; the type or an option can be wrong, or the filesystem damaged"),
        },
        (Some(libc::EEXIST), Some(_)) => error
            .with_kind(ErrorKind::Busy)
            .add_reason("another btrfs with its UUID is mounted")
            .hint("use Linux 6.7 or later for clones, or give the clone its own UUID (StagePlan::own_uuid)"),
        (Some(libc::ENOTBLK), _) => error
            .with_kind(ErrorKind::InvalidInput)
            .add_reason(format_args!("{} is not a block device", source.display())),
        (Some(libc::ENOENT), _) => error.hint("check whether the device is attached to the node"),
        (Some(libc::EUCLEAN), _) => error.hint("check the filesystem"),
        (Some(libc::EPERM), _) => error.hint("the process needs CAP_SYS_ADMIN"),
        _ => error,
    }
}

fn is_read_only(device: DeviceNumber) -> bool {
    fs::read_to_string(format!("/sys/dev/block/{device}/ro")).is_ok_and(|text| text.trim() == "1")
}

/// A mount of another device with the same UUID: XFS refuses to mount both.
pub(crate) fn mount_with_same_uuid(source: &Path, device: DeviceNumber) -> Option<MountEntry> {
    let uuid = xfs_uuid(source).ok()??;
    let others = mountinfo::mounts().ok()?.into_iter();
    let mut others = others.filter(|entry| entry.fs_type == "xfs" && entry.device != device);
    others.find(|entry| xfs_uuid(Path::new(&entry.source)).is_ok_and(|found| found == Some(uuid)))
}

/// The UUID in an XFS superblock: at byte 32; the magic number is at byte 0.
fn xfs_uuid(device: &Path) -> io::Result<Option<[u8; 16]>> {
    let mut block = [0; 48];
    File::open(device)?.read_exact_at(&mut block, 0)?;
    let uuid = <[u8; 16]>::try_from(&block[32..]).ok();
    Ok(uuid.filter(|_| block.starts_with(b"XFSB")))
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
