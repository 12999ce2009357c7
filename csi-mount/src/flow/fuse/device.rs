//! FUSE filesystems that this process mounts: with a daemon that gets the open device, or without one.

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use crate::{Error, Mount, MountOptions, Result, Target};

const DEVICE: &str = "/dev/fuse";

/// Mounts a filesystem. It answers as soon as a process serves the device, and is lost (`ENOTCONN`) when no
/// process has it open.
pub(super) fn mount(
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
