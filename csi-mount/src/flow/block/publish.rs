//! Publishing a staged filesystem where a workload sees it.

use std::path::Path;

use rustix::fs::FileType;

use super::raw;
use crate::error::Result;
use crate::flow::{remove_created, require_staged};
use crate::mounting::attach::Outcome;
use crate::mounting::bind::Bind;
use crate::mounting::id_map::IdMap;
use crate::mounting::unmount::unmount;
use crate::place::target::{Removed, Target};
use crate::sys::attributes::MountAttributes;

const PUBLISH: &str = "publish";
const UNPUBLISH: &str = "unpublish";

/// See [`BlockVolumes::publish`](crate::BlockVolumes::publish).
pub fn publish(
    staging: impl AsRef<Path>,
    target: &Target,
    attributes: MountAttributes,
    id_map: IdMap,
) -> Result<Outcome> {
    let staging = staging.as_ref();
    require_staged(PUBLISH, staging, attributes)?;
    let created = target.create_for_publish(FileType::Directory)?;
    let bind = Bind::new(staging).attributes(attributes).id_map(id_map);
    bind.at(target).inspect_err(|_| remove_created(created, target))
}

/// See [`BlockVolumes::unpublish`](crate::BlockVolumes::unpublish).
pub fn unpublish(target: &Target) -> Result<Removed> {
    if !target.is_mounted()? && target.is_marked_by_other(UNPUBLISH)? {
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
