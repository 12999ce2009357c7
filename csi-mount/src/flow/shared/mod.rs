//! Node flow for filesystems that a server shares, NFS, CephFS, SMB and similar: the steps of
//! [`SharedVolumes`](crate::SharedVolumes).
//!
//! | step | a driver that stages | a driver that does not |
//! |---|---|---|
//! | stage | `stage`: mount once for the node | |
//! | publish | `publish`: bind the staged filesystem | `publish_directly`: mount at the target |
//! | stats | [`stats`](crate::Mounts::stats), [`health`](crate::Mounts::health) | the same |
//! | unpublish | `unpublish` | `unpublish` |
//! | unstage | `unstage` | |
//!
//! No step waits for a server without a limit, and no step leaves a mount that can't be removed. A
//! filesystem that does not answer is unmounted by force if this is its last mount, and detached
//! (`MNT_DETACH`) if force does not help. While the filesystem has other mounts on the node, only this
//! mount is removed and the others stay as they are.
//!
//! The kernel mounts directly, without a helper program: a password is an option that only the kernel gets.
//! For NFS and SMB the flow finds the values that a helper would find ([`SharedSource::nfs`],
//! [`SharedSource::smb`]). CephFS has its monitors in its source ([`SharedSource::ceph`]). For other filesystems
//! the driver provides what a helper would find.
//!
//! The toolkit's tests run this flow against NFS servers, v3 and v4.2, Samba and a Ceph cluster, on kernels that have a
//! client. Elsewhere they use tmpfs, overlay and ext4 for the mounting, and, in place of a server, FUSE filesystems
//! whose daemon hangs or is gone.
//!
//! ```no_run
//! use csi_mount::flow::shared::SharedSource;
//! use csi_mount::{Host, MountAttributes, MountOptions, OwnedPath, Owner, UNMOUNT_TIME_LIMIT};
//! use std::path::Path;
//!
//! let owner = Owner::new("nfs.example.org", "vol-1");
//! let staging = Path::new("/var/lib/kubelet/plugins/kubernetes.io/csi/nfs.example.org/vol-1/globalmount");
//! let staging = OwnedPath::new(staging, owner.clone());
//! let target = OwnedPath::new("/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/vol-1/mount", owner);
//!
//! let options = MountOptions::parse(["nfsvers=4.1", "softreval"])?;
//! let source = SharedSource::nfs("nfs.example.org", "/export")?.options(options);
//! let host = Host::kernel();
//! host.shared().stage(&staging, &source)?;
//! host.shared().publish(staging.path(), &target, MountAttributes::RDONLY)?;
//!
//! host.shared().unpublish(&target, UNMOUNT_TIME_LIMIT)?;
//! host.shared().unstage(&staging, UNMOUNT_TIME_LIMIT)?;
//! # Ok::<(), csi_mount::Error>(())
//! ```

mod ceph;
mod kernel_log;
mod nfs;
mod smb;
mod source;
pub(crate) mod steps;

pub use source::SharedSource;
pub use steps::open;
pub(crate) use steps::{publish, publish_directly, stage, unpublish, unstage};
