//! Why a filesystem enforces no project quotas, and what to do about it; and the node of its device.

use std::ffi::CString;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::path::lookup;
use crate::sys::ids::DeviceNumber;
use crate::table::details::Details;
use crate::table::facts;

/// The error for a filesystem that does not enforce the limits of projects.
pub(super) fn missing(
    operation: &'static str,
    path: &Path,
    directory: BorrowedFd<'_>,
    is_counted: bool,
) -> Result<Error> {
    let details = Details::from_fd(directory, operation, path)?;
    let fs_type = details.as_ref().map_or("its filesystem", |details| &details.fs_type);
    let source = details.as_ref().map_or(Path::new("the device"), |details| Path::new(&details.source));
    let (reason, hint) = why(fs_type, source, is_counted);
    Ok(Error::new(ErrorKind::Unsupported, operation, reason).at(path).hint(hint))
}

fn why(fs_type: &str, source: &Path, is_counted: bool) -> (String, String) {
    let source = source.display();
    match fs_type {
        "ext4" if is_counted => (
            "ext4 counts what projects use, and enforces no limits".to_owned(),
            format!("mount {source} with the option prjquota, or run: quotaon -P {source}"),
        ),
        "ext4" => (
            "ext4 has no project quotas here".to_owned(),
            format!(
                "first make sure that the kernel has CONFIG_QFMT_V2, else the filesystem can't be mounted writable \
                 then; while {source} is not mounted run: tune2fs -O quota,project {source}; then mount it with the \
                 option prjquota"
            ),
        ),
        "xfs" => (
            "xfs enforces no project quotas here".to_owned(),
            format!(
                "unmount {source}, and mount it with the option prjquota (a remount can't add it; for the root \
                 filesystem boot with rootflags=prjquota); the kernel needs CONFIG_XFS_QUOTA"
            ),
        ),
        other => {
            (format!("{other} has no project quotas"), "use a directory on ext4, xfs or btrfs".to_owned())
        }
    }
}

/// The error for a process without the right to read and change limits.
pub(super) fn not_permitted(operation: &'static str, path: &Path) -> Error {
    Error::new(ErrorKind::Unsupported, operation, "the process is not allowed to use quotas")
        .at(path)
        .hint("give it CAP_SYS_ADMIN in the initial user namespace")
}

/// The node of the device of a file's filesystem, for kernels before 5.14. `None` if /dev has none.
pub(super) fn device_node(
    operation: &'static str,
    path: &Path,
    file: BorrowedFd<'_>,
) -> Result<Option<CString>> {
    let Some(details) = Details::from_fd(file, operation, path)? else { return Ok(None) };
    let number = details.device;
    let nodes = [PathBuf::from(details.source), PathBuf::from(format!("/dev/block/{number}"))];
    let found = nodes.into_iter().find(|node| node.is_absolute() && is_node_of(node, number));
    Ok(found.and_then(|node| CString::new(node.into_os_string().into_vec()).ok()))
}

/// The error for a filesystem whose device has no node.
pub(super) fn no_node(operation: &'static str, path: &Path, file: BorrowedFd<'_>) -> Result<Error> {
    let number = facts::from_fd(file).map_err(|error| Error::os(operation, path, error))?.device;
    if number.major == 0 {
        // It is on no device, and has no quotas either.
        return missing(operation, path, file, false);
    }
    let reason = format!("before Linux 5.14 quotas need the node of the device {number}, and /dev has none");
    let error = Error::new(ErrorKind::Unsupported, operation, reason).at(path);
    Ok(error.hint("mount the node's /dev into the container"))
}

fn is_node_of(path: &Path, number: DeviceNumber) -> bool {
    let facts = lookup::open_path(path, rustix::fs::OFlags::empty()).and_then(facts::from_fd);
    facts.is_ok_and(|facts| facts.block_device() == Some(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_names_its_fix() {
        for (fs_type, is_counted, fix) in [
            ("ext4", true, "quotaon -P /dev/sdx"),
            ("ext4", false, "CONFIG_QFMT_V2"),
            ("ext4", false, "tune2fs -O quota,project /dev/sdx"),
            ("xfs", false, "rootflags=prjquota"),
            ("tmpfs", false, "ext4, xfs or btrfs"),
        ] {
            let (reason, hint) = why(fs_type, Path::new("/dev/sdx"), is_counted);
            assert!(reason.starts_with(fs_type) && hint.contains(fix), "{reason}; {hint}");
        }
    }
}
