//! Staging: from a device to a mounted filesystem.

use std::path::Path;

use nix::libc;

use super::decide::{Action, Upkeep, decide};
use super::plan::StagePlan;
use super::{STAGE, clones};
use crate::device::block_device::BlockDevice;
use crate::device::users::{self, DeviceUser, Tolerated};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystem::check::{CheckPolicy, check};
use crate::filesystem::grow::{Grown, grow_mounted, grow_unmounted};
use crate::filesystem::kernel_features::{KernelVersion, optional_support, unknown_features};
use crate::filesystem::probe::BlankProof;
use crate::flow::{remove_created, require_staged};
use crate::mounting::attach::Outcome;
use crate::mounting::mount::Mount;
use crate::mounting::options::MountOptions;
use crate::mounting::unmount::unmount;
use crate::place::target::{Created, Target};
use crate::sys::ids::DeviceNumber;
use crate::table::details::Details;

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

// spec: node-stage-volume.repeated-is-ok
// spec: node-stage-volume.differs-is-already-exists
// spec: node-stage-volume.usable-as-described
/// See [`BlockVolumes::stage`](crate::BlockVolumes::stage).
pub fn stage(device: impl AsRef<Path>, staging: &Target, plan: &StagePlan) -> Result<Staged> {
    let device = plan.expected.wait_at(device)?;
    #[cfg(feature = "remote")]
    super::reserve::for_stage(&device, staging, plan)?;
    #[cfg(feature = "luks")]
    if let Some(encryption) = &plan.encryption {
        let stage = |inside: &BlockDevice, plan: &StagePlan| stage_on(inside, staging, plan);
        return super::encrypted::stage_inside(encryption, &device, staging, plan, stage);
    }
    stage_on(&device, staging, plan)
}

/// As [`stage`], on a device that is already present.
fn stage_on(device: &BlockDevice, staging: &Target, plan: &StagePlan) -> Result<Staged> {
    let stage = Stage { device, staging, plan };
    if staging.is_mounted()? {
        stage.refuse_broken()?;
        return stage.mount(Prepared { origin: FilesystemOrigin::Existing, grown: None }, Created::Existed);
    }
    let prepared = stage.prepare()?;
    let created = staging.create_dir()?;
    stage.mount(prepared, created)
}

/// One call: the filesystem of this device gets to this place.
struct Stage<'a> {
    device: &'a BlockDevice,
    staging: &'a Target,
    plan: &'a StagePlan,
}

/// What was done with the filesystem before it is mounted.
struct Prepared {
    origin: FilesystemOrigin,
    grown: Option<Grown>,
}

