//! Binding the staged filesystem to a target, also on top of one that has lost its daemon.

use std::path::Path;

use nix::libc;
use rustix::fs::FileType;

use crate::error::Result;
use crate::flow::{remove_created, require_staged, unmount_if_lost};
use crate::mounted::health::{MountHealth, health};
use crate::mounting::attach::Outcome;
use crate::mounting::bind::Bind;
use crate::mounting::unmount::{Detach, Unmount};
use crate::place::target::Target;
use crate::sys::attributes::MountAttributes;
use crate::sys::ids::MountId;
use crate::table::details::is_fuse;
use crate::table::mountinfo::{MountEntry, mounts};

const PUBLISH: &str = "publish";

/// See [`FuseVolumes::publish`](crate::FuseVolumes::publish).
pub fn publish(staging: impl AsRef<Path>, target: &Target, attributes: MountAttributes) -> Result<Outcome> {
    let staging = staging.as_ref();
    require_staged(PUBLISH, staging, attributes)?;
    let created = target.create_for_publish(FileType::Directory)?;
    // In the group of the staged mount, what is put on top would come to that mount and to all targets.
    let bind = Bind::new(staging).attributes(attributes).private();
    let bind = || match lost_to_cover(staging, target)? {
        Some(lost) => {
            Unmount::new().detach(Detach::IfUnresponsive).down_to(lost).at(target)?;
            bind.on_top_of(lost, target)
        }
        None => {
            unmount_if_lost(target)?;
            bind.at(target)
        }
    };
    bind().inspect_err(|_| remove_created(created, target))
}

/// The lowest mount at a target that has lost its FUSE daemon, if it can stay while the staged one is put on top of it. What
/// receives the target's mounts (a container with `HostToContainer`) then has the next one too: an unmount of the lost one
/// would leave it there, and what is mounted in its place comes to nobody.
fn lost_to_cover(staging: &Path, target: &Target) -> Result<Option<MountId>> {
    if !matches!(health(target.path())?, MountHealth::Dead(libc::ENOTCONN)) {
        return Ok(None);
    }
    let of_fuse = |at: &Target| Ok(at.mounted()?.filter(|mounted| is_fuse(&mounted.fs_type)));
    let (Some(_), Some(top)) = (of_fuse(&Target::new(staging)?)?, of_fuse(target)?) else { return Ok(None) };
    let table = mounts()?;
    let beneath = |entry: &MountEntry| {
        table.iter().find(|other| other.id == entry.parent && other.mount_point == entry.mount_point)
    };
    let mut lowest = &top;
    while let Some(entry) = beneath(lowest) {
        lowest = entry;
    }
    // What is on top of a mount of a group comes to all its mounts. Binds of older versions are in the group of the staged
    // mount.
    let has_own_group = lowest
        .peer_group
        .is_some_and(|group| table.iter().filter(|entry| entry.peer_group == Some(group)).count() == 1);
    let can_cover = has_own_group && (target.owner().is_none() || target.is_markable(PUBLISH));
    Ok(can_cover.then_some(lowest.id))
}
