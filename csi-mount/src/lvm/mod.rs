//! Volumes of a volume group of LVM, by lvm2's own commands.
//!
//! A driver opens the group once. Its record of each volume is on the disk: tags of the logical volume say whose it is,
//! which name it was created by, from what, and its state. So [`list`](VolumeGroup::list) is the truth after any crash,
//! and a repeated call continues.
//!
//! ```no_run
//! use csi_mount::lvm::{HOST_LAUNCHER, LvmLayout, LvmName, LvmOptions, LvmRequest, VolumeGroup};
//!
//! # fn main() -> csi_mount::Result<()> {
//! let group = VolumeGroup::open("data", LvmOptions::new("local.example.org").launcher(HOST_LAUNCHER))?;
//! // Goes on with every erase that the last process left, in the background.
//! let eraser = group.start_eraser()?;
//!
//! // GetCapacity, CreateVolume, CreateSnapshot, ControllerExpandVolume.
//! let fast = LvmLayout::Thin("fast".to_owned());
//! println!("{} bytes", group.capacity(&fast)?.available);
//! let volume = group.create(&LvmRequest::new("pvc-1", 10 << 30).layout(fast.clone()))?;
//! group.snapshot("snapshot-1", "pvc-1")?;
//! let copy = LvmRequest::new("pvc-2", volume.bytes).layout(fast).source(LvmName::Snapshot("snapshot-1".into()));
//! group.create(&copy)?;
//! group.grow("pvc-1", 20 << 30, None)?;
//!
//! // NodeStageVolume and NodeUnstageVolume, with a filesystem or raw.
//! let device = group.activate("pvc-1")?;
//! println!("{}", device.path().display());
//! drop(device);
//! group.deactivate("pvc-1")?;
//!
//! // DeleteVolume: a thick volume is erased afterwards, and its space is free only then.
//! group.delete(&LvmName::Volume("pvc-1".into()))?;
//! # Ok(())
//! # }
//! ```
//!
//! # On the host or in the container
//!
//! lvm2 waits for udev on semaphores of the IPC namespace. In a container that has not the host's, nobody ever answers.
//!
//! - With [`HOST_LAUNCHER`] the host's lvm2 runs in the host's namespaces, with its version, its configuration and its
//!   udev. The pod needs `hostPID: true`, `privileged: true` and the host's `/dev`. This is the way for Kubernetes.
//! - Without a launcher the lvm2 next to the driver runs, with `DM_DISABLE_UDEV=1`, which uses no semaphore: lvm2 makes
//!   the nodes itself. It starts no `dmeventd`. The container needs the host's `/dev`, `/run/lock/lvm` and `/run/lvm`.
//!
//! No command that changes something is killed at a time limit. It also outlives this process, unless the end of the
//! container kills it. The next process waits for it, by a lock of `/dev/mapper/control` (`fcntl(2)`), and mends what a killed
//! one left: devices that are suspended, and a thin volume that its pool has not confirmed.
//!
//! # Needs
//!
//! lvm2 2.03 or later, with `dmsetup`; `thin-provisioning-tools` for thin pools; the kernel's `dm_mod`, for thin pools
//! `dm_thin_pool`, and `dm_snapshot`, for which lvm2 asks also before a thin snapshot. See `lvm(8)`, `lvmthin(7)`, `lvmreport(7)`.

mod above;
mod activate;
mod capacity;
mod command;
mod create;
mod delete;
mod disks;
mod group;
mod host_settings;
mod pool;
mod report;
mod settle;
mod tags;
#[cfg(test)]
mod tests;
mod zeros;

pub use self::capacity::LvmCapacity;
pub use self::create::LvmRequest;
pub use self::delete::{LvmDeletion, LvmEraser};
pub use self::group::{LvmLayout, LvmOptions, LvmVolume, VolumeGroup};
pub use self::pool::{LvmPool, LvmWhenFull};
pub use self::tags::{LvmName, LvmState};
pub use crate::erase::EraseMode;

/// Runs the host's lvm from a container, for [`LvmOptions::launcher`]: `nsenter(1)` with the namespaces of the host's
/// first process. The pod needs `hostPID: true` and `privileged: true`.
pub const HOST_LAUNCHER: [&str; 9] =
    ["nsenter", "--target", "1", "--mount", "--uts", "--ipc", "--net", "--pid", "--"];
