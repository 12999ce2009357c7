//! Publishing a staged filesystem where a workload sees it.

use std::path::Path;

use rustix::fs::FileType;

use super::raw;
use crate::flow::lost::require_staged;
use crate::flow::remove_created;

use crate::unmount;
use crate::{Bind, IdMap, MountAttributes, Outcome, Removed, Result, Target};

const PUBLISH: &str = "publish";
const UNPUBLISH: &str = "unpublish";

/// Binds the staged filesystem to the target directory, with these attributes added to those of the staged
/// mount.
///
/// The directory is made if it does not exist. If the bind fails, a directory that this call made is
/// removed again.
///
/// # Errors
///
/// [`NotFound`](crate::ErrorKind::NotFound) if nothing is mounted at the staging directory.
/// [`Unresponsive`](crate::ErrorKind::Unresponsive) if its filesystem has shut down.
/// [`ReadOnly`](crate::ErrorKind::ReadOnly) if an error made it read-only and these attributes allow
/// writing. Those of [`Bind::at`] and [`Target::create_dir`].
pub fn publish(staging: impl AsRef<Path>, target: &Target, attributes: MountAttributes) -> Result<Outcome> {
    publish_with_id_map(staging, target, attributes, IdMap::new())
}

/// As [`publish`], with file owners as this id map shows them; see [`Bind::id_map`].
///
/// # Errors
///
/// As for [`publish`], and [`Unsupported`](crate::ErrorKind::Unsupported) where owners can't be mapped.
pub fn publish_with_id_map(
    staging: impl AsRef<Path>,
    target: &Target,
    attributes: MountAttributes,
    id_map: IdMap,
) -> Result<Outcome> {
    let staging = staging.as_ref();
    require_staged(PUBLISH, staging, attributes)?;
    let created = target.create_dir()?;
    let bind = Bind::new(staging).attributes(attributes).id_map(id_map);
    bind.at(target).inspect_err(|_| remove_created(created, target))
}

/// Undoes [`publish`] and [`publish_device`](super::publish_device): unmounts every layer and removes the
/// directory or file, which must be empty.
///
/// # Errors
///
/// Those of [`unmount`](crate::unmount()) and [`Target::remove`].
pub fn unpublish(target: &Target) -> Result<Removed> {
    if target.state()?.mount_point().is_none() && target.is_marked_by_other(UNPUBLISH)? {
        return Ok(Removed::Kept);
    }
    unmount(target)?;
    // A directory target never had a loop device. If the target does not exist, a crash can have left a
    // loop device, which is found by its mark.
    if target.facts(UNPUBLISH)?.is_none_or(|facts| facts.file_type != FileType::Directory) {
        raw::detach_read_only(target)?;
    }
    target.remove()
}
