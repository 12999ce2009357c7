//! From a device to a mounted filesystem.

use std::path::Path;

use super::device_under;
use super::plan::{StageCheck, StagePlan};
use super::publish::take_back;
use crate::device::same_disk::is_same_disk;
use crate::device::users::{self, Tolerated};
use crate::filesystem::check::check_within;
use crate::filesystem::kernel_features::unknown_to;
use crate::filesystem::probe::content_missing;
use crate::flow::lost::require_staged;
use crate::mounting::diagnose;

use crate::table::details::Details;
use crate::unmount;
use crate::{
    BlockDevice, CheckPolicy, Created, DeviceNumber, Error, ErrorKind, Filesystem, Grown, KernelVersion,
    Mount, MountEntry, MountOptions, MountState, Outcome, Probe, Result, Signature, Target, grow_mounted,
    grow_unmounted_within,
};

const STAGE: &str = "stage";
/// By which XFS mounts a clone beside its origin.
const NO_UUID: &str = "nouuid";

/// What staging found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Staged {
    /// The device that is mounted.
    pub device: DeviceNumber,
    /// Whether it was mounted, or was before.
    pub outcome: Outcome,
    /// Whether the filesystem is new.
    pub content: Content,
    /// What growing did, where the device was looked at for that.
    pub grown: Option<Grown>,
}

/// Whether a staged filesystem is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// The device was blank and has been formatted.
    Formatted,
    /// The filesystem was there.
    Kept,
}

/// Mounts the filesystem of a device at the staging directory, making the filesystem if the device is blank.
///
/// The device is waited for ([`StagePlan::wait_for_device`], [`StagePlan::expect`]). What is there is kept: it is formatted
/// only if it is [`Blank`](Probe::Blank), or holds no more than an interrupted format of ours
/// ([`Interrupted`](Probe::Interrupted)), and mounted only if it holds the filesystem of the plan. An ext4 with errors is
/// checked before ([`StagePlan::check`]). A volume that is known to have content is never formatted
/// ([`StagePlan::never_format`]). A filesystem smaller than its device grows: ext4 before it is mounted, XFS and
/// btrfs after. The XFS clone of a mounted filesystem is mounted with `nouuid`, if its origin is seen to be mounted and is not on
/// the same disk. When it fails, what it mounted is
/// unmounted, and a directory that it made is removed.
///
/// Of a plan that is `encrypted` (feature `luks`) all this holds of the device inside. A blank device is encrypted first, and
/// what is inside is formatted only if nothing was ever written there. The mapping is named after the staging directory; one
/// that a call left behind that was killed is taken down and made anew. When it fails, what it opened is closed.
///
/// - spec: `node-stage-volume.repeated-is-ok`, `node-stage-volume.differs-is-already-exists`
/// - spec: `node-stage-volume.usable-as-described`
///
/// # Errors
///
/// - [`NotBlank`](ErrorKind::NotBlank): the device holds something else, and the message says what and where.
/// - [`Unreadable`](ErrorKind::Unreadable): it can't be read. In neither case was it written to.
/// - [`AlreadyMounted`](ErrorKind::AlreadyMounted): another device is mounted there, or with other options.
/// - [`Busy`](ErrorKind::Busy): the device is published raw for writing, or a loop device or another device is over it
///   ([`BlockDevice::users`]); or the disk is mounted already, by another of its devices (XFS).
/// - [`ReadOnly`](ErrorKind::ReadOnly): the device refuses writes and the plan wants them, or it is blank and the plan
///   allows none; or it is mounted there, and the kernel stopped writing to it after an error.
/// - [`Unresponsive`](ErrorKind::Unresponsive): it is mounted there, and shut down after an error.
/// - [`WrongDevice`](ErrorKind::WrongDevice): another disk than the expected one is at the path.
/// - [`Damaged`](ErrorKind::Damaged): the check found what it can't mend, or the device is blank and the plan
///   [never formats](StagePlan::never_format) it.
/// - [`Unsupported`](ErrorKind::Unsupported): the filesystem has a feature that this kernel does not know.
/// - Of a plan that is encrypted: `WrongKey` for another key; [`NotBlank`](ErrorKind::NotBlank) if the device holds what is not
///   encrypted; [`WrongDevice`](ErrorKind::WrongDevice) if the mapping is over another device;
///   [`Busy`](ErrorKind::Busy) if it, or what had its number before, is published raw;
///   [`Unsupported`](ErrorKind::Unsupported) without a device mapper; and those of `Luks::format`.
/// - Those of [`BlockDevice::open`], [`Format::run`](crate::Format::run), [`grow_unmounted_within`],
///   [`grow_mounted`] and [`Mount::at`].
pub fn stage(device: impl AsRef<Path>, staging: &Target, plan: &StagePlan) -> Result<Staged> {
    let device = plan.expected.wait_at(device, plan.wait)?;
    #[cfg(feature = "luks")]
    if let Some(encryption) = &plan.encryption {
        return super::encrypted::stage_inside(encryption, &device, staging, plan);
    }
    stage_on(&device, staging, plan)
}

