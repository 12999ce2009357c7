//! Functions for the tests of the toolkit. They are not part of the API, and change without notice.

pub use crate::mounted::stats::STATS_TIME_LIMIT;
pub use crate::mounted::users::{MountUser, mount_users};
pub use crate::place::protected::{SYSTEM_DIRECTORIES, SYSTEM_TREES};
#[cfg(any(test, feature = "testing"))]
pub use crate::sys::features::Feature;
#[cfg(any(test, feature = "testing"))]
pub use crate::testing::disks::{FakeDisks, FoundDisk};
#[cfg(any(test, feature = "testing"))]
pub use crate::testing::peer_namespace::PeerNamespace;

/// The steps of volumes on the kernel, with targets that are open. Drivers use [`Host`](crate::Host).
pub mod flow {
    /// Block devices.
    pub mod block {
        use std::path::Path;

        use crate::error::Result;
        use crate::mounting::attach::Outcome;
        use crate::mounting::id_map::IdMap;
        use crate::mounting::unmount::Unmounted;
        use crate::place::target::Target;
        use crate::sys::attributes::MountAttributes;

        pub use crate::flow::block::encrypted::opened_device;
        #[cfg(feature = "luks")]
        pub use crate::flow::block::encrypted::with_key::stage_device;
        #[cfg(feature = "luks")]
        pub use crate::flow::block::expand::expand_encrypted;
        pub use crate::flow::block::expand::{device_size, expand};
        pub use crate::flow::block::publish::{publish as publish_with_id_map, unpublish};
        pub use crate::flow::block::raw::publish_device;
        pub use crate::flow::block::stage::stage;
        pub use crate::flow::block::unstage::unstage as unstage_with;
        pub use crate::flow::block::usage::{device_of, usage};
        pub use crate::flow::block::*;

        /// Publishes without an id map.
        pub fn publish(
            staging: impl AsRef<Path>,
            target: &Target,
            attributes: MountAttributes,
        ) -> Result<Outcome> {
            publish_with_id_map(staging, target, attributes, IdMap::new())
        }

        /// Unstages, and leaves copies of the mount as they are.
        pub fn unstage(staging: &Target, device: Option<&Path>) -> Result<Unmounted> {
            unstage_with(staging, device, MountCopies::Kept)
        }
    }

    /// Known content in memory.
    pub mod ephemeral {
        use crate::error::Result;
        use crate::mounting::unmount::unmount;
        use crate::place::target::{Removed, Target};

        pub use crate::flow::ephemeral::publish::publish;
        pub use crate::flow::ephemeral::*;

        /// Unmounts and removes the target.
        pub fn unpublish(target: &Target) -> Result<Removed> {
            unmount(target)?;
            target.remove()
        }
    }

    /// FUSE filesystems.
    pub mod fuse {
        use crate::error::Result;
        use crate::mounting::unmount::{UNMOUNT_TIME_LIMIT, Unmounted};
        use crate::place::target::Target;

        pub use crate::flow::fuse::lost::is_lost;
        pub use crate::flow::fuse::steps::unstage as unstage_within;
        pub use crate::flow::fuse::steps::{exceeded_memory_limit, identity_at, publish, stage, unpublish};
        pub use crate::flow::fuse::*;

        /// Unstages within the usual time limit.
        pub fn unstage(staging: &Target) -> Result<Unmounted> {
            unstage_within(staging, UNMOUNT_TIME_LIMIT)
        }
    }

    /// Shared filesystems.
    pub mod shared {
        use crate::error::Result;
        use crate::mounting::unmount::{UNMOUNT_TIME_LIMIT, Unmounted};
        use crate::place::target::{Removed, Target};

        pub use crate::flow::shared::steps::unstage as unstage_within;
        pub use crate::flow::shared::steps::{publish, publish_directly, stage};
        pub use crate::flow::shared::*;

        /// Unpublishes within the usual time limit.
        pub fn unpublish(target: &Target) -> Result<Removed> {
            crate::flow::shared::steps::unpublish(target, UNMOUNT_TIME_LIMIT)
        }

        /// Unstages within the usual time limit.
        pub fn unstage(staging: &Target) -> Result<Unmounted> {
            unstage_within(staging, UNMOUNT_TIME_LIMIT)
        }
    }
}

/// What is registered at a device, without the steps that a node takes.
#[cfg(feature = "remote")]
pub mod reservation {
    use crate::device::block_device::BlockDevice;
    use crate::error::Result;

    pub use crate::sys::reservation::{Change, Registrations};

    /// What is registered and reserved.
    ///
    /// # Errors
    /// As the steps.
    pub fn registrations(device: &BlockDevice) -> Result<Registrations> {
        crate::reservation::registrations(device)
    }

    /// Makes a change. Returns false if what is registered does not allow it.
    ///
    /// # Errors
    /// As the steps.
    pub fn change(device: &BlockDevice, change: Change) -> Result<bool> {
        crate::reservation::change(device, change)
    }
}

/// Runs the closure as on a kernel that lacks these features. This affects only the current thread.
#[cfg(any(test, feature = "testing"))]
pub fn without_features<T>(features: &[Feature], run: impl FnOnce() -> T) -> T {
    crate::sys::features::without(features, run)
}

/// Makes this process choose project ids among so few first, so that processes choose the same one.
#[cfg(any(test, feature = "testing"))]
pub fn set_first_project_ids(number: u32) {
    crate::quota::set_first_ids(number);
}

/// Returns the parts of a device that [`probe`](crate::BlockDevice::probe) reads, in its order, so that a
/// test can read the same parts without it.
#[cfg(any(test, feature = "testing"))]
pub fn probe_reads(device: &crate::BlockDevice) -> Vec<std::ops::Range<u64>> {
    crate::filesystem::probe::reads(device)
}

/// `PTRACE_LISTEN`, for a process that the calling thread has seized and a signal has stopped: the process
/// stays stopped, and its parent sees the stop.
///
/// # Errors
/// As `ptrace(2)`.
#[cfg(any(test, feature = "testing"))]
pub fn ptrace_listen(process: i32) -> std::io::Result<()> {
    crate::sys::process::ptrace_listen(process)
}