impl Stage<'_> {
    /// Refuses a staged filesystem that the kernel made read-only or shut down after an error: it no longer
    /// matches the request.
    fn refuse_broken(&self) -> Result<()> {
        match require_staged(STAGE, self.staging.path(), self.plan.options.attributes()) {
            // It was unmounted in the meantime.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Makes sure that the device holds the filesystem, and does with it what must be done while it is
    /// unmounted.
    fn prepare(&self) -> Result<Prepared> {
        let Stage { device, plan, .. } = self;
        let refuses_writes = device.is_read_only()?;
        if plan.writes() && refuses_writes {
            let reason = "the device refuses writes";
            return Err(Error::new(ErrorKind::ReadOnly, STAGE, reason)
                .at(device.path())
                .hint("stage it read-only"));
        }
        let size = device.size()?;
        let action = decide(device.probe(), size, plan);
        // A format checks the users of the device itself, and tolerates fewer of them.
        if !matches!(action, Action::Format(_) | Action::FormatAgain(_)) {
            users::refuse(device, STAGE, Tolerated::Mounts)?;
        }
        match action {
            Action::Format(proof) => self.format(proof),
            Action::FormatAgain(format) => {
                tracing::warn!(device = %device.path().display(), "starting an interrupted format again");
                self.format(format.into_proof())
            }
            Action::Use(upkeep) => {
                Ok(Prepared { origin: FilesystemOrigin::Existing, grown: self.maintain(upkeep)? })
            }
            Action::Refuse(refusal) => Err(refusal.into_error(STAGE, device, plan)),
        }
    }

    fn format(&self, proof: BlankProof<'_>) -> Result<Prepared> {
        self.plan.format.run(proof)?;
        Ok(Prepared { origin: FilesystemOrigin::Formatted, grown: None })
    }

    /// If the filesystem is mounted elsewhere, it is not touched. It can be checked, and can grow, after it is
    /// unmounted there. One that can't grow is used as it is.
    fn maintain(&self, upkeep: Upkeep) -> Result<Option<Grown>> {
        let Stage { device, plan, .. } = self;
        if upkeep.check {
            match check(device, plan.filesystem, CheckPolicy::Preen, plan.check_limits) {
                Err(error) if error.kind() == ErrorKind::Busy => {
                    tracing::warn!(%error, "staged without a check");
                }
                Err(error) => return Err(error),
                Ok(report) => tracing::info!(device = %device.path().display(), ?report, "checked"),
            }
        }
        if !upkeep.grow {
            return Ok(None);
        }
        match grow_unmounted(device, plan.filesystem, plan.check_limits) {
            Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::Unsupported) => {
                tracing::warn!(%error, "staged without growing");
                Ok(None)
            }
            grown => grown.map(Some),
        }
    }

    fn mount(&self, prepared: Prepared, created: Created) -> Result<Staged> {
        let Stage { device, staging, .. } = self;
        let outcome = self.mount_device().inspect_err(|_| remove_created(created, staging))?;
        match self.verify().and_then(|()| self.grow_mounted()) {
            Ok(grown) => {
                let grown = grown.or(prepared.grown);
                Ok(Staged { device: device.number(), outcome, origin: prepared.origin, grown })
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

    fn mount_device(&self) -> Result<Outcome> {
        let Stage { device, staging, plan } = self;
        let mount = |options: &MountOptions| {
            Mount::new(plan.filesystem.name(), device.path()).options(options).at(staging)
        };
        if plan.filesystem.can_be_mounted_twice() {
            clones::refuse_mounted_disk(device, plan.filesystem, staging)?;
        }
        let has_nouuid = plan.filesystem.has_nouuid();
        if has_nouuid && plan.options.filesystem().iter().any(|option| option.key() == NO_UUID) {
            clones::mounted_origin(device, staging)?;
        }
        let mounted = match mount(&plan.options) {
            // XFS returns only `EINVAL` if another mounted filesystem has its UUID. If the mount with `nouuid`
            // fails too, this second error has the cause.
            Err(error)
                if has_nouuid
                    && error.raw_os_error() == Some(nix::libc::EINVAL)
                    && clones::mounted_origin(device, staging)?.is_some() =>
            {
                mount(&plan.options.clone().with_flag_option(NO_UUID)?)
            }
            other => other,
        };
        mounted.map_err(|error| explain_features(error, device, plan))
    }

    /// Checks with the kernel that this device is mounted, whatever the path led to.
    fn verify(&self) -> Result<()> {
        let Stage { device, staging, .. } = self;
        let opened = staging.open(STAGE)?;
        let details = Details::from_fd(&opened.fd, STAGE, staging.path())?;
        let mounted = details.as_ref().and_then(Details::block_device);
        if mounted != Some(device.number()) {
            let found = details.map_or_else(
                || "nothing is mounted".to_owned(),
                |details| format!("the existing mount is {details}"),
            );
            let reason =
                format!("{} ({}) was requested, but {found}", device.path().display(), device.number());
            return Err(Error::new(ErrorKind::WrongDevice, STAGE, reason).at(staging.path()));
        }
        if opened.facts.is_broken() || details.is_some_and(|details| details.is_shut_down) {
            return Err(shut_down(device, staging)?);
        }
        Ok(())
    }

    fn grow_mounted(&self) -> Result<Option<Grown>> {
        if self.plan.filesystem.is_maintained_unmounted() || !self.plan.writes() {
            return Ok(None);
        }
        match grow_mounted(self.device, self.plan.filesystem, self.staging.path()) {
            // The btrfs is too small to grow. It stays usable, and a later expansion reports why it does not
            // grow.
            Err(error) if error.kind() == ErrorKind::OutOfRange => {
                tracing::warn!(%error, "staged without growing");
                Ok(None)
            }
            grown => grown.map(Some),
        }
    }
}

/// `mkfs` can be newer than the kernel, or another kernel can have more built in. The kernel then reports only that the
/// filesystem does not mount.
fn explain_features(error: Error, device: &BlockDevice, plan: &StagePlan) -> Error {
    let unknown =
        KernelVersion::running().ok().and_then(|kernel| unknown_features(device, plan.filesystem, kernel));
    if let Some(reason) = unknown {
        return error
            .with_kind(ErrorKind::Unsupported)
            .add_reason(reason)
            .hint("use it on a newer kernel; for new volumes, choose a mkfs profile for the oldest kernel");
    }
    // The last one: it is a module of the kernel that could not be loaded.
    if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::ESRCH))
        || error.kind() == ErrorKind::InvalidOption
    {
        return error;
    }
    match optional_support(device, plan.filesystem, plan.writes()) {
        Some(reason) => error
            .with_kind(ErrorKind::Unsupported)
            .add_reason(reason)
            .hint("use it on a node whose kernel has that; the kernel's log has the cause"),
        None => error,
    }
}

/// The error for a new mount that shares a filesystem that was shut down: see
/// [`MountCopies::ShutDown`](super::MountCopies::ShutDown).
fn shut_down(device: &BlockDevice, staging: &Target) -> Result<Error> {
    let mut users = users::identified_users(&[device.number()])?;
    let is_own = |user: &DeviceUser| matches!(user, DeviceUser::Mount(place) if place.process.is_none() && place.path == staging.path());
    users.retain(|user| !is_own(user));
    if users.is_empty() {
        users.push(DeviceUser::Unknown);
    }
    Ok(users::device_in_use_error(STAGE, device, &users)
        .at(staging.path())
        .add_reason("its filesystem was shut down, and can be mounted again when that use has ended"))
}
