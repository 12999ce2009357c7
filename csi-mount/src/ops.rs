//! The mount operations of a driver as a trait, so that its logic can be tested without a kernel.

use std::fmt;
use std::path::Path;

use crate::{
    Bind, Created, Detach, Mount, MountAttributes, MountEntry, MountHealth, MountOptions, MountState,
    Outcome, Removed, Result, Stats, Target, Unmount, Unmounted,
};

/// The mount operations of a node plugin, on absolute paths.
///
/// [`Kernel`] makes the system calls. `testing::Model` (feature `testing`) keeps all state in memory, and can
/// hang, fail and stop between any two steps on demand. The same tests run against both.
///
/// ```
/// use std::path::Path;
///
/// use csi_mount::{MountAttributes, MountOps, Result};
///
/// fn publish(ops: &dyn MountOps, volume: &Path, target: &Path) -> Result<()> {
///     ops.create_dir(target)?;
///     ops.bind(volume, MountAttributes::RDONLY, target)?;
///     Ok(())
/// }
/// ```
pub trait MountOps: fmt::Debug + Send + Sync {
    /// Makes the target a directory; see [`Target::create_dir`].
    ///
    /// # Errors
    /// Those of [`Target::create_dir`].
    fn create_dir(&self, target: &Path) -> Result<Created>;

    /// Removes the target; see [`Target::remove`].
    ///
    /// # Errors
    /// Those of [`Target::remove`].
    fn remove(&self, target: &Path) -> Result<Removed>;

    /// Mounts a filesystem; see [`Mount::at`].
    ///
    /// # Errors
    /// Those of [`Mount::at`].
    fn mount(&self, fs_type: &str, source: &Path, options: &MountOptions, target: &Path) -> Result<Outcome>;

    /// Makes a bind mount; see [`Bind::at`].
    ///
    /// # Errors
    /// Those of [`Bind::at`].
    fn bind(&self, source: &Path, attributes: MountAttributes, target: &Path) -> Result<Outcome>;

    /// Unmounts all layers at the target; see [`Unmount::at`].
    ///
    /// # Errors
    /// Those of [`Unmount::at`].
    fn unmount(&self, target: &Path, detach: Detach) -> Result<Unmounted>;

    /// Returns what is mounted at the path; see [`mount_state`](crate::mount_state).
    ///
    /// # Errors
    /// Those of [`mount_state`](crate::mount_state).
    fn state(&self, path: &Path) -> Result<MountState>;

    /// Returns the health of the mount at the path; see [`health`](crate::health()).
    ///
    /// # Errors
    /// Those of [`health`](crate::health()).
    fn health(&self, path: &Path) -> Result<MountHealth>;

    /// Returns the usage of the filesystem at the path; see [`stats`](crate::stats()).
    ///
    /// # Errors
    /// Those of [`stats`](crate::stats()).
    fn stats(&self, path: &Path) -> Result<Stats>;

    /// Returns the mount table; see [`mounts`](crate::mounts).
    ///
    /// # Errors
    /// Those of [`mounts`](crate::mounts).
    fn mounts(&self) -> Result<Vec<MountEntry>>;
}

/// The kernel, in the mount namespace of the calling thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct Kernel;

impl MountOps for Kernel {
    fn create_dir(&self, target: &Path) -> Result<Created> {
        Target::new(target)?.create_dir()
    }

    fn remove(&self, target: &Path) -> Result<Removed> {
        Target::new(target)?.remove()
    }

    fn mount(&self, fs_type: &str, source: &Path, options: &MountOptions, target: &Path) -> Result<Outcome> {
        Mount::new(fs_type, source).options(options).at(&Target::new(target)?)
    }

    fn bind(&self, source: &Path, attributes: MountAttributes, target: &Path) -> Result<Outcome> {
        Bind::new(source).attributes(attributes).at(&Target::new(target)?)
    }

    fn unmount(&self, target: &Path, detach: Detach) -> Result<Unmounted> {
        Unmount::new().detach(detach).at(&Target::new(target)?)
    }

    fn state(&self, path: &Path) -> Result<MountState> {
        crate::mount_state(path)
    }

    fn health(&self, path: &Path) -> Result<MountHealth> {
        crate::health(path)
    }

    fn stats(&self, path: &Path) -> Result<Stats> {
        crate::stats(path)
    }

    fn mounts(&self) -> Result<Vec<MountEntry>> {
        crate::mounts()
    }
}
