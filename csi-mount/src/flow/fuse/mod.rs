//! Node flow for filesystems that a program serves by FUSE: the steps of [`FuseVolumes`](crate::FuseVolumes).
//!
//! | step | |
//! |---|---|
//! | stage | `stage`: start the daemon, wait until its mount answers |
//! | publish | `publish`: bind the staged filesystem |
//! | stats | [`stats`](crate::Mounts::stats), [`health`](crate::Mounts::health) |
//! | unpublish | `unpublish` |
//! | unstage | `unstage`: unmount, and wait for the daemon to end |
//!
//! The daemon does not end with the process that started it: it has its own process group, and a launcher
//! that the driver chooses ([`FuseDaemon::launcher`]) can move it out of the service's control group or
//! container. A later process recognizes the daemon by a mark in its environment, `CSI_MOUNT_FUSE_AT`, and
//! what it serves by a second mark ([`FuseDaemon::identity`]). Any process can have such a mark. It counts only
//! if the process also holds a file that the stage gave it, or the `/dev/fuse` of the mount. All this needs
//! access to the daemon's process: a daemon in another process namespace is neither waited for nor killed.
//!
//! If the daemon of a mount is gone (`ENOTCONN`), `stage` unmounts it and mounts again. The process that
//! started a daemon logs its end. By [`FuseDaemon::restart_when_lost`] it starts it again, and binds its targets again,
//! whenever it dies.
//!
//! ```no_run
//! use csi_mount::flow::fuse::FuseDaemon;
//! use csi_mount::{Host, MountAttributes, OwnedPath, Owner, UNMOUNT_TIME_LIMIT};
//! use std::path::Path;
//!
//! let owner = Owner::new("s3.example.org", "vol-1");
//! let staging = Path::new("/var/lib/kubelet/plugins/kubernetes.io/csi/s3.example.org/vol-1/globalmount");
//! let staging = OwnedPath::new(staging, owner.clone());
//! let target = OwnedPath::new("/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/vol-1/mount", owner);
//!
//! let daemon = FuseDaemon::new("example-s3").args(["-f", "bucket"]).arg(staging.path()).secret("key:secret");
//! let host = Host::kernel();
//! host.fuse().stage(&staging, &daemon)?;
//! host.fuse().publish(staging.path(), &target, MountAttributes::empty())?;
//!
//! host.fuse().unpublish(&target)?;
//! host.fuse().unstage(&staging, UNMOUNT_TIME_LIMIT)?;
//! # Ok::<(), csi_mount::Error>(())
//! ```

mod credentials;
mod daemon;
mod daemon_start_lock;
mod device;
pub(crate) mod lost;
mod memory;
mod mounter;
mod output;
mod processes;
pub(crate) mod publish;
pub(crate) mod recover;
mod secrets;
mod start;
pub(crate) mod steps;
mod watch;

pub use daemon::FuseDaemon;
pub use device::inherited_device;
pub(crate) use lost::is_lost;
pub use mounter::{Mounter, MounterDaemon, MounterServer};
pub use recover::resume;
pub(crate) use steps::{exceeded_memory_limit, identity_at, stage, unstage};
