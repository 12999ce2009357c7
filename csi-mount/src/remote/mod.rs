//! Disks that are attached over the network before a volume is staged, and detached after it is unstaged.
//!
//! A driver says which target a volume is. [`RemoteDisks`] connects, waits for the right disk, reports its new
//! size after an expansion, and disconnects when nothing on this node uses the connection any more. The
//! transports are NVMe over TCP and RDMA, iSCSI, Fibre Channel and RBD; docs/remote-disks.md of the repository says what is
//! missing.
//!
//! ```no_run
//! use csi_mount::flow::block::{MountCopies, StagePlan};
//! use csi_mount::remote::{NamespaceId, NvmeHost, NvmeTarget, RemoteDisks};
//! use csi_mount::{Filesystem, Host, OwnedPath, Owner};
//!
//! # fn main() -> csi_mount::Result<()> {
//! let disks = RemoteDisks::new("/var/lib/kubelet/plugins/san.csi.example.org/remote");
//! let staging = "/var/lib/kubelet/plugins/kubernetes.io/csi/san.csi.example.org/1/globalmount";
//! let staging = OwnedPath::new(staging, Owner::new("san.csi.example.org", "pvc-1"));
//! let host = Host::kernel();
//!
//! // Stage: the driver says "this volume is this target".
//! let namespace = NamespaceId::nguid("0123456789abcdef0123456789abcdef")?;
//! let target = NvmeTarget::tcp(NvmeHost::of_node()?, "nqn.2026-01.org.example:pool", namespace)?
//!     .portal("10.0.0.1:4420".parse().expect("an address"))
//!     .portal("10.0.1.1:4420".parse().expect("an address"));
//! let device = disks.attach("pvc-1", &target)?;
//! let plan = StagePlan::new(Filesystem::Xfs).expect(target.expected());
//! host.block().stage(device.path(), &staging, &plan)?;
//!
//! // Expand: all paths have the size that the target reports.
//! let bytes = disks.refresh("pvc-1")?;
//!
//! // Unstage: only the volume's name is known.
//! let device = disks.device("pvc-1")?;
//! let path = device.as_ref().map(|device| device.path());
//! host.block().unstage(&staging, path, MountCopies::Kept)?;
//! drop(device);
//! let detached = disks.detach("pvc-1")?;
//! # let _ = (bytes, detached);
//! # Ok(()) }
//! ```
//!
//! | part | has |
//! |---|---|
//! | `record.rs`, `disk.rs` | what is attached: durable records, and the lock of a target |
//! | `attach.rs`, `detach.rs` | the steps of [`RemoteDisks`], which all transports share |
//! | `transport.rs` | the traits of a transport: a target that is connected, an attachment that ends |
//! | `paths.rs` | the paths to a disk, and the one disk over them |
//! | `ask.rs` | the calls that can hang, made by a child process |
//! | `multipath/` | dm-multipath, for transports that have no multipath of their own |
//! | `scsi/` | logical units, for transports of SCSI: which paths are usable, one LUN scanned, paths deleted |
//! | `nvme/`, `iscsi/`, `fc/`, `rbd/` | what the kernel says about a transport, the decisions about it, and its own steps |
//!
//! # Rules
//!
//! - The disk is known by a name that does not change (NGUID, EUI-64, UUID; world-wide name, serial number). It is
//!   asked for at each step, and never assumed from a number.
//! - A controller or session is shared by all disks of its target. It is disconnected only if an attachment of
//!   this directory connected it, no other attachment is recorded, and no other disk of it has a user on this
//!   node.
//! - Whatever can wait for a target is done by a child process with a time limit. The error names the portal,
//!   controller or disk that does not answer.
//!
//! Imports from `filesystem` (it runs programs) and the layers above it.

pub(crate) mod ask;
mod attach;
mod detach;
mod disk;
mod fc;
mod iscsi;
mod multipath;
mod nvme;
mod paths;
mod rbd;
mod record;
mod scsi;
mod transport;

use std::fmt;
use std::path::PathBuf;

pub use self::disk::RemoteTarget;
pub use self::fc::target::{FcTarget, Wwpn};
pub use self::iscsi::target::IscsiTarget;
pub use self::nvme::target::{NamespaceId, NvmeHost, NvmeTarget};
pub use self::rbd::target::{RbdPool, RbdTarget};
use self::record::Records;
pub use self::scsi::LunId;
use crate::error::Error;

/// The remote disks that are attached on this node, by the name of each attachment: a volume's id.
///
/// The records are in one directory of the node's disk, one for each driver. All calls block; calls with one
/// name must not run at the same time.
#[derive(Debug, Clone)]
#[must_use]
pub struct RemoteDisks {
    records: Records,
    sys: PathBuf,
}

impl RemoteDisks {
    /// Keeps the records in this directory, which is created with the first. It must survive a restart of the
    /// driver, and belong to this driver only.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { records: Records::new(directory.into()), sys: "/sys".into() }
    }
}

/// What [`RemoteDisks::detach`] did.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Detached {
    /// Why the last writes are possibly lost: the disk did not answer a flush. If it is empty, everything that
    /// was written is on the disk, or no disk was found.
    pub not_flushed: Option<Error>,
    /// The controllers or sessions that were disconnected.
    pub disconnected: Vec<String>,
    /// Why controllers or sessions of the target stay connected. None if none do.
    pub kept: Option<String>,
}

/// Text for a log.
impl fmt::Display for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.disconnected[..] {
            [] => f.write_str("nothing was disconnected")?,
            names => write!(f, "disconnected {}", names.join(", "))?,
        }
        if let Some(kept) = &self.kept {
            write!(f, "; connections stay: {kept}")?;
        }
        match &self.not_flushed {
            Some(error) => write!(f, "; the last writes are possibly lost: {error}"),
            None => Ok(()),
        }
    }
}