/// As [`stage`], on a device that is there.
pub(super) fn stage_on(device: &BlockDevice, staging: &Target, plan: &StagePlan) -> Result<Staged> {
    let mut content = Content::Kept;
    let mut grown = None;
    let mut created = Created::Existed;
    if matches!(staging.state()?, MountState::Mounted(_)) {
        refuse_broken(staging, plan)?;
    } else {
        (content, grown) = prepare(device, plan)?;
        created = staging.create_dir()?;
    }
    let outcome = mount(device, staging, plan).inspect_err(|_| take_back(created, staging))?;
    let finished = verify(device, staging).and_then(|()| grow_after(device, staging, plan));
    match finished {
        Ok(grown_after) => {
            Ok(Staged { device: device.number(), outcome, content, grown: grown_after.or(grown) })
        }
        Err(error) => {
            if outcome == Outcome::Mounted
                && let Err(left) = unmount(staging)
            {
                tracing::warn!(%left, "a filesystem that could not be staged stays mounted");
            } else {
                take_back(created, staging);
            }
            Err(error)
        }
    }
}

/// A filesystem that the kernel made read-only, or shut down, after an error is no longer what was asked for.
fn refuse_broken(staging: &Target, plan: &StagePlan) -> Result<()> {
    match require_staged(STAGE, staging.path(), plan.options.attributes()) {
        // Unmounted since.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Makes sure that the device holds the filesystem, as large as the device where that is done unmounted.
fn prepare(device: &BlockDevice, plan: &StagePlan) -> Result<(Content, Option<Grown>)> {
    let refuses_writes = device.is_read_only()?;
    if plan.writes() && refuses_writes {
        let reason = "the device refuses writes";
        return Err(Error::new(ErrorKind::ReadOnly, STAGE, reason)
            .at(device.path())
            .mend("stage it read-only"));
    }
    let found = device.probe();
    // Making a filesystem asks for users itself, and for more of them.
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
            Ok((Content::Formatted, None))
        }
        Probe::Interrupted(format) if plan.writes() => {
            tracing::warn!(device = %device.path().display(), "begin an interrupted format anew");
            plan.format.run(format.into_proof())?;
            Ok((Content::Formatted, None))
        }
        Probe::Blank(_) | Probe::Interrupted(_) => {
            let reason = "the device has no filesystem yet, and staged read-only it is not formatted";
            Err(Error::new(ErrorKind::ReadOnly, STAGE, reason)
                .at(device.path())
                .mend("stage it read-write once"))
        }
        Probe::Filesystem(found) if found.filesystem() == Some(plan.filesystem) => {
            if plan.writes() {
                check_before(device, plan, &found)?;
            }
            Ok((Content::Kept, grow_before(device, plan, &found)?))
        }
        other => {
            let usable = other.filesystem();
            let refusal = other.refusal(STAGE, device);
            Err(match usable {
                Some(usable) => refusal.mend(format!(
                    "ask for {usable} instead of {} to use it; it was not changed",
                    plan.filesystem
                )),
                None => refusal,
            })
        }
    }
}

