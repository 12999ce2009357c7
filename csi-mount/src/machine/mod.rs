//! The node as a driver's node plugin sees it, at the height of a volume's steps: the kernel, or a simulated
//! node in a test.
//!
//! [`Machine`] is the seam, [`Kernel`] its real implementation, which calls [`flow`](crate::flow). With the
//! feature `testing`, `testing::SimulatedNode` is the other one. The steps are in one trait for each kind of
//! storage, so that a driver links only the kinds that it uses: the table of a trait's methods keeps all of
//! them in the program. It imports every folder but `testing`.

mod block;
mod devices;
mod directories;
mod ephemeral;
mod fuse;
mod mounts;
mod shared;

use std::fmt;
use std::path::{Path, PathBuf};

use crate::{Owner, Result, Target};

pub use block::BlockSteps;
pub use devices::{DeviceSteps, LoopPath};
pub use directories::DirectorySteps;
pub use ephemeral::EphemeralSteps;
pub use fuse::FuseSteps;
pub use mounts::MountQuestions;
pub use shared::SharedSteps;

/// What the node plugins of a driver do on a node: the steps of each flow, and what is asked about mounts and
/// devices.
///
/// [`Kernel`] does it. `testing::SimulatedNode` (feature `testing`) keeps devices, mounts and files in memory
/// and fails on demand. Both answer with the same [kinds](crate::ErrorKind) of errors; the same tests run on
/// both. Every method of a step can block its thread, but not without limit. Each has the errors of the
/// function that it names.
///
/// ```
/// use csi_mount::{IdMap, Kernel, Machine, MountAttributes, Owner, Result, VolumePlace};
///
/// fn publish(machine: &impl Machine, volume: &str) -> Result<()> {
///     let place = VolumePlace::new("/pods/1/mount", Owner::new("dirs.example.org", volume));
///     let source = std::path::Path::new("/srv/volumes").join(volume);
///     machine.directories().publish(&source, &place, MountAttributes::RDONLY, IdMap::new()).map(drop)
/// }
/// # let _: fn(&Kernel, &str) -> Result<()> = publish;
/// ```
///
/// A program that makes a `&dyn Machine` of the kernel has the flows of every kind of storage in it.
pub trait Machine: fmt::Debug + Send + Sync + 'static {
    /// What is asked about mounts, and about the node.
    fn mounts(&self) -> &dyn MountQuestions;

    /// Directories, and volumes that are directories.
    fn directories(&self) -> &dyn DirectorySteps;

    /// Block devices and loop devices.
    fn devices(&self) -> &dyn DeviceSteps;

    /// Volumes that are block devices; see [`flow::block`](crate::flow::block).
    fn block(&self) -> &dyn BlockSteps;

    /// Volumes that are shared filesystems; see [`flow::shared`](crate::flow::shared).
    fn shared(&self) -> &dyn SharedSteps;

    /// Volumes that a FUSE program serves; see [`flow::fuse`](crate::flow::fuse).
    fn fuse(&self) -> &dyn FuseSteps;

    /// Volumes that the driver fills with files; see [`flow::ephemeral`](crate::flow::ephemeral).
    fn ephemeral(&self) -> &dyn EphemeralSteps;
}

/// The kernel, in the mount namespace of the calling thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct Kernel;

/// A type that has the steps of every kind is a machine.
impl<T> Machine for T
where
    T: MountQuestions + DirectorySteps + DeviceSteps + BlockSteps + SharedSteps + FuseSteps + EphemeralSteps,
    T: fmt::Debug + 'static,
{
    fn mounts(&self) -> &dyn MountQuestions {
        self
    }

    fn directories(&self) -> &dyn DirectorySteps {
        self
    }

    fn devices(&self) -> &dyn DeviceSteps {
        self
    }

    fn block(&self) -> &dyn BlockSteps {
        self
    }

    fn shared(&self) -> &dyn SharedSteps {
        self
    }

    fn fuse(&self) -> &dyn FuseSteps {
        self
    }

    fn ephemeral(&self) -> &dyn EphemeralSteps {
        self
    }
}

/// A path on a node, and the volume that owns what is mounted there.
#[derive(Debug, Clone)]
#[must_use]
pub struct VolumePlace {
    path: PathBuf,
    owner: Owner,
}

impl VolumePlace {
    /// The place of this owner's volume at an absolute path.
    pub fn new(path: impl Into<PathBuf>, owner: Owner) -> Self {
        Self { path: path.into(), owner }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The owner of what is mounted there.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The place as the kernel's target, which is opened now.
    ///
    /// # Errors
    /// Those of [`Target::new`].
    pub fn target(&self) -> Result<Target> {
        Ok(Target::new(&self.path)?.owned_by(self.owner.clone()))
    }
}
