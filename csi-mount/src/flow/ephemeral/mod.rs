//! Volumes whose whole content is known: certificates, tokens, configuration. They live in memory (tmpfs).
//! A publish makes them, a further publish changes all their files at once, and an unpublish removes them.
//!
//! | step | |
//! |---|---|
//! | publish | [`publish`]: a tmpfs that has its content before it is visible |
//! | publish again | [`publish`]: the content is changed in place, in one moment |
//! | unpublish | [`unpublish`] |
//!
//! The files have the layout of the kubelet's own volumes, so that programs that watch those can watch
//! these too. Each name is a symbolic link through `..data`, which is a link to the directory of one
//! version. A new version is written next to the old one, then `..data` is replaced by a rename. A reader
//! that goes through `..data` sees one version or the other. The old version stays until the next publish,
//! for readers that are on their way into it.
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

use crate::place::target::OpenTarget;
use crate::unmount;
use crate::{Created, Error, ErrorKind, Outcome, Removed, Result, Target};

pub use content::Content;
pub use plan::EphemeralPlan;
pub use version::Change;

/// How often a publish starts again because the volume was unmounted during it.
const MAX_ATTEMPTS: u32 = 3;

/// Mounts the content at the target directory, or changes the content of a volume that is already published
/// there.
///
/// The directory is made if it does not exist. The first publish mounts a tmpfs that already holds the
/// content. A later publish changes that tmpfs in place, also if it is mounted read-only, and never mounts
/// a second one. Content that is the same is not touched, so that no watcher is woken. If a version can't
/// be written completely, the previous one stays in place.
///
/// The tmpfs does not go to swap if the kernel supports that (`noswap`, Linux 6.4); on older kernels it
/// can. A read-only mount is changed through a writable detached one (`open_tree(2)`, `mount_setattr(2)`;
/// Linux 5.12), on older kernels through one in a private directory.
///
/// # Errors
///
/// - [`AlreadyMounted`](ErrorKind::AlreadyMounted): something else is mounted there, or another volume, or
///   this one with other attributes.
/// - [`OutOfRange`](ErrorKind::OutOfRange): the content takes more than half of the volume's size (each
///   file takes whole pages of 4 KiB), so that two versions would not fit; see [`EphemeralPlan::size`].
/// - [`NoSpace`](ErrorKind::NoSpace): the workload can write and has filled the volume.
/// - [`Busy`](ErrorKind::Busy): another process keeps the lock of the volume's directory, or mounts and
///   unmounts there.
/// - [`InvalidInput`](ErrorKind::InvalidInput): the target is a symbolic link or not a directory, or the
///   plan's name is invalid: empty, with a NUL, or longer than 200 bytes.
pub fn publish(target: &Target, content: &Content, plan: &EphemeralPlan) -> Result<Change> {
    plan.check(content).map_err(|error| error.at(target.path()))?;
    let created = target.create_dir()?;
    put(target, content, plan).inspect_err(|_| {
        if created == Created::Created
            && let Err(left) = target.remove()
        {
            tracing::warn!(%left, "a target stays after a failed publish");
        }
    })
}

fn put(target: &Target, content: &Content, plan: &EphemeralPlan) -> Result<Change> {
    for _ in 0..MAX_ATTEMPTS {
        let outcome = attach::mount_once(
            MOUNT,
            target,
            |_, found| plan.accept(target, found),
            |seen: OpenTarget| {
                let mount = memory::filled(target, content, plan)?;
                attach::attach(MOUNT, mount, target, &seen, plan.attributes)
            },
        )?;
        if outcome == Outcome::Mounted {
            return Ok(Change::Written);
        }
        // None: it was unmounted in the meantime.
        if let Some(view) = memory::writable_view(target, plan)? {
            return version::write(view.fd(), target.path(), content, plan.group);
        }
    }
    let reason = "another process mounts and unmounts there at the same time";
    Err(Error::new(ErrorKind::Busy, MOUNT, reason).at(target.path()))
}

/// Undoes [`publish`]: unmounts every layer, which deletes the content, and removes the directory.
///
/// # Errors
///
/// [`Busy`](ErrorKind::Busy) while something uses it; those of [`unmount`] and [`Target::remove`].
pub fn unpublish(target: &Target) -> Result<Removed> {
    unmount(target)?;
    target.remove()
}
