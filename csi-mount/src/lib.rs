//! Mounts, block devices and filesystems on a Linux node: safe, and never hung by a dead filesystem.
//!
//! What a node plugin of a storage system does to a node, for CSI drivers and any other agent. A wrong use does
//! not compile or is refused, a failure says what, where, why and the mend, everything may be repeated, and
//! nothing is formatted, deleted or detached without proof that nothing is lost.
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
//! | to | there is |
//! |---|---|
//! | say where | [`Target`], [`Root`] for paths of others |
//! | say whose, so that nothing else is unmounted or removed | [`Owner`] |
//! | say how | [`MountOptions`], [`MountAttributes`] |
//! | mount and unmount | [`Mount`], [`Bind`], [`Unmount`] |
//! | keep volumes off the system's directories and the driver's own | [`ProtectedPaths`] |
//! | know what is mounted | [`mount_state`], [`Target::mounted`], [`mounts`] |
//! | know how full it is, and whether it works | [`stats()`], [`health()`] |
//! | have a block device | [`BlockDevice`], [`LoopDevice`] |
//! | wait for the right one | [`ExpectedDevice`] |
//! | know who uses it | [`BlockDevice::users`] |
//! | know what is on it | [`Probe`] |
//! | put a filesystem on it | [`Format`], with a [`BlankProof`]; [`MkfsProfile`], [`FormatLimit`] |
//! | repair and grow it | [`check`], [`grow_mounted`], [`grow_unmounted`] |
//! | make and delete directories and small files in a place of others | [`Root`], [`Target::replace_file`], [`Target::remove_tree`] |
//! | let a group have its files | [`give_to_group`], or [`IdMap`] for one mount |
//! | copy what is in a volume | [`copy_file()`], [`Target::copy_tree`], [`data_ranges`]; [`Frozen`], to hold it still |
//! | do all of it for a volume | [`flow`] |
//! | know whether the node is fit | [`self_check()`] |
//! | test what a driver does with mounts | [`MountOps`], `testing::Model` |
//!
//! # What holds everywhere
//!
//! - Every call blocks its thread; an async program makes it on a thread for blocking work. What may never
//!   return is made by a child process that is given up ([`ErrorKind::Unresponsive`]).
//! - A symbolic link as the last component of a target is never followed.
//! - No error, log line or command line holds the value of a mount option.
//! - Linux 4.18 and later. The best system call is used that the kernel has; each item says what it needs.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `luks` | no | [`Luks`]: block volumes encrypted on their device, by running `cryptsetup` |
//! | `testing` | no | the module `testing`: mount namespaces, and a model of the kernel, for the tests of a driver |
#![cfg(target_os = "linux")]

mod attach;
mod attributes;
mod bind;
mod check;
mod claimed_device;
mod copy_file;
mod copy_tree;
mod details;
mod device;
mod device_number;
mod device_users;
mod device_wait;
mod diagnose;
mod disk_image;
mod error;
mod file_lock;
mod filesystem;
pub mod flow;
mod fnv;
mod format;
mod format_watch;
mod freeze;
mod group;
mod grow;
mod health;
mod id_map;
mod in_flight;
mod kernel_features;
mod legacy_mount;
mod lookup;
mod loop_device;
#[cfg(feature = "luks")]
mod luks;
mod mapping;
mod memory;
mod mkfs_line;
mod mkfs_topology;
mod mount;
mod mount_namespaces;
mod mount_users;
mod mountinfo;
mod nesting;
mod ops;
mod options;
mod other_namespaces;
mod own_descriptors;
mod owner;
mod patiently;
mod probe;
mod protected;
mod record;
mod remove_tree;
mod root;
mod same_disk;
mod scratch;
mod self_check;
mod siblings;
mod small_file;
mod state;
mod stats;
mod sys;
mod sysfs;
mod target;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tool;
mod turn;
mod unmount;
mod unseen;

pub use attributes::MountAttributes;
pub use bind::{Bind, Outcome};
pub use check::{CHECK_TIME_LIMIT, CheckLimits, CheckPolicy, CheckReport, check, check_within};
pub use copy_file::{Copied, copy_file, data_ranges};
pub use device::{BlockDevice, DeviceAccess, DeviceUse};
pub use device_number::DeviceNumber;
pub use device_users::{DeviceUser, MountPlace, NamespaceMember};
pub use device_wait::ExpectedDevice;
pub use error::{Error, ErrorKind, Result};
pub use filesystem::Filesystem;
pub use format::{FORMAT_TIME_LIMIT, Format};
pub use format_watch::{FormatLimit, FormatStep};
pub use freeze::{Frozen, thaw};
pub use group::{GroupChange, GroupOutcome, give_to_group};
pub use grow::{Grown, grow_mounted, grow_unmounted, grow_unmounted_within};
pub use health::{MountHealth, health, health_of_filesystem, health_within};
pub use id_map::IdMap;
pub use kernel_features::{KernelVersion, MkfsProfile};
pub use loop_device::{LoopCache, LoopDevice, LoopLifetime, LoopOptions};
#[cfg(feature = "luks")]
pub use luks::{LUKS_TIME_LIMIT, Luks, LuksDiscards, LuksKey, LuksPbkdf};
pub use mount::{MOUNT_TIME_LIMIT, Mount};
pub use mount_users::{MountUser, mount_users};
pub use mountinfo::{MountEntry, SuperOptions, mounts, parse_mountinfo};
pub use ops::{Kernel, MountOps};
pub use options::{FsOption, MountOptions};
pub use owner::{Evidence, Owner, OwnerId};
pub use patiently::patiently;
pub use probe::{BlankProof, InterruptedFormat, Probe, Progress, Signature};
pub use protected::{ProtectedPaths, SYSTEM_DIRECTORIES, SYSTEM_TREES};
pub use root::Root;
pub use self_check::{Finding, SelfCheck, Verdict, self_check};
pub use state::{MountId, MountPoint, MountState, mount_state};
pub use stats::{STATS_TIMEOUT, Stats, Usage, stats, stats_within};
pub use sysfs::{DeviceIdentity, Rescan};
pub use target::{Created, Removed, Target};
pub use unmount::{Detach, UNMOUNT_TIME_LIMIT, Unmount, Unmounted, unmount};
