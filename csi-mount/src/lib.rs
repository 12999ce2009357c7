//! To come.
#![cfg(target_os = "linux")]

mod attach;
mod attributes;
mod bind;
mod check;
mod details;
mod device;
mod device_number;
mod diagnose;
mod error;
mod filesystem;
pub mod flow;
mod format;
mod grow;
mod legacy_mount;
mod lookup;
mod loop_device;
mod mount;
mod mountinfo;
mod options;
mod probe;
mod root;
mod scratch;
mod state;
mod stats;
mod sys;
mod target;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tool;
mod unmount;

pub use attributes::MountAttributes;
pub use bind::{Bind, Outcome};
pub use check::{CHECK_TIME_LIMIT, CheckPolicy, CheckReport, check};
pub use device::{BlockDevice, DeviceAccess, DeviceUse};
pub use device_number::DeviceNumber;
pub use error::{Error, ErrorKind, Result};
pub use filesystem::Filesystem;
pub use format::{FORMAT_TIME_LIMIT, Format};
pub use grow::{Grown, grow_mounted, grow_unmounted};
pub use loop_device::{LoopCache, LoopDevice, LoopLifetime, LoopOptions};
pub use mount::Mount;
pub use mountinfo::{MountEntry, SuperOptions, mounts, parse_mountinfo};
pub use options::{FsOption, MountOptions};
pub use probe::{BlankProof, Probe, Progress, Signature};
pub use root::Root;
pub use state::{MountId, MountPoint, MountState, mount_state};
pub use stats::{STATS_TIMEOUT, Stats, Usage, stats, stats_within};
pub use target::{Created, Removed, Target};
pub use unmount::{Detach, Unmount, Unmounted, unmount};
