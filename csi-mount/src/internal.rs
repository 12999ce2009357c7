//! Functions for the tests of the toolkit. They are not part of the API, and change without notice.

use crate::device::block_device::{BlockDevice, DeviceUse};
pub use crate::device::loop_device::LoopDevice;
pub use crate::device::sysfs::DeviceIdentity;
use crate::device::sysfs::Rescan;
pub use crate::device::users::DeviceUser;
#[cfg(feature = "lvm")]
pub use crate::erase::{EraseOptions, erase};
use crate::error::Result;
pub use crate::filesystem::check::{CheckPolicy, CheckReport, check};
pub use crate::filesystem::format::Format;
pub use crate::filesystem::grow::{grow_mounted, grow_unmounted};
#[cfg(any(test, feature = "testing"))]
pub use crate::filesystem::probe::probe_reads;
pub use crate::filesystem::probe::{BlankProof, InterruptedFormat, Probe, Progress, Signature};
pub use crate::mounted::health::{health, health_within};
pub use crate::mounted::stats::{STATS_TIME_LIMIT, stats, stats_within};
pub use crate::mounted::users::{MountUser, mount_users};
pub use crate::place::protected::{SYSTEM_DIRECTORIES, SYSTEM_TREES};
pub use crate::place::target::mount_state;
#[cfg(any(test, feature = "testing"))]
pub use crate::quota::set_first_project_ids;
#[cfg(any(test, feature = "testing"))]
pub use crate::sys::features::{Feature, without_features};
#[cfg(any(test, feature = "testing"))]
pub use crate::sys::process::ptrace_listen;
pub use crate::table::mountinfo::parse_mountinfo;
#[cfg(any(test, feature = "testing"))]
pub use crate::testing::disks::{FakeDisks, FoundDisk};
#[cfg(any(test, feature = "testing"))]
pub use crate::testing::peer_namespace::PeerNamespace;

/// What the steps of volumes ask an open device. Drivers use [`Devices`](crate::Devices), with the device's path.
pub trait DeviceQuestions {
    fn probe(&self) -> Probe<'_>;
    fn is_read_only(&self) -> Result<bool>;
    fn in_use(&self) -> Result<DeviceUse>;
    fn users(&self) -> Result<Vec<DeviceUser>>;
    fn holders(&self) -> Result<Vec<String>>;
    fn identity(&self) -> Result<DeviceIdentity>;
    fn rescan(&self) -> Result<Rescan>;
    fn verify(&self) -> Result<()>;
}

impl DeviceQuestions for BlockDevice {
    fn probe(&self) -> Probe<'_> {
        self.probe()
    }

    fn is_read_only(&self) -> Result<bool> {
        self.is_read_only()
    }

    fn in_use(&self) -> Result<DeviceUse> {
        self.in_use()
    }

    fn users(&self) -> Result<Vec<DeviceUser>> {
        self.users()
    }

    fn holders(&self) -> Result<Vec<String>> {
        self.holders()
    }

    fn identity(&self) -> Result<DeviceIdentity> {
        self.identity()
    }

    fn rescan(&self) -> Result<Rescan> {
        self.rescan()
    }

    fn verify(&self) -> Result<()> {
        self.verify()
    }
}

/// Encrypts a device.
#[cfg(feature = "luks")]
pub fn encrypt(luks: &crate::Luks, proof: BlankProof<'_>, key: &crate::LuksKey) -> Result<()> {
    luks.format(proof, key)
}

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

        pub use super::shared::unpublish;
        pub use crate::flow::fuse::lost::is_lost;
        pub use crate::flow::fuse::publish::publish;
        pub use crate::flow::fuse::recover::{Recovered, recover};
        pub use crate::flow::fuse::steps::unstage as unstage_within;
        pub use crate::flow::fuse::steps::{exceeded_memory_limit, identity_at, stage};
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
    pub use crate::reservation::device::{change, registrations};
    pub use crate::sys::reservation::{Change, Registrations};
}

/// Switches the simple quotas of a btrfs on (Linux 6.7). `btrfs` can do it from version 6.7 on.
#[cfg(any(test, feature = "testing"))]
pub fn enable_simple_quotas(at: &std::path::Path) -> std::io::Result<()> {
    use std::os::fd::AsFd as _;
    let directory = std::fs::File::open(at)?;
    Ok(crate::sys::btrfs::enable_simple_quotas(directory.as_fd())?)
}
