//! Shared filesystems on a simulated node.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use super::SimulatedNode;
use super::state::{Files, LARGE, Root, State, Superblock, fail, options_text};
use crate::error::{ErrorKind, Result};
use crate::flow::shared::SharedSource;
use crate::mounting::attach::Outcome;
use crate::mounting::unmount::Unmounted;
use crate::place::owned_path::OwnedPath;
use crate::place::target::Removed;
use crate::sys::attributes::MountAttributes;

impl State {
    /// The files of a server or daemon, which outlive each mount of it.
    pub(super) fn served(&mut self, source: &OsStr) -> usize {
        match self.superblocks.iter().find(|found| found.disk.is_none() && found.source == source) {
            Some(found) => found.files,
            None => {
                self.files.push(Files::new());
                self.files.len() - 1
            }
        }
    }
}

impl State {
    fn mount_shared(&mut self, place: &OwnedPath, source: &SharedSource) -> Result<Outcome> {
        let is_new = self.make(place, false)?;
        self.unmount_if_lost(place)?;
        let name = OsString::from(&source.source);
        let mounted = match self.top(place.path()).map(|mount| mount.root.clone()) {
            Some(Root::Filesystem(index)) if self.superblocks[index].source == name => {
                self.refuse_unresponsive("mount", place.path())?;
                Some(index)
            }
            Some(_) => {
                return fail(ErrorKind::AlreadyMounted, "mount", place.path(), "something else is mounted");
            }
            None => None,
        };
        let index = mounted.unwrap_or_else(|| {
            let files = self.served(&name);
            let found = Superblock::new(&source.fs_type, name, files, LARGE);
            self.add_superblock(Superblock { options: options_text(&source.options), ..found })
        });
        self.attach(place, Root::Filesystem(index), source.options.attributes()).inspect_err(|_| {
            if is_new {
                // The error of the mount is the one to report.
                let _ = self.remove(place, false);
            }
        })
    }
}

pub(crate) fn stage(
    simulated: &SimulatedNode,
    staging: &OwnedPath,
    source: &SharedSource,
) -> Result<Outcome> {
    simulated.begin()?.mount_shared(staging, source)
}

pub(crate) fn publish_directly(
    simulated: &SimulatedNode,
    target: &OwnedPath,
    source: &SharedSource,
    attributes: MountAttributes,
) -> Result<Outcome> {
    let mut state = simulated.begin()?;
    state.refuse_content(target)?;
    state.mount_shared(target, &source.clone().with_attributes(attributes))
}

pub(crate) fn publish(
    simulated: &SimulatedNode,
    staging: &Path,
    target: &OwnedPath,
    attributes: MountAttributes,
) -> Result<Outcome> {
    simulated.begin()?.publish_staged(staging, target, attributes)
}

pub(crate) fn unpublish(simulated: &SimulatedNode, target: &OwnedPath, _limit: Duration) -> Result<Removed> {
    simulated.begin()?.unpublish(target, true)
}

pub(crate) fn unstage(simulated: &SimulatedNode, staging: &OwnedPath, _limit: Duration) -> Result<Unmounted> {
    simulated.begin()?.unstage(staging)
}
