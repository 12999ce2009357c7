//! Staging: from a device to a mounted filesystem.

use std::path::Path;

use super::device_under;
use super::plan::{StageCheck, StagePlan};
use crate::device::same_disk::is_same_disk;
use crate::device::users::{self, Tolerated};
use crate::filesystem::check::check_within;
use crate::filesystem::kernel_features::unknown_features;
use crate::filesystem::probe::content_missing;
use crate::filesystem::uuid::{mounted_on_same_disk, set_uuid};
use crate::flow::lost::require_staged;
use crate::flow::remove_created;
use crate::mounting::diagnose;

use crate::table::details::Details;
use crate::unmount;
use crate::{
    BlockDevice, CheckPolicy, Created, DeviceNumber, Error, ErrorKind, Filesystem, Grown, KernelVersion,
    Mount, MountEntry, MountOptions, MountState, Outcome, Probe, Result, Signature, Target, grow_mounted,
    grow_unmounted_within,
};

const STAGE: &str = "stage";
/// Mount option with which XFS mounts a clone while its origin is mounted.
const NO_UUID: &str = "nouuid";

/// What staging found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Staged {
    /// The device that is mounted.
    pub device: DeviceNumber,
    /// Whether this call mounted it, or it was mounted before.
    pub outcome: Outcome,
    /// Whether the filesystem is new.
    pub origin: FilesystemOrigin,
    /// The result of growing; none if this call did not try to grow the filesystem.
    pub grown: Option<Grown>,
}

/// Whether a staged filesystem is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilesystemOrigin {
    /// The device was blank and has been formatted.
    Formatted,
    /// The device already held the filesystem.
    Existing,
}

/// Mounts the filesystem of a device at the staging directory, and makes the filesystem first if the device
/// is blank.
///
/// It waits for the device ([`StagePlan::wait_for_device`], [`StagePlan::expect`]). Existing content is kept.
/// The device is formatted only if it is [`Blank`](Probe::Blank), or holds nothing but an interrupted format
/// of this crate ([`Interrupted`](Probe::Interrupted)). It is mounted only if it holds the filesystem of the
/// plan. An ext4 with errors is checked first ([`StagePlan::check`]). A volume that is known to have content
/// is never formatted ([`StagePlan::never_format`]). A filesystem smaller than its device grows: ext4 before
/// it is mounted, XFS and btrfs after. The XFS clone of a mounted filesystem is mounted with `nouuid` if its
/// origin is visibly mounted and is not on the same disk. A btrfs clone is mounted next to its origin from
/// Linux 6.7 on. A plan can give a clone its own UUID ([`StagePlan::own_uuid`]). On failure, what this call
/// mounted is unmounted, and a directory that it made is removed.
///
/// For a plan that is `encrypted` (feature `luks`) all this holds for the device inside. A blank device is
/// encrypted first, and the device inside is formatted only if nothing was ever written to it. The mapping
/// is named after the staging directory. A mapping that a killed call left is removed and made again. On
/// failure, a device that this call opened is closed.
///
/// - spec: `node-stage-volume.repeated-is-ok`, `node-stage-volume.differs-is-already-exists`
/// - spec: `node-stage-volume.usable-as-described`
///
/// # Errors
///
/// - [`NotBlank`](ErrorKind::NotBlank): the device holds something else, and the message says what and
///   where. Nothing was written to it.
/// - [`Unreadable`](ErrorKind::Unreadable): the device can't be read. Nothing was written to it.
/// - [`AlreadyMounted`](ErrorKind::AlreadyMounted): another device is mounted there, or the same with other
///   options.
/// - [`Busy`](ErrorKind::Busy): the device is published raw for writing, or a loop device or another device
///   is over it ([`BlockDevice::users`]); or the disk is already mounted through another of its devices
///   (XFS, btrfs); or its UUID is to be changed and it is used anywhere.
/// - [`ReadOnly`](ErrorKind::ReadOnly): the device refuses writes and the plan needs them; or the device is
///   blank and the plan allows no writes; or it is mounted there, and the kernel made it read-only after an
///   error.
/// - [`Unresponsive`](ErrorKind::Unresponsive): it is mounted there, and has shut down after an error.
/// - [`WrongDevice`](ErrorKind::WrongDevice): the disk at the path is not the expected one.
/// - [`Damaged`](ErrorKind::Damaged): the check found errors that it can't repair; or the device is blank
///   and the plan [never formats](StagePlan::never_format) it.
/// - [`Unsupported`](ErrorKind::Unsupported): the filesystem has a feature that this kernel does not know; or
///   its UUID is to be changed and more in it depends on the UUID ([`StagePlan::own_uuid`]).
/// - For an encrypted plan: `WrongKey` if the key is not the device's; [`NotBlank`](ErrorKind::NotBlank) if
///   the device holds content that is not encrypted; [`WrongDevice`](ErrorKind::WrongDevice) if the mapping
///   is over another device; [`Busy`](ErrorKind::Busy) if the mapping, or a device that had its number
///   before, is published raw; [`Unsupported`](ErrorKind::Unsupported) without a device mapper; and those
///   of `Luks::format`.
/// - Those of [`BlockDevice::open`], [`Format::run`](crate::Format::run), [`grow_unmounted_within`],
///   [`grow_mounted`] and [`Mount::at`].
pub fn stage(device: impl AsRef<Path>, staging: &Target, plan: &StagePlan) -> Result<Staged> {
    let device = plan.expected.wait_at(device)?;
    #[cfg(feature = "luks")]
    if let Some(encryption) = &plan.encryption {
        return super::encrypted::stage_inside(encryption, &device, staging, plan);
    }
    stage_on(&device, staging, plan)
}

