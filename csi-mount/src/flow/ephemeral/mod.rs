//! Volumes whose whole content is known: certificates, tokens, configuration. They live in memory (tmpfs).
//! A publish makes them, a further publish changes all their files at once, and an unpublish removes them.
//! These are the steps of [`EphemeralVolumes`](crate::EphemeralVolumes).
//!
//! | step | |
//! |---|---|
//! | publish | `publish`: a tmpfs that has its content before it is visible |
//! | publish again | `publish`: the content is changed in place, in one moment |
//! | unpublish | as a [directory](crate::Directories::unpublish) |
//!
//! The files have the layout of the kubelet's own volumes, so that programs that watch those can watch
//! these too. Each name is a symbolic link through `..data`, which is a link to the directory of one
//! version. A new version is written next to the old one, then `..data` is replaced by a rename. A reader
//! that goes through `..data` sees one version or the other. The old version stays until the next publish,
//! for readers that are on their way into it.
//!
//! ```no_run
//! use csi_mount::flow::ephemeral::{Content, EphemeralPlan};
//! use csi_mount::{Host, MountAttributes, OwnedPath, Owner};
//!
//! let owner = Owner::new("certs.example.org", "csi-1f0c");
//! let target = OwnedPath::new("/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/certs/mount", owner);
//! let plan = EphemeralPlan::new("csi-1f0c").attributes(MountAttributes::RDONLY);
//!
//! let host = Host::kernel();
//! let first = Content::new().file("tls.crt", "first")?.file_with_mode("tls.key", "secret", 0o400)?;
//! host.ephemeral().publish(&target, &first, &plan)?;
//! // Later: the pod keeps running, and reads this.
//! let second = Content::new().file("tls.crt", "second")?.file_with_mode("tls.key", "other", 0o400)?;
//! host.ephemeral().publish(&target, &second, &plan)?;
//! host.directories().unpublish(&target)?;
//! # Ok::<(), csi_mount::Error>(())
//! ```

mod content;
mod memory;
mod plan;
pub(crate) mod publish;
mod version;

pub use content::Content;
pub use plan::EphemeralPlan;
pub(crate) use publish::publish;
pub use version::Change;
