//! The encrypted device of a volume: opened before the volume is staged, closed after it is unstaged.

use std::path::{Path, PathBuf};

use crate::device::mapping::{self, Mapping};
use crate::{BlockDevice, Result, Target};

/// Returns the device inside an encrypted device, the one with the volume's content.
///
/// [`stage`](super::stage) or `stage_device` has opened it. None if the device is not encrypted, or not
/// open. The kernel is asked, so the answer is right in any process.
///
/// # Errors
///
/// Those of [`BlockDevice::open`].
pub fn opened_device(device: impl AsRef<Path>) -> Result<Option<PathBuf>> {
    let device = BlockDevice::open(device)?;
    let mapping = Mapping::find_over(device.number())?;
    mapping.map(|mapping| Ok(mapping.device()?.path().to_owned())).transpose()
}

/// The mapping for this staging path, complete or half made.
pub(super) fn mapping_of(staging: &Target) -> Result<Option<Mapping>> {
    Mapping::find(&mapping::name_for(staging.path()))
}

#[cfg(feature = "luks")]
pub use with_key::stage_device;
#[cfg(feature = "luks")]
pub(super) use with_key::{Encryption, stage_inside};

#[cfg(feature = "luks")]
mod with_key {
    use std::sync::Arc;

    use super::*;
    use crate::flow::block::{StagePlan, Staged, stage};
    use crate::luks::{self, OpenRequest, OpenedDevice};
    use crate::place::mark::MarkedMount;
    use crate::{DeviceAccess, Error, ErrorKind, Filesystem, Luks, LuksKey, MountState};

    const STAGE: &str = "stage";

    /// How a plan's device is encrypted, and its key.
    #[derive(Debug, Clone)]
    pub(crate) struct Encryption {
        pub(crate) how: Luks,
        pub(crate) key: LuksKey,
    }

    impl Encryption {
        fn opening<'a>(
            &'a self,
            device: &'a BlockDevice,
            staging: &Target,
            access: DeviceAccess,
            filesystem: Option<Filesystem>,
        ) -> OpenRequest<'a> {
            let name = mapping::name_for(staging.path());
            OpenRequest { device, how: &self.how, key: &self.key, name, access, filesystem }
        }
    }

    /// Stages what is inside the encrypted device. If that fails, a device that this call opened is closed
    /// again.
    pub(crate) fn stage_inside(
        encryption: &Encryption,
        device: &BlockDevice,
        staging: &Target,
        plan: &StagePlan,
    ) -> Result<Staged> {
        if matches!(staging.state()?, MountState::Mounted(_)) {
            return stage::stage_on(&mounted(device, staging)?.device()?, staging, plan);
        }
        let access = if plan.writes() { DeviceAccess::ReadWrite } else { DeviceAccess::ReadOnly };
        let how = encryption.how.clone();
        let how = if plan.never_format { how.never_format() } else { how };
        let encryption = Encryption { how, key: encryption.key.clone() };
        let opening = encryption.opening(device, staging, access, Some(plan.filesystem));
        let OpenedDevice { mapping, beneath } = luks::device_for(&opening)?;
        let (mut plan, is_new) = (plan.clone(), beneath.is_some());
        if let Some(beneath) = beneath {
            plan.format = plan.format.over(Arc::new(beneath));
        }
        let staged = mapping.device().and_then(|inside| stage::stage_on(&inside, staging, &plan));
        if staged.is_err()
            && is_new
            && let Err(left) = mapping.close()
        {
            tracing::warn!(%left, "an encrypted device stays open after a failed stage");
        }
        staged
    }

    /// What is mounted must be inside this device. The key is not checked again: it was checked when the
    /// device was opened.
    fn mounted(device: &BlockDevice, staging: &Target) -> Result<Mapping> {
        match mapping_of(staging)? {
            Some(mapping) if mapping.beneath() == Some(device.number()) => Ok(mapping),
            _ => {
                let reason = format!("the mounted filesystem is not inside {}", device.path().display());
                Err(Error::new(ErrorKind::AlreadyMounted, STAGE, reason).at(staging.path()))
            }
        }
    }

    /// Opens an encrypted device for raw use, and returns the device inside.
    ///
    /// Give that one to [`publish_device`](super::super::publish_device). A blank device is encrypted
    /// first. [`unstage`](super::super::unstage) closes the device.
    ///
    /// Nothing is mounted at the staging path: the path only identifies the volume that the device belongs
    /// to. The inside of a newly encrypted device reads as zeros at both ends, where programs look for
    /// content, and as noise elsewhere. A device that is already published stays as it is, and its key is
    /// not checked. A device that is already open stays as it is if this is its key.
    ///
    /// # Errors
    ///
    /// As for [`stage`](super::super::stage) of an encrypted device, without those of filesystems; and
    /// [`Busy`](ErrorKind::Busy) if the opened device got the number of a device that is still published.
    /// Somebody else has closed that device, and a workload that has its node would access this volume.
    pub fn stage_device(
        device: impl AsRef<Path>,
        staging: &Target,
        how: &Luks,
        key: &LuksKey,
        access: DeviceAccess,
    ) -> Result<PathBuf> {
        let device = BlockDevice::open(device)?;
        let encryption = Encryption { how: how.clone(), key: key.clone() };
        let opened = luks::device_for(&encryption.opening(&device, staging, access, None))?;
        if staging.owner().is_some() && !matches!(staging.state()?, MountState::Absent) {
            staging.set_mark(STAGE, &staging.open(STAGE)?.fd, MarkedMount::NotYet)?;
        }
        Ok(opened.mapping.device()?.path().to_owned())
    }
}
