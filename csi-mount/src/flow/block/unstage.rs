//! From a mounted filesystem to a device that nobody uses.

use std::path::Path;

use super::copies;
use super::encrypted::mapping_of;
use super::{device_under, is_free_soon, raw};
use crate::device::mapping::Mapping;
use crate::device::users;
use crate::mounted::health;

use crate::table::details::Details;
use crate::unmount;
use crate::{BlockDevice, DeviceUser, Error, ErrorKind, MountState, Result, Target, Unmounted};

const UNSTAGE: &str = "unstage";

/// Unmounts the staging directory, every layer, and makes sure that the device is free in every mount namespace. An encrypted
/// device that was opened for it is closed, however far that had come, and though the device be gone.
///
/// The directory stays: it is the orchestrator's. Give the device where it is known: repeated after it failed with
/// [`Busy`](ErrorKind::Busy), nothing is mounted any more that would tell which device was meant. A device that is
/// gone is free.
///
/// - spec: `node-unstage-volume.undoes`, `node-unstage-volume.not-staged-is-ok`
///
/// # Errors
///
/// [`Busy`](ErrorKind::Busy) if the staged filesystem is in use, or if the device, or the one inside an encrypted one, has
/// another user ([`BlockDevice::users`]): it is mounted elsewhere, still published raw, or something is built on it. The
/// message names up to three of them. A frozen filesystem is Busy, too, and stays mounted.
/// [`WrongDevice`](ErrorKind::WrongDevice) if another device than the
/// given one is mounted there; it stays mounted.
pub fn unstage(staging: &Target, device: Option<&Path>) -> Result<Unmounted> {
    unstage_with(staging, device, MountCopies::Kept)
}

/// What becomes of mounts of the volume's device in other mount namespaces, which keep the device from being free.
///
/// A process that makes a mount namespace gets a copy of every mount. A copy that does not receive unmounts (a container whose
/// volumes do not propagate, a service with a namespace of its own) stays when the volume is unstaged, and nobody there may
/// know of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MountCopies {
    /// They stay, and the volume is [`Busy`](ErrorKind::Busy) until they are gone.
    #[default]
    Kept,
    /// Those that nobody has open are unmounted in their namespace, by a process that enters it for that (`setns(2)`; it needs
    /// `CAP_SYS_ADMIN` and `CAP_SYS_CHROOT`, and `hostPID` to see the namespaces). Linux 5.8.
    ///
    /// The kernel refuses it while a process has a file of the copy open or is in it, and then it stays. The danger: who relies
    /// on the path without having it open, a backup that looks there every hour, finds an empty directory, and what it writes
    /// there then goes to the filesystem beneath. Also a mount of this device that somebody made there on purpose is
    /// unmounted. Choose it only where the driver alone decides who uses its devices.
    UnmountUnused,
}

/// As [`unstage`], with another fate of [copies](MountCopies) of the mount in other mount namespaces.
///
/// # Errors
///
/// As [`unstage`].
pub fn unstage_with(staging: &Target, device: Option<&Path>, copies: MountCopies) -> Result<Unmounted> {
    staging.require_own(UNSTAGE)?;
    let known = device.map(open_if_there).transpose()?.flatten();
    // Of a place that has become another volume's, the mapping is that volume's.
    let mapping = if staging.is_anothers(UNSTAGE)? { None } else { mapping_of(staging)? };
    let mounted = mounted_device(staging)?;
    // Of an encrypted device the one inside is mounted, or nothing yet.
    let beneath = match &mapping {
        Some(mapping) if mounted.as_ref().is_none_or(|mounted| mounted.number() == mapping.number()) => {
            mapping.beneath()
        }
        _ => mounted.as_ref().map(BlockDevice::number),
    };
    if let (Some(known), Some(found)) = (&known, beneath)
        && known.number() != found
    {
        let reason = format!("asked for {} ({}), {found} is there", known.path().display(), known.number());
        return Err(Error::new(ErrorKind::WrongDevice, UNSTAGE, reason).at(staging.path()));
    }
    for device in [&known, &mounted].into_iter().flatten() {
        raw::detach_unfinished(device.path())?;
    }
    refuse_users_beside_mounts([known.as_ref(), mounted.as_ref()], mapping.as_ref(), staging)?;
    if let Some(mapping) = &mapping {
        mapping.go_on()?;
    }
    if mounted.is_some() && health::is_frozen_at(staging)? {
        let reason = "its filesystem is frozen, and unmounted nobody could thaw it";
        return Err(Error::new(ErrorKind::Busy, UNSTAGE, reason)
            .at(staging.path())
            .mend("thaw it (fsfreeze -u)"));
    }
    let unmounted = unmount(staging)?;
    staging.unmark(UNSTAGE)?;
    // It is closed only once nobody has it open, this included.
    let mounted = mounted.filter(|_| mapping.is_none());
    if let Some(mapping) = mapping {
        mapping.close().map_err(|error| match (error.kind(), mapping.device()) {
            (ErrorKind::Busy, Ok(inside)) => still_in_use(&inside, staging).err().unwrap_or(error),
            _ => error,
        })?;
    }
    match known.or(mounted) {
        Some(device) if !is_free(&device)? => {
            if copies == MountCopies::UnmountUnused {
                copies::unmount_unused(&device)?;
            }
            still_in_use(&device, staging).map(|()| unmounted)
        }
        _ => Ok(unmounted),
    }
}

/// A node of a device that is bound somewhere keeps nothing open, and a loop device over it does not keep others from opening
/// it exclusively either. Left there, they would be those of whatever volume gets the number next.
fn refuse_users_beside_mounts(
    devices: [Option<&BlockDevice>; 2],
    mapping: Option<&Mapping>,
    staging: &Target,
) -> Result<()> {
    let devices = devices.into_iter().flatten();
    let mut numbers: Vec<_> = devices.map(BlockDevice::number).chain(mapping.map(Mapping::number)).collect();
    numbers.dedup();
    let mut users = users::lasting(&numbers)?;
    users.retain(|user| matches!(user, DeviceUser::Published { .. } | DeviceUser::LoopDevice { .. }));
    if users.is_empty() { Ok(()) } else { Err(users::busy(UNSTAGE, "its device", &users).at(staging.path())) }
}

fn is_free(device: &BlockDevice) -> Result<bool> {
    match is_free_soon(device) {
        // It went away, or its number is another disk's by now.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WrongDevice) => Ok(true),
        other => other,
    }
}

fn open_if_there(path: &Path) -> Result<Option<BlockDevice>> {
    match BlockDevice::open(path) {
        Ok(device) => Ok(Some(device)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The device mounted at staging; none if it has none, or is gone.
fn mounted_device(staging: &Target) -> Result<Option<BlockDevice>> {
    if !matches!(staging.state()?, MountState::Mounted(_)) {
        return Ok(None);
    }
    // The descriptor is closed before the unmount, which it would keep from succeeding.
    let seen = staging.look(UNSTAGE)?;
    let Some(number) = Details::of(&seen.fd, UNSTAGE, staging.path())?.as_ref().and_then(device_under) else {
        return Ok(None);
    };
    match BlockDevice::by_number(number) {
        Ok(device) => Ok(Some(device)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WrongDevice) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Names who has the device, unless they let go of it meanwhile.
fn still_in_use(device: &BlockDevice, staging: &Target) -> Result<()> {
    let users = users::all(device)?;
    if users.is_empty() {
        return Ok(());
    }
    let name = format!("the device {} ({})", device.path().display(), device.number());
    Err(users::busy(UNSTAGE, &name, &users).at(staging.path()))
}
