//! Unstaging: from a mounted filesystem to a device that nobody uses.

use std::path::Path;

use super::copies;
use super::encrypted::mapping_of;
use super::{device_under, raw, wait_until_free};
use crate::device::mapping::Mapping;
use crate::device::users;
use crate::mounted::health;

use crate::table::details::Details;
use crate::unmount;
use crate::{BlockDevice, DeviceUser, Error, ErrorKind, MountState, Result, Target, Unmounted};

const UNSTAGE: &str = "unstage";

/// Unmounts every layer at the staging directory, and makes sure that the device is free in every mount
/// namespace.
///
/// An encrypted device that was opened for the volume is closed, also if it was only half opened or the
/// device is gone. The directory stays: it belongs to the orchestrator. Pass the device if it is known:
/// when the call is repeated after [`Busy`](ErrorKind::Busy), nothing is mounted any more that identifies
/// the device. A device that is gone is free.
///
/// - spec: `node-unstage-volume.undoes`, `node-unstage-volume.not-staged-is-ok`
///
/// # Errors
///
/// - [`Busy`](ErrorKind::Busy): the staged filesystem is in use, or the device, or the one inside an
///   encrypted one, has another user ([`BlockDevice::users`]): it is mounted elsewhere, is still published
///   raw, or another device is built on it. The message names up to three users. A frozen filesystem is
///   Busy too, and stays mounted.
/// - [`WrongDevice`](ErrorKind::WrongDevice): a device other than the given one is mounted there; it stays
///   mounted.
pub fn unstage(staging: &Target, device: Option<&Path>) -> Result<Unmounted> {
    unstage_with(staging, device, MountCopies::Kept)
}

/// What unstage does with mounts of the volume's device in other mount namespaces, which keep the device in
/// use.
///
/// A process that makes a mount namespace gets a copy of every mount. A copy that does not receive unmounts
/// stays when the volume is unstaged, possibly unknown to the processes there. Examples are a container
/// whose volumes do not propagate, and a service with its own namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MountCopies {
    /// The copies stay, and the volume is [`Busy`](ErrorKind::Busy) until they are gone.
    #[default]
    Kept,
    /// Copies that no process has open are unmounted, by a process that enters their namespace
    /// (`setns(2)`). This needs `CAP_SYS_ADMIN` and `CAP_SYS_CHROOT`, `hostPID` to see the namespaces, and
    /// Linux 5.8.
    ///
    /// The kernel refuses the unmount while a process has a file of the copy open or has its working
    /// directory there; such a copy stays. The danger: a program that relies on the path without keeping it
    /// open, such as an hourly backup, finds an empty directory, and what it writes there goes to the
    /// filesystem beneath. A mount of this device that somebody made there on purpose is unmounted too.
    /// Choose this only if the driver alone decides who uses its devices.
    UnmountUnused,
}

