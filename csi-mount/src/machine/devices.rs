//! Block devices and loop devices.

use std::path::{Path, PathBuf};

use super::Kernel;
use crate::{BlockDevice, DeviceNumber, DeviceUse, LoopDevice, LoopOptions, Result};

/// A loop device, as [`DeviceSteps::loop_devices`] returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoopPath {
    /// The path of its device node.
    pub path: PathBuf,
    /// Its device number.
    pub number: DeviceNumber,
}

impl LoopPath {
    /// The loop device with this node and number.
    pub fn new(path: impl Into<PathBuf>, number: DeviceNumber) -> Self {
        Self { path: path.into(), number }
    }
}

/// What a node plugin does with block devices before they are a volume.
#[expect(clippy::missing_errors_doc, reason = "each method names the function whose errors it has")]
pub trait DeviceSteps: Send + Sync {
    /// The number of the block device at a path; see [`BlockDevice::open`].
    fn number(&self, device: &Path) -> Result<DeviceNumber>;

    /// Whether a block device is in use; see [`BlockDevice::in_use`].
    fn in_use(&self, device: &Path) -> Result<DeviceUse>;

    /// Attaches a loop device to a file, or finds the one that is attached; see
    /// [`LoopDevice::attach_or_find`].
    fn loop_attach(&self, backing: &Path, options: &LoopOptions) -> Result<LoopPath>;

    /// The loop devices over a file or device; see [`LoopDevice::find`].
    fn loop_devices(&self, backing: &Path) -> Result<Vec<LoopPath>>;

    /// Makes the loop devices over a file or device read its size again; see
    /// [`LoopDevice::refresh_size`].
    fn loop_refresh(&self, backing: &Path) -> Result<()>;

    /// Detaches the loop devices over a file, and returns their number; see [`LoopDevice::detach_all`].
    fn loop_detach(&self, backing: &Path) -> Result<usize>;
}

impl DeviceSteps for Kernel {
    fn number(&self, device: &Path) -> Result<DeviceNumber> {
        Ok(BlockDevice::open(device)?.number())
    }

    fn in_use(&self, device: &Path) -> Result<DeviceUse> {
        BlockDevice::open(device)?.in_use()
    }

    fn loop_attach(&self, backing: &Path, options: &LoopOptions) -> Result<LoopPath> {
        let device = LoopDevice::attach_or_find(backing, options)?;
        Ok(LoopPath::new(device.path(), device.number()))
    }

    fn loop_devices(&self, backing: &Path) -> Result<Vec<LoopPath>> {
        let found = LoopDevice::find(backing)?;
        Ok(found.iter().map(|device| LoopPath::new(device.path(), device.number())).collect())
    }

    fn loop_refresh(&self, backing: &Path) -> Result<()> {
        LoopDevice::find(backing)?.iter().try_for_each(LoopDevice::refresh_size)
    }

    fn loop_detach(&self, backing: &Path) -> Result<usize> {
        LoopDevice::detach_all(backing)
    }
}
