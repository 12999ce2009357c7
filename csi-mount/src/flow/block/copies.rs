//! Copies of a staged mount in other mount namespaces, which keep its device in use.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use super::UNSTAGE;
use crate::bounded::in_flight::{self, Repeat, Subject, Unanswered};
use crate::device::block_device::BlockDevice;
use crate::device::mount_places::MountPlace;
use crate::device::users::{self, DeviceUser};
use crate::error::Result;
use crate::mounting::mount::Mount;
use crate::mounting::options::MountOptions;
use crate::mounting::unmount::UNMOUNT_TIME_LIMIT;
use crate::place::target::Target;
use crate::sys::child::{ChildCall, MountElsewhere};
use crate::sys::ids::MountId;
use crate::sys::ioctl::Unwritten;
use crate::table::facts;
use crate::table::mountinfo::parse_mountinfo;

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
    let elsewhere: Vec<MountPlace> = elsewhere.take(MAX_COPIES).collect();
    // Together, so that those that do not answer cost one time limit.
    let unmounted = in_flight::ask_all(&elsewhere, |place| unmount(device, place));
    for (place, unmounted) in elsewhere.iter().zip(unmounted) {
        match unmounted {
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
    let directory = in_flight::c_string(directory)?;
    let name = in_flight::c_string(name.as_ref())?;
    let elsewhere =
        MountElsewhere { namespace: namespace.as_fd(), directory: &directory, name: &name, mount };
    let question = ChildCall::UnmountElsewhere(elsewhere);
    let subject = Subject::Unmount(MountId(mount));
    let (answer, _) = match in_flight::ask_foreign(subject.clone(), question, Repeat::UnlessSilent) {
        // Only while the volume is unstaged it is known that the copy is not wanted.
        Err(Unanswered::Silent) if in_flight::takes_next_turn(&subject) => {
            in_flight::ask_foreign(subject, question, Repeat::Always)?
        }
        asked => asked?,
    };
    match answer.error as i32 {
        0 => Ok(()),
        number => Err(io::Error::from_raw_os_error(number)),
    }
}

/// Writes back the device's filesystem and shuts it down, if only mounts in other mount namespaces use it.
pub(super) fn shut_down(device: &BlockDevice, staging: &Target) -> Result<()> {
    let users = users::all_users(device)?;
    if users.is_empty() {
        return Ok(());
    }
    let in_use = || users::device_in_use_error(UNSTAGE, device, &users).at(staging.path());
    let is_copy = |user: &DeviceUser| match user {
        DeviceUser::Mount(place) => place.process.is_some(),
        // If this is not a mount, the mount below is refused.
        DeviceUser::Unknown | DeviceUser::Process { .. } => true,
        _ => false,
    };
    if !users.iter().all(is_copy) {
        return Err(in_use());
    }
    let Some(filesystem) = device.probe().filesystem() else { return Err(in_use()) };
    let root = |options: MountOptions| {
        let mount = Mount::new(filesystem.name(), device.path()).options(&options);
        mount.time_limit(UNMOUNT_TIME_LIMIT).prepared(staging)
    };
    // The kernel has one filesystem for a device. It gives it to a new mount if both are read-only, or neither.
    let root = root(MountOptions::new().read_only()).or_else(|_| root(MountOptions::new()))?;
    let failed = |error: &dyn std::fmt::Display| {
        in_use().add_reason(format!("its {filesystem} could not be written back and shut down: {error}"))
    };
    let facts = facts::from_fd(root.fd()).map_err(|error| failed(&error))?;
    let question = ChildCall::ShutDown(root.fd().as_fd(), Unwritten::WrittenBack);
    let asked = in_flight::ask(Subject::Unmount(facts.mount), question, UNMOUNT_TIME_LIMIT);
    let (answer, _) = asked.map_err(|error| failed(&io::Error::from(error)))?;
    match answer.error as i32 {
        0 => {
            tracing::warn!(device = %device.number(), users = users::named(&users), "shut down the filesystem \
                of a volume that is unstaged: its device stays in use");
            Ok(())
        }
        number => Err(failed(&io::Error::from_raw_os_error(number))),
    }
}
