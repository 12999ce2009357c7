//! Copies of a staged mount in other mount namespaces, which keep its device in use.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use crate::bounded::in_flight::{self, FOREIGN_TIME_LIMIT, Subject};
use crate::device::users;
use crate::sys::child::{MountElsewhere, Question};
use crate::{BlockDevice, DeviceUser, MountId, MountPlace, Result, parse_mountinfo};

/// Limit of copies that are tried: a service that restarts all the time can have many.
const MAX_COPIES: usize = 64;

/// Unmounts the mounts of this device in other mount namespaces where no process has them open. A mount
/// that can't be unmounted stays, with a line in the log. The caller's next check then finds who still uses
/// the device.
pub(super) fn unmount_unused(device: &BlockDevice) -> Result<()> {
    let users = users::identified_users(&[device.number()])?.into_iter();
    let elsewhere = users.filter_map(|user| match user {
        DeviceUser::Mount(place) if place.process.is_some() => Some(place),
        _ => None,
    });
    for place in elsewhere.take(MAX_COPIES) {
        match unmount(device, &place) {
            Ok(()) => {
                tracing::warn!(%place, device = %device.number(), "unmounted an unused copy of a mount");
            }
            Err(error) => {
                tracing::warn!(%place, device = %device.number(), %error, "a copy of a mount could not be \
                    unmounted");
            }
        }
    }
    Ok(())
}

fn unmount(device: &BlockDevice, place: &MountPlace) -> io::Result<()> {
    let gone = || io::Error::other("the mount or the process no longer exists");
    let process = Path::new("/proc").join(place.process.as_ref().ok_or_else(gone)?.id.to_string());
    let namespace = File::open(process.join("ns/mnt"))?;
    let table = parse_mountinfo(&fs::read(process.join("mountinfo"))?).map_err(io::Error::other)?;
    // The last of several layers is the top one.
    let is_copy =
        |entry: &&crate::MountEntry| entry.mount_point == place.path && entry.is_on(device.number());
    let MountId(mount) = table.iter().rev().find(is_copy).ok_or_else(gone)?.id;
    let (Some(directory), Some(name)) = (place.path.parent(), place.path.file_name()) else {
        return Err(gone());
    };
    let (directory, name) = (in_flight::c_string(directory)?, in_flight::c_string(name.as_ref())?);
    let elsewhere =
        MountElsewhere { namespace: namespace.as_fd(), directory: &directory, name: &name, mount };
    let question = Question::UnmountElsewhere(elsewhere);
    let (answer, _) = in_flight::ask(Subject::Unmount(MountId(mount)), question, FOREIGN_TIME_LIMIT)?;
    match answer.error as i32 {
        0 => Ok(()),
        number => Err(io::Error::from_raw_os_error(number)),
    }
}
