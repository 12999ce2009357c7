//! Volumes that are shared filesystems.

use std::path::Path;
use std::time::Duration;

use super::{OwnedPath, steps};
use crate::error::Result;
use crate::flow::shared::{self, SharedSource};
use crate::mounting::attach::Outcome;
use crate::mounting::unmount::Unmounted;
use crate::place::target::Removed;
use crate::sys::attributes::MountAttributes;

steps! {
    /// Volumes that are shared filesystems: the steps of [`flow::shared`](crate::flow::shared).
    SharedVolumes as shared;

    /// Mounts the shared filesystem at the staging directory, which is made if it does not exist.
    ///
    /// An existing mount counts as done only if it is of this source, has the same attributes, and answers. A
    /// mount whose server is gone for good (`ENOTCONN`, `ESTALE`) is unmounted, and the filesystem is mounted
    /// again.
    ///
    /// A child process mounts and waits for the server. It is killed after [`SharedSource::time_limit`]. Other
    /// mounts of the same source wait until it ends; while a child that could not be killed still exists, they
    /// fail at once.
    ///
    /// # Errors
    /// - [`AlreadyMounted`](crate::ErrorKind::AlreadyMounted): something else is mounted there, or with other
    ///   attributes.
    /// - [`Unresponsive`](crate::ErrorKind::Unresponsive): the server does not answer, for the new or the
    ///   existing mount.
    /// - Those of [`Mount::at`](crate::Mount::at).
    pub fn stage(staging: &OwnedPath, source: &SharedSource) -> Result<Outcome> {
        shared::stage(&staging.target()?, source)
    }

    /// Mounts the shared filesystem at the target directory, for a driver that does not stage.
    ///
    /// These attributes are added to those of the source's options. Otherwise it works as
    /// [`stage`](Self::stage).
    ///
    /// # Errors
    /// As for [`stage`](Self::stage), and [`Busy`](crate::ErrorKind::Busy) if the directory has content and
    /// nothing is mounted there.
    pub fn publish_directly(
        target: &OwnedPath,
        source: &SharedSource,
        attributes: MountAttributes,
    ) -> Result<Outcome> {
        shared::publish_directly(&target.target()?, source, attributes)
    }

    /// Binds the staged filesystem to the target directory, with these attributes added to those of the staged
    /// mount.
    ///
    /// The directory is made if it does not exist. An old bind of a filesystem whose server is gone for good,
    /// made before the filesystem was staged again, is replaced.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if nothing is staged, [`Busy`](crate::ErrorKind::Busy) if the
    /// directory has content and nothing is mounted there, [`Unresponsive`](crate::ErrorKind::Unresponsive) if
    /// the staged filesystem does not answer, and those of [`Bind::at`](crate::Bind::at) and
    /// [`Target::create_dir`](crate::Target::create_dir).
    pub fn publish(staging: &Path, target: &OwnedPath, attributes: MountAttributes) -> Result<Outcome> {
        shared::publish(staging, &target.target()?, attributes)
    }

    /// Undoes [`publish`](Self::publish) and [`publish_directly`](Self::publish_directly), also while the
    /// server does not answer, and removes the directory. Unwritten data is waited for as in
    /// [`unstage`](Self::unstage).
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) while something uses a filesystem that answers; those of
    /// [`Unmount::at`](crate::Unmount::at) and [`Target::remove`](crate::Target::remove).
    pub fn unpublish(target: &OwnedPath, limit: Duration) -> Result<Removed> {
        shared::unpublish(&target.target()?, limit)
    }

    /// Undoes [`stage`](Self::stage), also while the server does not answer. The directory stays: it belongs to
    /// the orchestrator.
    ///
    /// Unwritten data is waited for as long as `limit`, usually
    /// [`UNMOUNT_TIME_LIMIT`](crate::UNMOUNT_TIME_LIMIT). Data that the server does not accept within this time
    /// is lost, and the filesystem is [`Detached`](crate::Unmounted::Detached): a slow server can't be told
    /// apart from one that is gone.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy) while something uses a filesystem that answers; those of
    /// [`Unmount::at`](crate::Unmount::at).
    pub fn unstage(staging: &OwnedPath, limit: Duration) -> Result<Unmounted> {
        shared::unstage(&staging.target()?, limit)
    }
}
