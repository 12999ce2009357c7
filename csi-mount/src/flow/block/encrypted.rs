//! The encrypted device of a volume: opened before the volume is staged, closed after it is unstaged.

use std::path::{Path, PathBuf};

use crate::device::block_device::BlockDevice;
use crate::device::mapping::{self, Mapping};
use crate::error::Result;
use crate::place::target::Target;

/// See [`BlockVolumes::opened_device`](crate::BlockVolumes::opened_device).
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
pub(crate) use with_key::stage_device;
#[cfg(feature = "luks")]
pub(super) use with_key::stage_inside;

#[cfg(feature = "luks")]
pub(crate) mod with_key {
    use std::sync::Arc;

    use super::*;
    use crate::device::block_device::DeviceAccess;
    use crate::error::{Error, ErrorKind};
    use crate::filesystem::kind::Filesystem;
    use crate::flow::block::STAGE;
    use crate::flow::block::plan::{Encryption, StagePlan};
    use crate::luks::{self, OpenRequest, OpenedDevice};
    use crate::luks::{Luks, LuksKey};
    use crate::place::mark::MarkedMount;
    use crate::table::facts::MountState;

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

    /// Stages what is inside the encrypted device, with `stage`. If that fails, a device that this call opened
    /// is closed again.
    pub(crate) fn stage_inside<T>(
        encryption: &Encryption,
        device: &BlockDevice,
        staging: &Target,
        plan: &StagePlan,
        stage: impl FnOnce(&BlockDevice, &StagePlan) -> Result<T>,
    ) -> Result<T> {
        if staging.is_mounted()? {
            return stage(&mounted(device, staging)?.device()?, plan);
        }
        let access = if plan.writes() { DeviceAccess::ReadWrite } else { DeviceAccess::ReadOnly };
        let how = encryption.how.clone();
        let how = if plan.never_format { how.never_format() } else { how };
        let encryption = Encryption { how, key: encryption.key.clone() };
        let opening = encryption.opening(device, staging, access, Some(plan.filesystem));
        let OpenedDevice { mapping, beneath } = luks::device_for(&opening)?;
        let mut plan = plan.clone();
        let is_new = beneath.is_some();
        if let Some(beneath) = beneath {
            plan.format = plan.format.over(Arc::new(beneath));
        }
        let staged = mapping.device().and_then(|inside| stage(&inside, &plan));
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

    /// See [`BlockVolumes::stage_device`](crate::BlockVolumes::stage_device).
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
