//! Shared filesystems on a simulated node.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use super::SimulatedNode;
use super::state::{Files, LARGE, Root, State, Superblock, fail, options_text};
use crate::flow::shared::SharedSource;
use crate::machine::SharedSteps;
use crate::{ErrorKind, MountAttributes, Outcome, Removed, Result, Unmounted, VolumePlace};

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

impl SharedSteps for SimulatedNode {
    fn mount(
        &self,
        place: &VolumePlace,
        source: &SharedSource,
        attributes: MountAttributes,
    ) -> Result<Outcome> {
        let mut state = self.begin()?;
        let source = source.clone().with_attributes(attributes);
        let is_new = state.make(place, false)?;
        state.unmount_if_lost(place)?;
        let name = OsString::from(&source.source);
        let mounted = match state.top(place.path()).map(|mount| mount.root.clone()) {
            Some(Root::Filesystem(index)) if state.superblocks[index].source == name => {
                state.refuse_unresponsive("mount", place.path())?;
                Some(index)
            }
            Some(_) => {
                return fail(ErrorKind::AlreadyMounted, "mount", place.path(), "something else is mounted");
            }
            None => None,
        };
        let index = mounted.unwrap_or_else(|| {
            let files = state.served(&name);
            let found = Superblock::new(&source.fs_type, name, files, LARGE);
            state.add_superblock(Superblock { options: options_text(&source.options), ..found })
        });
        state.attach(place, Root::Filesystem(index), source.options.attributes()).inspect_err(|_| {
            if is_new {
                // The error of the mount is the one to report.
                let _ = state.remove(place, false);
            }
        })
    }

    fn publish(&self, staging: &Path, target: &VolumePlace, attributes: MountAttributes) -> Result<Outcome> {
        self.begin()?.publish_staged(staging, target, attributes)
    }

    fn unpublish(&self, target: &VolumePlace, _limit: Duration) -> Result<Removed> {
        self.begin()?.unpublish(target, true)
    }

    fn unstage(&self, staging: &VolumePlace, _limit: Duration) -> Result<Unmounted> {
        self.begin()?.unstage(staging)
    }
}
