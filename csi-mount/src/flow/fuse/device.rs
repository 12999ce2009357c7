//! The open `/dev/fuse` of a mount: whoever has it open serves the mount, or keeps it from being lost.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};

use crate::error::{Error, ErrorKind, Result};
use crate::mounting::mount::Mount;
use crate::mounting::options::MountOptions;
use crate::place::target::Target;
use crate::sys::descriptor::duplicate;
use crate::sys::ids::DeviceNumber;

const DEVICE: &str = "/dev/fuse";
/// `/dev/fuse`, under whatever name: `MISC_MAJOR` and `FUSE_MINOR` of the kernel.
const FUSE_DEVICE: DeviceNumber = DeviceNumber { major: 10, minor: 229 };

/// Mounts a filesystem. It answers as soon as a process serves the device, and is lost (`ENOTCONN`) when no
/// process has it open.
pub(super) fn mount_fuse(
    operation: &'static str,
    source: &Path,
    options: &MountOptions,
    staging: &Target,
) -> Result<OwnedFd> {
    let device = File::options().read(true).write(true).open(DEVICE);
    let device = device.map_err(|error| Error::os(operation, Path::new(DEVICE), error))?;
    // The root is a directory, and the filesystem belongs to root. The kernel has no default for these.
    let required = [("rootmode", "40000"), ("user_id", "0"), ("group_id", "0")];
    let options = required
        .into_iter()
        .try_fold(options.clone(), |options, (key, value)| options.with_option(key, value))?
        .with_option("fd", &device.as_raw_fd().to_string())?;
    Mount::new("fuse", source).options(&options).at(staging)?;
    Ok(device.into())
}

/// The open `/dev/fuse` that a program gets in place of a mount point, by the argument `/dev/fd/N` of
/// [`FuseDaemon::arg_device`](crate::flow::fuse::FuseDaemon::arg_device). It needs no privilege, also under a runtime's
/// default seccomp profile.
///
/// ```no_run
/// use std::path::Path;
/// let device = csi_mount::flow::fuse::inherited_device(Path::new("/dev/fd/3"))?;
/// # Ok::<(), csi_mount::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): the argument does not name an open `/dev/fuse`.
pub fn inherited_device(argument: &Path) -> Result<OwnedFd> {
    let refuse =
        |reason: &str| Err(Error::new(ErrorKind::InvalidInput, "take the device", reason).at(argument));
    let number =
        argument.strip_prefix("/dev/fd").ok().and_then(|number| number.to_str()?.parse::<i32>().ok());
    let Some(number) = number else { return refuse("it is not /dev/fd/N") };
    if !is_fuse_device(&Path::new("/proc/self/fd").join(number.to_string())) {
        return refuse("it is no open /dev/fuse");
    }
    duplicate(number).map_err(|error| Error::os("take the device", argument, error))
}

/// Asks the kernel to send the requests again that the earlier daemon had received and not answered
/// (`FUSE_NOTIFY_RESEND`, Linux 6.9). Without that their callers would wait for ever.
pub(super) fn repeat_requests(operation: &'static str, device: &OwnedFd, place: &Path) -> Result<()> {
    const RESEND: i32 = 7;
    let failed = |error: io::Error| {
        let error = Error::os(operation, place, error);
        error.add_reason("this kernel does not send requests again (Linux 6.9)")
    };
    // `struct fuse_out_header`: the length, the notification, and no request.
    let mut message = 16_u32.to_ne_bytes().to_vec();
    message.extend(RESEND.to_ne_bytes());
    message.extend([0; 8]);
    let device = device.try_clone().map_err(failed)?;
    File::from(device).write_all(&message).map_err(failed)
}

/// Whether the filesystem of a device is mounted and not aborted.
pub(super) fn is_connected(device: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(device, PollFlags::IN)];
    let is_polled = poll(&mut polled, Some(&Timespec::default())).is_ok();
    is_polled && !polled[0].revents().contains(PollFlags::ERR)
}

/// Whether an open file of a process is `/dev/fuse`, by its number. No filesystem is asked.
pub(super) fn is_fuse_device(file: &Path) -> bool {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    statx(CWD, file, flags, StatxFlags::TYPE).is_ok_and(|found| {
        let number = DeviceNumber { major: found.stx_rdev_major, minor: found.stx_rdev_minor };
        FileType::from_raw_mode(found.stx_mode.into()) == FileType::CharacterDevice && number == FUSE_DEVICE
    })
}
