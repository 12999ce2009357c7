//! Volumes whose whole content is known: certificates, tokens, configuration. They live in memory (tmpfs), come with a
//! publish, change as one while they are published, and are gone with the unpublish.
//!
//! | step | |
//! |---|---|
//! | publish | [`publish`]: a tmpfs that has its content before anyone sees it |
//! | publish again | [`publish`]: the content is changed in place, in one moment |
//! | unpublish | [`unpublish`] |
//!
//! The files are laid out as the kubelet's own volumes are, so that programs that watch those watch these alike: each
//! name is a symbolic link through `..data`, itself a link to the directory of one version. A new version is written
//! beside the old one and `..data` is renamed over, so that a reader who goes through it sees one version or the other. The
//! old version stays until the next publish, for readers who are on their way into it.
//!
//! ```no_run
//! use csi_mount::flow::ephemeral::{Content, EphemeralPlan, publish, unpublish};
//! use csi_mount::{MountAttributes, Target};
//!
//! let target = Target::new("/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/certs/mount")?;
//! let plan = EphemeralPlan::new("csi-1f0c").attributes(MountAttributes::RDONLY);
//!
//! publish(&target, &Content::new().file("tls.crt", "first")?.file_with_mode("tls.key", "secret", 0o400)?, &plan)?;
//! // Later: the pod keeps running, and reads this.
//! publish(&target, &Content::new().file("tls.crt", "second")?.file_with_mode("tls.key", "other", 0o400)?, &plan)?;
//! unpublish(&target)?;
//! # Ok::<(), csi_mount::Error>(())
//! ```

mod content;
mod memory;
mod plan;
mod version;

use crate::mounting::attach;
use crate::mounting::mount::MOUNT;

use crate::place::target::Seen;
use crate::unmount;
use crate::{Created, Error, ErrorKind, Outcome, Removed, Result, Target};

pub use content::Content;
pub use plan::EphemeralPlan;
pub use version::Change;

/// How often a publish begins anew because the volume is unmounted under it.
const ATTEMPTS: u32 = 3;

/// Puts the content at the target directory, or changes what is there to it.
///
/// The directory is made if it is not there. The first publish mounts a tmpfs that already holds the content; a later one
/// changes that tmpfs in place, whether or not it is mounted read-only, and never mounts a second. Content that is the
/// same is left alone, so that nobody who watches it is woken. A version that can't be written whole leaves the one
/// before in place.
///
/// The tmpfs does not go to swap, where the kernel can promise it (`noswap`, Linux 6.4); before, it may. A read-only
/// mount is changed through a writable one that nobody sees (`open_tree(2)`, `mount_setattr(2)`; Linux 5.12), on older
/// kernels one in a private place.
///
/// # Errors
///
/// - [`AlreadyMounted`](ErrorKind::AlreadyMounted): something else is mounted there, another volume, or this one with
///   other attributes.
/// - [`OutOfRange`](ErrorKind::OutOfRange): the content has no room beside another of its size; see
///   [`EphemeralPlan::size`].
/// - [`NoSpace`](ErrorKind::NoSpace): the workload, where it may write, has filled the volume.
/// - [`Busy`](ErrorKind::Busy): somebody keeps the lock of its directory.
/// - [`InvalidInput`](ErrorKind::InvalidInput): the target is a symbolic link or no directory, or the plan's name is none.
pub fn publish(target: &Target, content: &Content, plan: &EphemeralPlan) -> Result<Change> {
    plan.check(content).map_err(|error| error.at(target.path()))?;
    let created = target.create_dir()?;
    put(target, content, plan).inspect_err(|_| {
        if created == Created::Created
            && let Err(left) = target.remove()
        {
            tracing::warn!(%left, "a target that could not be published is left");
        }
    })
}

fn put(target: &Target, content: &Content, plan: &EphemeralPlan) -> Result<Change> {
    for _ in 0..ATTEMPTS {
        let outcome = attach::mount_once(
            MOUNT,
            target,
            |_, found| plan.accept(target, found),
            |seen: Seen| {
                let mount = memory::filled(target, content, plan)?;
                attach::attach(MOUNT, mount, target, &seen, plan.attributes)
            },
        )?;
        if outcome == Outcome::Mounted {
            return Ok(Change::Written);
        }
        // None: it was unmounted meanwhile.
        if let Some(view) = memory::writable_view(target, plan)? {
            return version::write(view.fd(), target.path(), content, plan.group);
        }
    }
    let reason = "somebody else mounts and unmounts there at the same time";
    Err(Error::new(ErrorKind::Busy, MOUNT, reason).at(target.path()))
}

/// Undoes [`publish`]: unmounts every layer, with which the content is gone, and removes the directory.
///
/// # Errors
///
/// [`Busy`](ErrorKind::Busy) while something uses it; those of [`unmount`] and [`Target::remove`].
pub fn unpublish(target: &Target) -> Result<Removed> {
    unmount(target)?;
    target.remove()
}
