//! The node as a driver's node plugin sees it, at the height of a volume's steps: the kernel, or a simulated
//! node in a test.
//!
//! [`Host`] is the one type. Each kind of storage is a small type that borrows it; its methods call
//! [`flow`](crate::flow), or with the feature `testing` a `SimulatedNode`. They are inherent methods and not a
//! trait's, so that a driver links only the steps that it calls: the table of a trait object would keep all of
//! them in the program. This module imports every folder; of `testing` only the simulated node.

mod block;
mod directories;
mod fuse;
mod mounts;
mod shared;

use crate::place::owned_path::OwnedPath;
#[cfg(any(test, feature = "testing"))]
use crate::testing::{SimulatedNode, simulated};

pub use block::{BlockVolumes, Devices};
pub use directories::{Directories, EphemeralVolumes};
pub use fuse::FuseVolumes;
pub use mounts::Mounts;
pub use shared::SharedVolumes;

/// What the node plugins of a driver work on: the kernel, or in a test a simulated node. A clone is the same
/// host.
///
/// The kernel is that of the calling thread's mount namespace. `testing::SimulatedNode` (feature `testing`)
/// keeps devices, mounts and files in memory and fails on demand. Both answer with the same
/// [kinds](crate::ErrorKind) of errors; the same tests run on both. Every step can block its thread, but not
/// without limit. A step that names a function of this crate has the errors of that function.
///
/// ```
/// use csi_mount::{Host, IdMap, MountAttributes, Owner, Result, OwnedPath};
///
/// fn publish(host: &Host, volume: &str) -> Result<()> {
///     let place = OwnedPath::new("/pods/1/mount", Owner::new("dirs.example.org", volume));
///     let source = std::path::Path::new("/srv/volumes").join(volume);
///     host.directories().publish(&source, &place, MountAttributes::RDONLY, IdMap::new()).map(drop)
/// }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Host(Backend);

#[derive(Debug, Clone, Default)]
enum Backend {
    #[default]
    Kernel,
    #[cfg(any(test, feature = "testing"))]
    Simulated(SimulatedNode),
}

impl Host {
    /// The kernel, in the mount namespace of the calling thread.
    pub const fn kernel() -> Self {
        Self(Backend::Kernel)
    }

    /// What is asked about mounts, and about the node.
    pub fn mounts(&self) -> Mounts<'_> {
        Mounts(self)
    }

    /// Directories, and volumes that are directories.
    pub fn directories(&self) -> Directories<'_> {
        Directories(self)
    }

    /// Block devices and loop devices.
    pub fn devices(&self) -> Devices<'_> {
        Devices(self)
    }

    /// Volumes that are block devices; see [`flow::block`](crate::flow::block).
    pub fn block(&self) -> BlockVolumes<'_> {
        BlockVolumes(self)
    }

    /// Volumes that are shared filesystems; see [`flow::shared`](crate::flow::shared).
    pub fn shared(&self) -> SharedVolumes<'_> {
        SharedVolumes(self)
    }

    /// Volumes that a FUSE program serves; see [`flow::fuse`](crate::flow::fuse).
    pub fn fuse(&self) -> FuseVolumes<'_> {
        FuseVolumes(self)
    }

    /// Volumes that the driver fills with files; see [`flow::ephemeral`](crate::flow::ephemeral).
    pub fn ephemeral(&self) -> EphemeralVolumes<'_> {
        EphemeralVolumes(self)
    }
}

#[cfg(any(test, feature = "testing"))]
impl SimulatedNode {
    /// This node as a host.
    pub fn host(&self) -> Host {
        Host::from(self.clone())
    }
}

/// The simulated node, for the tests of a driver.
#[cfg(any(test, feature = "testing"))]
impl From<SimulatedNode> for Host {
    fn from(node: SimulatedNode) -> Self {
        Self(Backend::Simulated(node))
    }
}

/// Declares the steps of one kind of storage. Each body is what the step does on the kernel; on a simulated
/// node the function of the same name in the named module of `testing::simulated` does it.
macro_rules! steps {
    (
        $(#[$doc:meta])*
        $name:ident as $simulated:ident;
        $(
            $(#[$meta:meta])*
            pub fn $step:ident($($arg:ident: $type:ty),* $(,)?) -> $answer:ty $on_kernel:block
        )*
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name<'h>(pub(super) &'h super::Host);

        impl $name<'_> {
            $(
                $(#[$meta])*
                pub fn $step(&self, $($arg: $type),*) -> $answer {
                    match &self.0.0 {
                        super::Backend::Kernel => $on_kernel,
                        #[cfg(any(test, feature = "testing"))]
                        super::Backend::Simulated(node) => super::simulated::$simulated::$step(node, $($arg),*),
                    }
                }
            )*
        }
    };
}

use steps;
