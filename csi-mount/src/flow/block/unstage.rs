//! Unstaging: from a mounted filesystem to a device that nobody uses.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::encrypted::mapping_of;
use super::{UNSTAGE, copies, raw};
use crate::device::block_device::{BlockDevice, DeviceUse};
use crate::device::loop_device::LoopDevice;
use crate::device::mapping::Mapping;
use crate::device::users::{self, DeviceUser};
use crate::error::{Error, ErrorKind, Result, found};
use crate::mounted::health;
use crate::mounting::unmount::{Unmounted, unmount};
use crate::place::target::Target;
use crate::sys::ids::DeviceNumber;

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
    /// The volume is unstaged although copies keep its device in use: its filesystem is written back and shut
    /// down (`FS_IOC_SHUTDOWN`).
    ///
    /// Everything that was written is then on the device, and the kernel writes nothing more there. Each read and
    /// write through a copy fails with `EIO`, also of files that are open. The device stays in use, and
    /// [`Devices::in_use`](crate::Devices::in_use) says so, until the last copy is gone. Until then
    /// [`stage`](crate::BlockVolumes::stage) refuses it.
    ///
    /// The volume stays [`Busy`](ErrorKind::Busy) if anything else uses the device, or its filesystem cannot be
    /// shut down: ext4 and XFS can be, btrfs from Linux 6.19. An encrypted device stays Busy too, because its
    /// key would stay in the kernel. The copies need not be visible, so this needs no
    /// `hostPID`. The danger: a mount of this device that somebody made elsewhere on purpose fails too. Choose
    /// this only if the driver alone decides who uses its devices.
    ShutDown,
}

// spec: node-unstage-volume.undoes
// spec: node-unstage-volume.not-staged-is-ok
/// See [`BlockVolumes::unstage`](crate::BlockVolumes::unstage).
pub fn unstage(staging: &Target, device: Option<&Path>, copies: MountCopies) -> Result<Unmounted> {
    unstage_now(staging, device, copies).inspect_err(|error| {
        // The orchestrator repeats the call without an end, and shows its error nowhere.
        if error.kind() == ErrorKind::Busy {
            tracing::warn!(%error, "a volume is not unstaged, because it is in use");
        }
    })
}

/// See [`BlockVolumes::unstage_lost`](crate::BlockVolumes::unstage_lost).
pub(crate) fn unstage_lost(staging: &Target, copies: MountCopies) -> Result<Unmounted> {
    // Known before the unmount: afterwards another device can have the number.
    let device = device_beneath(staging)?.map(LoopDevice::with_number).transpose()?.flatten();
    let unmounted = unstage(staging, None, copies)?;
    if let Some(device) = device {
        tracing::warn!(device = %device.number(), staging = %staging.path().display(), "detaches a loop device that was \
            mounted there: nobody knows its file");
        device.detach()?;
    }
    Ok(unmounted)
}

/// The device that is mounted there, or that is under the encrypted one there.
fn device_beneath(staging: &Target) -> Result<Option<DeviceNumber>> {
    match mapping_of(staging)? {
        Some(mapping) => Ok(mapping.beneath()),
        None => Ok(mounted_device(staging)?.map(|mounted| mounted.number())),
    }
}

fn unstage_now(staging: &Target, device: Option<&Path>, copies: MountCopies) -> Result<Unmounted> {
    staging.require_own(UNSTAGE)?;
    let known = device.map(|device| found(BlockDevice::open(device))).transpose()?.flatten();
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
    // By path: a loop device can be left over a device whose node is gone.
    for path in [device, mounted.as_ref().map(BlockDevice::path)].into_iter().flatten() {
        raw::detach_unfinished(path)?;
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
            let free = match copies {
                MountCopies::Kept => require_unused(&device, staging),
                MountCopies::UnmountUnused => {
                    copies::unmount_unused(&device).and_then(|()| require_unused(&device, staging))
                }
                MountCopies::ShutDown => copies::shut_down(&device, staging),
            };
            free.map(|()| unmounted)
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

/// Waits up to one second for a device to be free: an unmount elsewhere can be in progress.
fn wait_until_free(device: &BlockDevice) -> Result<bool> {
    let end = Instant::now() + Duration::from_secs(1);
    loop {
        match device.in_use()? {
            DeviceUse::Free => return Ok(true),
            DeviceUse::InUse if Instant::now() >= end => return Ok(false),
            DeviceUse::InUse => sleep(Duration::from_millis(10)),
        }
    }
}

/// The device mounted at the staging path; none if nothing is mounted, or the device is gone.
fn mounted_device(staging: &Target) -> Result<Option<BlockDevice>> {
    // The descriptor is closed here: it would prevent the unmount.
    let mounted = staging.open_mounted(UNSTAGE)?.and_then(|(_, details)| details.block_device());
    let Some(number) = mounted else { return Ok(None) };
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
    Err(users::device_in_use_error(UNSTAGE, device, &users).at(staging.path()))
}

#[cfg(test)]
mod needs_root {
    use std::fs::File;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::device::block_device::DeviceAccess;
    use crate::device::loop_device::LoopOptions;
    use crate::internal::{Feature, without_features};
    use crate::mounting::mount::Mount;
    use crate::testing::private_mount_namespace;

    /// Before Linux 5.8, a publish that is killed leaves a loop device without a name. It keeps the volume's
    /// device in use, also one whose node is gone.
    #[test]
    fn an_unfinished_loop_device_over_a_device_that_is_gone_is_detached() {
        let directory = tempfile::tempdir().unwrap();
        private_mount_namespace(|| {
            Mount::new("tmpfs", "nodes").at(&Target::new(directory.path()).unwrap()).unwrap();
            let image = directory.path().join("image");
            let node = directory.path().join("disk");
            File::create(&image).unwrap().set_len(1 << 20).unwrap();
            let device = LoopDevice::attach(&image, &LoopOptions::new()).unwrap();
            mknodat(CWD, &node, FileType::BlockDevice, Mode::RUSR | Mode::WUSR, device.number().dev_t())
                .unwrap();
            let without_name = LoopOptions::new().access(DeviceAccess::ReadOnly).mark("");
            LoopDevice::attach(&node, &without_name).unwrap();
            std::fs::remove_file(&node).unwrap();

            let staging = Target::new(directory.path().join("staging")).unwrap();
            let unstaged = without_features(&[Feature::LoopConfigure], || {
                unstage(&staging, Some(&node), MountCopies::Kept)
            });

            // A failure leaves no loop device on the machine either.
            let left = LoopDevice::detach_all(&node).unwrap();
            device.detach().unwrap();
            unstaged.unwrap();
            assert_eq!(left, 0);
        });
    }
}
