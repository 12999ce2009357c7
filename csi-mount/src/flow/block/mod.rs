//! Node flow for volumes that are block devices: the steps of [`BlockVolumes`](crate::BlockVolumes).
//!
//! | step | filesystem volume | raw block volume |
//! |---|---|---|
//! | stage | `stage`: wait, reserve if the plan says so, probe, format if blank, check, grow, mount | `reserve` |
//! | publish | `publish`: bind the staged filesystem | `publish_device`: bind the device's node |
//! | expand | `device_size`, `expand` | `device_size`, `expand` |
//! | stats | `usage` | `usage` |
//! | unpublish | `unpublish` | `unpublish` |
//! | unstage | `unstage`: unmount, and the device is free | |
//!
//! With the feature `luks`, a device can be encrypted (`StagePlan::encrypted`). Stage opens it, after
//! encrypting it if it is blank, and unstage closes it. What these pages say about the device then holds
//! for the device inside, which `opened_device` finds. For raw use, `stage_device` opens the device.
//! `expand_encrypted` takes the key, which growing needs.
//!
//! A repeated step finds its work done and succeeds. A step that finds the work of somebody else refuses.
//!
//! ```no_run
//! use csi_mount::flow::block::{MountCopies, StagePlan};
//! use csi_mount::{Filesystem, Host, IdMap, MountAttributes, MountOptions, OwnedPath, Owner};
//! use std::path::Path;
//!
//! let device = Path::new("/dev/disk/by-id/virtio-vol-1");
//! let owner = Owner::new("block.example.org", "vol-1");
//! let staging = Path::new("/var/lib/kubelet/plugins/kubernetes.io/csi/block.example.org/vol-1/globalmount");
//! let staging = OwnedPath::new(staging, owner.clone());
//! let target = OwnedPath::new("/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/vol-1/mount", owner);
//!
//! let plan = StagePlan::new(Filesystem::Xfs).options(MountOptions::parse(["noatime"])?);
//! let host = Host::kernel();
//! let staged = host.block().stage(device, &staging, &plan)?;
//! println!("{} is staged: {:?}", staged.device, staged.origin);
//! host.block().publish(staging.path(), &target, MountAttributes::RDONLY, IdMap::new())?;
//!
//! host.block().unpublish(&target)?;
//! host.block().unstage(&staging, Some(device), MountCopies::Kept)?;
//! # Ok::<(), csi_mount::Error>(())
//! ```

mod clones;
mod copies;
mod decide;
pub(crate) mod encrypted;
pub(crate) mod expand;
mod plan;
pub(crate) mod publish;
pub(crate) mod raw;
#[cfg(feature = "remote")]
pub(crate) mod reserve;
pub(crate) mod stage;
pub(crate) mod trim;
pub(crate) mod unstage;
pub(crate) mod usage;

/// Operations, as errors name them.
const STAGE: &str = "stage";
const UNSTAGE: &str = "unstage";

pub(crate) use encrypted::opened_device;
#[cfg(feature = "luks")]
pub(crate) use encrypted::stage_device;
#[cfg(feature = "luks")]
pub(crate) use expand::expand_encrypted;
pub(crate) use expand::{device_size, expand};
pub use plan::{StageCheck, StagePlan};
pub(crate) use publish::{publish, unpublish};
pub(crate) use raw::publish_device;
#[cfg(feature = "remote")]
pub(crate) use reserve::{reserve, write_right};
pub(crate) use stage::stage;
pub use stage::{FilesystemOrigin, Staged};
pub(crate) use trim::trim;
pub use unstage::MountCopies;
pub(crate) use unstage::{unstage, unstage_lost};
pub use usage::VolumeUsage;
pub(crate) use usage::{device_of, usage};
