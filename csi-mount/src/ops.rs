//! What a driver does with mounts, as a trait: so that its own logic can be tested without a kernel.

use std::fmt;
use std::path::Path;

use crate::{
    Bind, Created, Detach, Mount, MountAttributes, MountEntry, MountHealth, MountOptions, MountState,
    Outcome, Removed, Result, Stats, Target, Unmount, Unmounted,
};

/// The verbs of a node plugin, by absolute paths.
///
/// [`Kernel`] is the real thing. `testing::Model` (feature `testing`) keeps everything in memory, and can do what
/// a kernel does not do on demand: hang, fail, and stop between any two steps. The same tests run against both.
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
    /// See [`Target::create_dir`].
    ///
    /// # Errors
    /// As there.
    fn create_dir(&self, target: &Path) -> Result<Created>;

    /// See [`Target::remove`].
    ///
    /// # Errors
    /// As there.
    fn remove(&self, target: &Path) -> Result<Removed>;

    /// See [`Mount::at`].
    ///
    /// # Errors
    /// As there.
    fn mount(&self, fs_type: &str, source: &Path, options: &MountOptions, target: &Path) -> Result<Outcome>;

    /// See [`Bind::at`].
    ///
    /// # Errors
    /// As there.
    fn bind(&self, source: &Path, attributes: MountAttributes, target: &Path) -> Result<Outcome>;

    /// See [`Unmount::at`].
    ///
    /// # Errors
    /// As there.
    fn unmount(&self, target: &Path, detach: Detach) -> Result<Unmounted>;

    /// See [`mount_state`](crate::mount_state).
    ///
    /// # Errors
    /// As there.
    fn state(&self, path: &Path) -> Result<MountState>;

    /// See [`health`](crate::health()).
    ///
    /// # Errors
    /// As there.
    fn health(&self, path: &Path) -> Result<MountHealth>;

    /// See [`stats`](crate::stats()).
    ///
    /// # Errors
    /// As there.
    fn stats(&self, path: &Path) -> Result<Stats>;

    /// See [`mounts`](crate::mounts).
    ///
    /// # Errors
    /// As there.
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