/// Mends an ext4 that says it has errors; mounted elsewhere, it is not touched.
fn check_before(device: &BlockDevice, plan: &StagePlan, found: &Signature) -> Result<()> {
    let wanted = match plan.check {
        StageCheck::Never => false,
        StageCheck::WhenNeeded => found.has_errors,
        StageCheck::Always => true,
    };
    if !wanted || plan.filesystem != Filesystem::Ext4 {
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
    if plan.filesystem != Filesystem::Ext4 || !plan.writes() || !found.can_grow_to(device.size()?) {
        return Ok(None);
    }
    match grow_unmounted_within(device, plan.filesystem, plan.check_limits) {
        Ok(grown) => Ok(Some(grown)),
        // Mounted elsewhere, it is not touched; it grows when that is over.
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
    let is_xfs = plan.filesystem == Filesystem::Xfs;
    if is_xfs && plan.options.filesystem().iter().any(|option| option.key() == NO_UUID) {
        twin_of(device, staging)?;
    }
    let mounted = match mount(&plan.options) {
        // `EINVAL` is all that XFS says of another mounted filesystem that has its UUID; a failed mount with `nouuid`
        // then says more.
        Err(error)
            if is_xfs
                && error.raw_os_error() == Some(nix::libc::EINVAL)
                && twin_of(device, staging)?.is_some() =>
        {
            mount(&plan.options.clone().with_flag_option(NO_UUID)?).map_err(|_| error)
        }
        other => other,
    };
    mounted.map_err(|error| explain_features(error, device, plan.filesystem))
}

/// The mounted XFS with the UUID of this one. XFS mounts no two that have one UUID, since they could be one filesystem, which
/// would not survive it: only what is seen to be on another disk is a clone.
fn twin_of(device: &BlockDevice, staging: &Target) -> Result<Option<MountEntry>> {
    let Some(twin) = diagnose::xfs_twin(device.path(), device.number()) else { return Ok(None) };
    if !is_same_disk(device.number(), twin.device)? {
        return Ok(Some(twin));
    }
    let (source, place) = (Path::new(&twin.source).display(), twin.mount_point.display());
    let reason =
        format!("{} is the disk that is mounted at {place} already, as {source}", device.path().display());
    Err(Error::new(ErrorKind::Busy, STAGE, reason)
        .at(staging.path())
        .mend("unmount it there, or have the paths of the disk made one device (multipathd)"))
}

/// `mkfs` may be newer than the kernel, which says no more of it than that it does not mount.
fn explain_features(error: Error, device: &BlockDevice, filesystem: Filesystem) -> Error {
    let unknown = KernelVersion::running().ok().and_then(|kernel| unknown_to(device, filesystem, kernel));
    match unknown {
        Some(reason) => error
            .as_kind(ErrorKind::Unsupported)
            .because(reason)
            .mend("use it on a newer kernel; volumes to come: a mkfs profile of the oldest kernel"),
        None => error,
    }
}

/// The kernel has to say that it is this device, whatever the path led to.
fn verify(device: &BlockDevice, staging: &Target) -> Result<()> {
    let seen = staging.look(STAGE)?;
    let details = Details::of(&seen.fd, STAGE, staging.path())?;
    let mounted = details.as_ref().and_then(device_under);
    if mounted == Some(device.number()) {
        return Ok(());
    }
    let found =
        details.map_or_else(|| "nothing is mounted".to_owned(), |details| format!("there is {details}"));
    let reason = format!("asked for {} ({}), {found}", device.path().display(), device.number());
    Err(Error::new(ErrorKind::WrongDevice, STAGE, reason).at(staging.path()))
}

fn grow_after(device: &BlockDevice, staging: &Target, plan: &StagePlan) -> Result<Option<Grown>> {
    if plan.filesystem == Filesystem::Ext4 || !plan.writes() {
        return Ok(None);
    }
    match grow_mounted(device, plan.filesystem, staging.path()) {
        // A small btrfs. It is as usable as before; an expansion says why it does not grow.
        Err(error) if error.kind() == ErrorKind::OutOfRange => {
            tracing::warn!(%error, "staged without growing");
            Ok(None)
        }
        grown => grown.map(Some),
    }
}
