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
//! | find out whether and where something is mounted | [`mount_state`], [`mounts`] |
//! | find out which filesystem is mounted at a path: type, source, device, options | [`Target::mounted`] |
//! | get the usage and the health of a filesystem | [`stats()`], [`health()`] |
//! | open a block device | [`BlockDevice`], [`LoopDevice`] |
//! | wait for the right device | [`ExpectedDevice`] |
//! | find out who uses a device | [`BlockDevice::users`] |
//! | find out what is on a device | [`Probe`] |
//! | make a filesystem on a device | [`Format`], with a [`BlankProof`]; [`MkfsProfile`], [`FormatLimit`] |
//! | repair and grow a filesystem | [`check`], [`grow_mounted`], [`grow_unmounted`] |
//! | make and delete directories below an untrusted path | [`Root`], [`Target::remove_tree`] |
//! | give a volume's files to a group | [`set_volume_ownership`], or [`IdMap`] for one mount |
//! | limit what a directory can hold | [`Directories::create`], [`DirectoryLimit`] |
//! | copy the content of a volume | [`copy_file()`], [`Target::copy_tree`], [`data_ranges`]; [`Frozen`] stops writes meanwhile |
//! | run all steps for a volume | [`flow`] |
//! | make volumes in a volume group of LVM, and erase them | [`lvm`], [`erase`](mod@erase) |
//! | attach a disk over the network, and detach it | [`remote`] |
//! | keep a node that is cut off from writing | [`reservation`] |
//! | run a storage system's own tool, with a time limit and secrets | [`Program`] |
//! | check whether the node has what volumes need | [`preflight()`] |
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
//! | `lvm` | no | [`lvm`]: volumes of LVM, by running lvm2; [`erase`](mod@erase): devices that read as zeros afterwards |
//! | `remote` | no | [`remote`]: disks that are attached over the network: NVMe over TCP, iSCSI, Fibre Channel; [`reservation`]: a single writer, proven by the storage |
//! | `testing` | no | the module `testing`: mount namespaces and disks for the tests of a driver |
#![cfg_attr(docsrs, feature(doc_cfg), doc(auto_cfg(hide(target_os = "linux"))))]
#![cfg(target_os = "linux")]

mod bounded;
mod detached;
mod device;
#[cfg(feature = "lvm")]
pub mod erase;
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
pub use device::loop_device::{LoopCache, LoopDevice, LoopLifetime, LoopOptions};
pub use device::mount_places::MountPlace;
pub use device::sysfs::{DeviceIdentity, Rescan};
pub use device::users::DeviceUser;
pub use error::{Error, ErrorKind, Result};
pub use filesystem::check::{CheckLimits, CheckPolicy, CheckReport, check};
pub use filesystem::format::Format;
pub use filesystem::format::mkfs_options::MkfsOptions;
pub use filesystem::format::watch::{FormatLimit, FormatStep};
pub use filesystem::grow::{Grown, grow_mounted, grow_unmounted};
pub use filesystem::kernel_features::{KernelVersion, MkfsProfile};
pub use filesystem::kind::Filesystem;
pub use filesystem::probe::{BlankProof, InterruptedFormat, Probe, Progress, Signature};
pub use filesystem::tool::program::{Program, ProgramOutput};
pub use filesystem::uuid::FilesystemUuid;
pub use host::{
    BlockVolumes, Devices, Directories, EphemeralVolumes, FuseVolumes, Host, Mounts, SharedVolumes,
};
#[cfg(feature = "luks")]
pub use luks::{Luks, LuksDiscards, LuksKey, LuksPbkdf};
pub use mounted::freeze::{Frozen, thaw};
pub use mounted::health::{MountHealth, health, health_of_filesystem, health_within};
pub use mounted::stats::{FilesystemUsage, Stats, stats, stats_within};
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
pub use place::target::{Created, Removed, Target, mount_state};
pub use preflight::{NodeNeed, Preflight, PreflightFinding, Verdict, preflight};
pub use quota::DirectoryLimit;
pub use sys::attributes::MountAttributes;
pub use sys::ids::{DeviceNumber, MountId};
pub use sys::memory::trim_heap;
pub use sys::super_options::SuperOptions;
pub use table::facts::{MountPoint, MountState};
pub use table::mountinfo::{MountEntry, mounts, parse_mountinfo};
pub use tree::copy_file::{Copied, copy_file, data_ranges};
pub use tree::group::{GroupChange, GroupOutcome, set_permissions, set_volume_ownership};

/// The examples in README.md, compiled.
#[cfg(doctest)]
#[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"))]
struct Readme;