/// As [`unstage`], with a choice of what to do with [copies](MountCopies) of the mount in other mount
/// namespaces.
///
/// # Errors
///
/// As for [`unstage`].
pub fn unstage_with(staging: &Target, device: Option<&Path>, copies: MountCopies) -> Result<Unmounted> {
    staging.require_own(UNSTAGE)?;
    let known = device.map(open_if_exists).transpose()?.flatten();
    // If the staging path now belongs to another volume, the mapping belongs to that volume.
    let mapping = if staging.is_marked_by_other(UNSTAGE)? { None } else { mapping_of(staging)? };
    let mounted = mounted_device(staging)?;
    // With encryption, the mounted device is the one inside, or nothing is mounted yet.
    let beneath = match &mapping {
        Some(mapping) if mounted.as_ref().is_none_or(|mounted| mounted.number() == mapping.number()) => {
            mapping.beneath()
        }
        _ => mounted.as_ref().map(BlockDevice::number),
    };
    if let (Some(known), Some(found)) = (&known, beneath)
        && known.number() != found
    {
        let reason =
            format!("{} ({}) was requested, but {found} is mounted", known.path().display(), known.number());
        return Err(Error::new(ErrorKind::WrongDevice, UNSTAGE, reason).at(staging.path()));
    }
    for device in [&known, &mounted].into_iter().flatten() {
        raw::detach_unfinished(device.path())?;
    }
    refuse_users_except_mounts([known.as_ref(), mounted.as_ref()], mapping.as_ref(), staging)?;
    if let Some(mapping) = &mapping {
        mapping.resume()?;
    }
    if mounted.is_some() && health::is_frozen_at(staging)? {
        let reason = "its filesystem is frozen, and could not be thawed after the unmount";
        return Err(Error::new(ErrorKind::Busy, UNSTAGE, reason)
            .at(staging.path())
            .hint("thaw it (fsfreeze -u)"));
    }
    let unmounted = unmount(staging)?;
    staging.unmark(UNSTAGE)?;
    // The mapping can be closed only after every descriptor of it is closed, including this one.
    let mounted = mounted.filter(|_| mapping.is_none());
    if let Some(mapping) = mapping {
        mapping.close().map_err(|error| match (error.kind(), mapping.device()) {
            (ErrorKind::Busy, Ok(inside)) => require_unused(&inside, staging).err().unwrap_or(error),
            _ => error,
        })?;
    }
    match known.or(mounted) {
        Some(device) if !is_free(&device)? => {
            if copies == MountCopies::UnmountUnused {
                copies::unmount_unused(&device)?;
            }
            require_unused(&device, staging).map(|()| unmounted)
        }
        _ => Ok(unmounted),
    }
}

/// Refuses users that do not keep the device open: a bound node does not, and a loop device over the device
/// does not stop others from opening it exclusively either. If they stayed, they would give access to the
/// next volume that gets the device number.
fn refuse_users_except_mounts(
    devices: [Option<&BlockDevice>; 2],
    mapping: Option<&Mapping>,
    staging: &Target,
) -> Result<()> {
    let devices = devices.into_iter().flatten();
    let mut numbers: Vec<_> = devices.map(BlockDevice::number).chain(mapping.map(Mapping::number)).collect();
    numbers.dedup();
    let mut users = users::identified_users(&numbers)?;
    users.retain(|user| matches!(user, DeviceUser::Published { .. } | DeviceUser::LoopDevice { .. }));
    if users.is_empty() {
        Ok(())
    } else {
        Err(users::in_use_error(UNSTAGE, "its device", &users).at(staging.path()))
    }
}

fn is_free(device: &BlockDevice) -> Result<bool> {
    match wait_until_free(device) {
        // The device is gone, or its number now belongs to another disk.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WrongDevice) => Ok(true),
        other => other,
    }
}

fn open_if_exists(path: &Path) -> Result<Option<BlockDevice>> {
    match BlockDevice::open(path) {
        Ok(device) => Ok(Some(device)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The device mounted at the staging path; none if nothing is mounted, or the device is gone.
fn mounted_device(staging: &Target) -> Result<Option<BlockDevice>> {
    if !matches!(staging.state()?, MountState::Mounted(_)) {
        return Ok(None);
    }
    // The descriptor is closed before the unmount, which it would otherwise prevent.
    let opened = staging.open(UNSTAGE)?;
    let Some(number) = Details::from_fd(&opened.fd, UNSTAGE, staging.path())?.as_ref().and_then(device_under)
    else {
        return Ok(None);
    };
    match BlockDevice::from_number(number) {
        Ok(device) => Ok(Some(device)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WrongDevice) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reports the users of the device as an error, unless they have released it in the meantime.
fn require_unused(device: &BlockDevice, staging: &Target) -> Result<()> {
    let users = users::all_users(device)?;
    if users.is_empty() {
        return Ok(());
    }
    let name = format!("the device {} ({})", device.path().display(), device.number());
    Err(users::in_use_error(UNSTAGE, &name, &users).at(staging.path()))
}
