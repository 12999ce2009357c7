//! Mounts, block devices and filesystems on a Linux node, with bounded waits for dead filesystems.
//!
//! The crate does what a node plugin of a storage system does on a node. CSI drivers and other node agents
//! use it. Wrong use does not compile or is refused. An error says what failed, where, why and how to fix it.
//! Every operation can be repeated. Nothing is formatted, deleted or detached without proof that no data is
//! lost.
//!
//! ```no_run
//! # fn main() -> csi_mount::Result<()> {
//! use csi_mount::{Bind, Mount, MountAttributes, MountOptions, Target, unmount};
//!
//! // Stage: a filesystem on a device, for this node.
//! let staging = Target::new("/var/lib/kubelet/plugins/example/staging")?;
//! staging.create_dir()?;
//! Mount::new("xfs", "/dev/loop3").options(&MountOptions::parse(["noatime"])?).at(&staging)?;
//!
//! // Publish: the same for a pod, read-only, wherever that mount is seen.
//! let target = Target::new("/var/lib/kubelet/pods/uid/volumes/example/mount")?;
//! target.create_dir()?;
//! Bind::new(staging.path()).attributes(MountAttributes::RDONLY).at(&target)?;
//!
//! // And back. Each step finds it when it was done before.
//! unmount(&target)?;
//! target.remove()?;
//! unmount(&staging)?;
//! # Ok(())
//! # }
//! ```
//!
//! | to | use |
//! |---|---|
//! | name a place to mount on | [`Target`]; [`Root`] for paths that the caller does not control |
//! | name the owner of a place, so that nothing else is unmounted or removed | [`Owner`] |
//! | set mount options | [`MountOptions`], [`MountAttributes`] |
//! | mount and unmount | [`Mount`], [`Bind`], [`Unmount`] |
//! | keep volumes out of the directories of the system and of the driver | [`ProtectedPaths`] |
//! | find out whether and where something is mounted | [`Mounts::state`], [`mounts`] |
//! | find out which filesystem is mounted at a path: type, source, device, options | [`Target::mounted`] |
//! | get the usage and the health of a filesystem | [`Mounts::stats`], [`Mounts::health`] |
//! | wait for the right device, find out who uses it, attach loop devices | [`Devices`], [`ExpectedDevice`] |
//! | use what is on a device, or make a filesystem if it is proven blank; check and grow it; mount it | [`BlockVolumes::stage`] |
//! | make and delete directories below an untrusted path | [`Root`], [`Target::remove_tree`] |
//! | give a volume's files to a group | [`Directories::set_volume_ownership`], or [`IdMap`] for one mount |
//! | limit what a directory can hold | [`Directories::create`], [`DirectoryLimit`] |
//! | copy the content of a volume | [`copy_file()`], [`Target::copy_tree`], [`data_ranges`]; [`Frozen`] stops writes meanwhile |
//! | run all steps for a volume | [`flow`] |
//! | make volumes in a volume group of LVM, and erase them | [`lvm`] |
//! | attach a disk over the network, and detach it | [`remote`] |
//! | keep a node that is cut off from writing | [`reservation`] |
//! | run a storage system's own tool, with a time limit and secrets | [`Program`] |
//! | check whether the node has what volumes need | [`Mounts::preflight`] |
//! | do it on a node that a test can replace | [`Host`] |
//! | test a driver without root, also how it finds its device | `testing::SimulatedNode` |
//!
//! # Rules for the whole crate
//!
//! - Every call blocks its thread. An async program runs it on a thread for blocking work. A call that might
//!   never return is made by a child process, which is abandoned at the time limit
//!   ([`ErrorKind::Unresponsive`]).
//! - A symbolic link as the last component of a target is never followed.
//! - No error, log line or command line contains the value of a mount option.
//! - The crate needs Linux 4.18 or later. It uses the best system call that the kernel has. Each item says
//!   what it needs.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `luks` | no | [`Luks`]: block volumes encrypted on their device, by running `cryptsetup` |
//! | `lvm` | no | [`lvm`]: volumes of LVM, by running lvm2; a deleted one reads as zeros |
//! | `remote` | no | [`remote`]: disks that are attached over the network: NVMe over TCP and RDMA, iSCSI, Fibre Channel, RBD; [`reservation`]: a single writer, proven by the storage |
//! | `testing` | no | the module `testing`: mount namespaces and disks for the tests of a driver |
#![cfg_attr(docsrs, feature(doc_cfg), doc(auto_cfg(hide(target_os = "linux"))))]
#![cfg(target_os = "linux")]

mod bounded;
mod detached;
mod device;
#[cfg(feature = "lvm")]
mod erase;
mod error;
mod filesystem;
pub mod flow;
mod host;
#[doc(hidden)]
pub mod internal;
#[cfg(feature = "luks")]
mod luks;
#[cfg(feature = "lvm")]
pub mod lvm;
mod mounted;
mod mounting;
mod path;
mod place;
mod preflight;
mod quota;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(feature = "remote")]
pub mod reservation;
mod sys;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tree;

pub use bounded::allow_blocking::allow_blocking;
pub use device::block_device::{BlockDevice, DeviceAccess, DeviceUse};
pub use device::expected::ExpectedDevice;
pub use device::loop_device::node::LoopPath;
pub use device::loop_device::{LoopCache, LoopOptions};
pub use device::sysfs::Rescan;
pub use error::{Error, ErrorKind, Result};
pub use filesystem::check::CheckLimits;
pub use filesystem::format::mkfs_options::MkfsOptions;
pub use filesystem::format::watch::{FormatLimit, FormatStep};
pub use filesystem::grow::Grown;
pub use filesystem::kernel_features::{KernelVersion, MkfsProfile};
pub use filesystem::kind::Filesystem;
pub use filesystem::tool::program::{Program, ProgramOutput};
pub use host::{
    BlockVolumes, Devices, Directories, EphemeralVolumes, FuseVolumes, Host, Mounts, SharedVolumes,
};
#[cfg(feature = "luks")]
pub use luks::{Luks, LuksDiscards, LuksKey, LuksPbkdf};
pub use mounted::freeze::{Frozen, thaw};
pub use mounted::health::MountHealth;
pub use mounted::stats::{FilesystemUsage, Stats};
pub use mounting::attach::Outcome;
pub use mounting::bind::Bind;
pub use mounting::id_map::IdMap;
pub use mounting::mount::Mount;
pub use mounting::options::{FsOption, MountOptions};
pub use mounting::unmount::{Detach, UNMOUNT_TIME_LIMIT, Unmount, Unmounted, unmount};
pub use place::owned_path::OwnedPath;
pub use place::owner::{Evidence, Owner, OwnerId};
pub use place::protected::ProtectedPaths;
pub use place::root::Root;
pub use place::target::{Created, Removed, Target};
pub use preflight::{NodeNeed, Preflight, PreflightFinding, Verdict};
pub use quota::DirectoryLimit;
pub use sys::attributes::MountAttributes;
pub use sys::ids::{DeviceNumber, MountId};
pub use sys::memory::trim_heap;
pub use sys::super_options::SuperOptions;
pub use table::facts::{MountPoint, MountState};
pub use table::mountinfo::{MountEntry, mounts};
pub use tree::copy_file::{Copied, copy_file, data_ranges};
pub use tree::group::{GroupChange, GroupOutcome};

/// The examples in README.md, compiled.
#[cfg(doctest)]
#[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"))]
struct Readme;