/// As [`stage`], on a device that is already present.
pub(super) fn stage_on(device: &BlockDevice, staging: &Target, plan: &StagePlan) -> Result<Staged> {
    let mut origin = FilesystemOrigin::Existing;
    let mut grown = None;
    let mut created = Created::Existed;
    if matches!(staging.state()?, MountState::Mounted(_)) {
        refuse_broken(staging, plan)?;
    } else {
        (origin, grown) = prepare(device, plan)?;
        if let Some(uuid) = plan.own_uuid.filter(|_| plan.writes()) {
            set_uuid(device, plan.filesystem, uuid)?;
        }
        created = staging.create_dir()?;
    }
    let outcome = mount(device, staging, plan).inspect_err(|_| remove_created(created, staging))?;
    let finished = verify(device, staging).and_then(|()| grow_after(device, staging, plan));
    match finished {
        Ok(grown_after) => {
            Ok(Staged { device: device.number(), outcome, origin, grown: grown_after.or(grown) })
        }
        Err(error) => {
            if outcome == Outcome::Mounted
                && let Err(left) = unmount(staging)
            {
                tracing::warn!(%left, "a filesystem stays mounted after a failed stage");
            } else {
                remove_created(created, staging);
            }
            Err(error)
        }
    }
}

/// Refuses a staged filesystem that the kernel made read-only or shut down after an error: it no longer
/// matches the request.
fn refuse_broken(staging: &Target, plan: &StagePlan) -> Result<()> {
    match require_staged(STAGE, staging.path(), plan.options.attributes()) {
        // It was unmounted in the meantime.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Makes sure that the device holds the filesystem, and grows it if that filesystem grows while unmounted.
fn prepare(device: &BlockDevice, plan: &StagePlan) -> Result<(FilesystemOrigin, Option<Grown>)> {
    let refuses_writes = device.is_read_only()?;
    if plan.writes() && refuses_writes {
        let reason = "the device refuses writes";
        return Err(Error::new(ErrorKind::ReadOnly, STAGE, reason)
            .at(device.path())
            .hint("stage it read-only"));
    }
    let found = device.probe();
    // A format checks the users of the device itself, and tolerates fewer of them.
    let is_to_format =
        matches!(found, Probe::Blank(_) | Probe::Interrupted(_)) && plan.writes() && !plan.never_format;
    if !is_to_format {
        users::refuse(device, STAGE, Tolerated::Mounts)?;
    }
    match found {
        found @ (Probe::Blank(_) | Probe::Interrupted(_)) if plan.never_format => {
            Err(content_missing(STAGE, device, found))
        }
        Probe::Blank(proof) if plan.writes() => {
            plan.format.run(proof)?;
            Ok((FilesystemOrigin::Formatted, None))
        }
        Probe::Interrupted(format) if plan.writes() => {
            tracing::warn!(device = %device.path().display(), "starting an interrupted format again");
            plan.format.run(format.into_proof())?;
            Ok((FilesystemOrigin::Formatted, None))
        }
        Probe::Blank(_) | Probe::Interrupted(_) => {
            let reason = "the device has no filesystem yet, and a read-only stage does not format it";
            Err(Error::new(ErrorKind::ReadOnly, STAGE, reason)
                .at(device.path())
                .hint("stage it read-write once"))
        }
        Probe::Filesystem(found) if found.filesystem() == Some(plan.filesystem) => {
            if plan.writes() {
                check_before(device, plan, &found)?;
            }
            Ok((FilesystemOrigin::Existing, grow_before(device, plan, &found)?))
        }
        other => {
            let usable = other.filesystem();
            let refusal = other.refusal(STAGE, device);
            Err(match usable {
                Some(usable) => refusal.hint(format!(
                    "to use it, request {usable} instead of {}; the device was not changed",
                    plan.filesystem
                )),
                None => refusal,
            })
        }
    }
}

/// Checks and repairs an ext4 if the plan asks for it. If it is mounted elsewhere, it is not touched.
fn check_before(device: &BlockDevice, plan: &StagePlan, found: &Signature) -> Result<()> {
    let wanted = match plan.check {
        StageCheck::Never => false,
        StageCheck::WhenNeeded => found.has_errors,
        StageCheck::Always => true,
    };
    if !wanted || !plan.filesystem.is_maintained_unmounted() {
        return Ok(());
    }
    match check_within(device, plan.filesystem, CheckPolicy::Preen, plan.check_limits) {
        Ok(report) => {
            tracing::info!(device = %device.path().display(), ?report, "checked");
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::Busy => {
            tracing::warn!(%error, "staged without a check");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn grow_before(device: &BlockDevice, plan: &StagePlan, found: &Signature) -> Result<Option<Grown>> {
    if !plan.filesystem.is_maintained_unmounted() || !plan.writes() || !found.can_grow_to(device.size()?) {
        return Ok(None);
    }
    match grow_unmounted_within(device, plan.filesystem, plan.check_limits) {
        Ok(grown) => Ok(Some(grown)),
        // It is mounted elsewhere and is not touched. It can grow after it is unmounted there.
        Err(error) if error.kind() == ErrorKind::Busy => {
            tracing::warn!(%error, "staged without growing");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn mount(device: &BlockDevice, staging: &Target, plan: &StagePlan) -> Result<Outcome> {
    let mount = |options: &MountOptions| {
        Mount::new(plan.filesystem.name(), device.path()).options(options).at(staging)
    };
    if plan.filesystem.can_be_mounted_twice() {
        refuse_mounted_disk(device, staging)?;
    }
    let has_nouuid = plan.filesystem.has_nouuid();
    if has_nouuid && plan.options.filesystem().iter().any(|option| option.key() == NO_UUID) {
        other_mount_of_disk(device, staging)?;
    }
    let mounted = match mount(&plan.options) {
        // XFS returns only `EINVAL` if another mounted filesystem has its UUID. If the mount with `nouuid`
        // fails too, the first error says more.
        Err(error)
            if has_nouuid
                && error.raw_os_error() == Some(nix::libc::EINVAL)
                && other_mount_of_disk(device, staging)?.is_some() =>
        {
            mount(&plan.options.clone().with_flag_option(NO_UUID)?).map_err(|_| error)
        }
        other => other,
    };
    mounted.map_err(|error| explain_features(error, device, plan.filesystem))
}

/// Finds the mounted XFS with the UUID of this one. XFS refuses to mount two filesystems with one UUID:
/// they could be the same filesystem, and mounting it twice would destroy it. Only a device that is known
/// to be on another disk is a clone.
fn other_mount_of_disk(device: &BlockDevice, staging: &Target) -> Result<Option<MountEntry>> {
    let Some(twin) = diagnose::mount_with_same_uuid(device.path(), device.number()) else { return Ok(None) };
    if !is_same_disk(device.number(), twin.device)? {
        return Ok(Some(twin));
    }
    let (source, place) = (Path::new(&twin.source).display(), twin.mount_point.display());
    Err(mounted_twice(device, staging, &format!("at {place}, as {source}")))
}

/// Refuses a btrfs whose disk is already mounted through another device.
///
/// From Linux 6.7 the kernel mounts a second btrfs with the same UUID, as a clone with a UUID in memory. It
/// compares device numbers only, so the same disk under another number would be mounted twice and destroyed.
/// Older kernels refuse every second one.
fn refuse_mounted_disk(device: &BlockDevice, staging: &Target) -> Result<()> {
    match mounted_on_same_disk(device, Filesystem::Btrfs)? {
        Some(name) => Err(mounted_twice(device, staging, &format!("as /dev/{name}"))),
        None => Ok(()),
    }
}

fn mounted_twice(device: &BlockDevice, staging: &Target, place: &str) -> Error {
    let reason = format!("{} is a disk that is already mounted {place}", device.path().display());
    Error::new(ErrorKind::Busy, STAGE, reason)
        .at(staging.path())
        .hint("unmount it there, or combine the paths of the disk into one device (multipathd)")
}

/// `mkfs` can be newer than the kernel. The kernel then reports only that the filesystem does not mount.
fn explain_features(error: Error, device: &BlockDevice, filesystem: Filesystem) -> Error {
    let unknown =
        KernelVersion::running().ok().and_then(|kernel| unknown_features(device, filesystem, kernel));
    match unknown {
        Some(reason) => error
            .with_kind(ErrorKind::Unsupported)
            .add_reason(reason)
            .hint("use it on a newer kernel; for new volumes, choose a mkfs profile for the oldest kernel"),
        None => error,
    }
}

/// Checks with the kernel that this device is mounted, whatever the path led to.
fn verify(device: &BlockDevice, staging: &Target) -> Result<()> {
    let opened = staging.open(STAGE)?;
    let details = Details::from_fd(&opened.fd, STAGE, staging.path())?;
    let mounted = details.as_ref().and_then(device_under);
    if mounted == Some(device.number()) {
        return Ok(());
    }
    let found = details.map_or_else(
        || "nothing is mounted".to_owned(),
        |details| format!("the existing mount is {details}"),
    );
    let reason = format!("{} ({}) was requested, but {found}", device.path().display(), device.number());
    Err(Error::new(ErrorKind::WrongDevice, STAGE, reason).at(staging.path()))
}

fn grow_after(device: &BlockDevice, staging: &Target, plan: &StagePlan) -> Result<Option<Grown>> {
    if plan.filesystem.is_maintained_unmounted() || !plan.writes() {
        return Ok(None);
    }
    match grow_mounted(device, plan.filesystem, staging.path()) {
        // The btrfs is too small to grow. It stays usable, and a later expansion reports why it does not
        // grow.
        Err(error) if error.kind() == ErrorKind::OutOfRange => {
            tracing::warn!(%error, "staged without growing");
            Ok(None)
        }
        grown => grown.map(Some),
    }
}
