//! Volumes that a FUSE program serves.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use super::{OwnedPath, steps};
use crate::error::Result;
use crate::flow::fuse::{self, FuseDaemon};
use crate::flow::shared;
use crate::mounting::attach::Outcome;
use crate::mounting::unmount::{UNMOUNT_TIME_LIMIT, Unmounted};
use crate::place::target::Removed;
use crate::sys::attributes::MountAttributes;

steps! {
    /// Volumes that a FUSE program serves: the steps of [`flow::fuse`](crate::flow::fuse).
    FuseVolumes as fuse;

    /// Starts the daemon, which mounts at the staging directory, and waits until the mount answers.
    ///
    /// The directory is made if it does not exist. An existing FUSE filesystem that answers counts as done if
    /// its daemon was started for this place and, if both name it, for the same content
    /// ([`FuseDaemon::identity`]). With a launcher, the daemon can be where its process is not visible; then
    /// this is not checked. A mount that has lost its daemon is unmounted first, and a daemon without a mount
    /// that a killed stage left for this place is ended. On failure, the daemon is killed and nothing stays
    /// mounted, except that a place that had lost its daemon still counts as such
    /// ([`Mounts::has_lost_daemon`](crate::Mounts::has_lost_daemon)).
    ///
    /// # Errors
    /// - [`AlreadyMounted`](crate::ErrorKind::AlreadyMounted): something other than a FUSE filesystem is
    ///   mounted there, or a FUSE filesystem that serves something else.
    /// - [`Unresponsive`](crate::ErrorKind::Unresponsive): the mount does not appear in time or does not
    ///   answer, or an existing mount does not answer.
    /// - [`ToolFailed`](crate::ErrorKind::ToolFailed): the daemon ended; the message has the last lines that it
    ///   printed.
    /// - [`MissingTool`](crate::ErrorKind::MissingTool): the program does not exist.
    /// - [`Busy`](crate::ErrorKind::Busy): another thread or process is starting the daemon, and does not
    ///   finish; or another process keeps the parent directory locked (`flock(2)`).
    pub fn stage(staging: &OwnedPath, daemon: &FuseDaemon) -> Result<Outcome> {
        fuse::stage(&staging.target()?, daemon)
    }

    /// Returns what the daemon at a path serves ([`FuseDaemon::identity`]), whichever process started it.
    ///
    /// None if that was not set, or the daemon is not visible from here.
    pub fn identity(path: &Path) -> Option<OsString> {
        fuse::identity_at(path)
    }

    /// Returns the memory limit in bytes of the daemon of a staging directory, if the kernel has killed it over
    /// this limit ([`FuseDaemon::memory_limit`]) and it was not started again.
    pub fn exceeded_memory_limit(staging: &Path) -> Option<u64> {
        fuse::exceeded_memory_limit(staging)
    }

    /// Binds the staged filesystem to the target directory; see
    /// [`SharedVolumes::publish`](crate::SharedVolumes::publish), whose errors it has too.
    ///
    /// A target that was bound before the daemon was lost is bound again.
    ///
    /// # Errors
    /// [`Unresponsive`](crate::ErrorKind::Unresponsive) if the daemon is gone or does not answer: stage it
    /// again.
    pub fn publish(staging: &Path, target: &OwnedPath, attributes: MountAttributes) -> Result<Outcome> {
        fuse::publish::publish(staging, &target.target()?, attributes)
    }

    /// Undoes [`publish`](Self::publish), also when the daemon hangs or is gone, and removes the directory.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) while something uses it.
    pub fn unpublish(target: &OwnedPath) -> Result<Removed> {
        shared::unpublish(&target.target()?, UNMOUNT_TIME_LIMIT)
    }

    /// Undoes [`stage`](Self::stage): unmounts, by force if the daemon does not answer, and waits up to
    /// `limit`, usually [`UNMOUNT_TIME_LIMIT`](crate::UNMOUNT_TIME_LIMIT), for the daemon to end. Then the
    /// daemon is killed, and data that it has not sent is lost.
    ///
    /// The directory stays. A daemon that a killed stage left, and that mounts only during this call, is ended
    /// too.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) while the volume is still published somewhere on this node, or is in
    /// use, or a start of its daemon is in progress and does not finish; nothing was changed then.
    /// [`Unresponsive`](crate::ErrorKind::Unresponsive) if the daemon can't even be killed.
    pub fn unstage(staging: &OwnedPath, limit: Duration) -> Result<Unmounted> {
        fuse::unstage(&staging.target()?, limit)
    }
}
