//! FUSE filesystems on a simulated node.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use super::SimulatedNode;
use super::state::{LARGE, Root, Superblock, fail};
use crate::flow::fuse::FuseDaemon;
use crate::machine::FuseSteps;
use crate::{ErrorKind, MountAttributes, Outcome, Removed, Result, Unmounted, VolumePlace};

impl FuseSteps for SimulatedNode {
    fn stage(&self, staging: &VolumePlace, daemon: &FuseDaemon) -> Result<Outcome> {
        const START: &str = "start the daemon";
        let mut state = self.begin()?;
        state.make(staging, false)?;
        state.unmount_if_lost(staging)?;
        if let Some(mount) = state.top(staging.path()) {
            let (root, attributes) = (mount.root.clone(), mount.attributes);
            let is_same = state.superblock(mount).is_some_and(|found| found.identity == daemon.identity);
            state.refuse_unresponsive(START, staging.path())?;
            return match is_same {
                true => state.attach(staging, root, attributes),
                false => fail(ErrorKind::AlreadyMounted, START, staging.path(), "another daemon serves it"),
            };
        }
        let program = daemon.program().to_string_lossy().into_owned();
        if state.missing_tools.contains(&program) {
            return fail(
                ErrorKind::MissingTool,
                START,
                staging.path(),
                &format!("{program} is not installed"),
            );
        }
        // The backend of a daemon has its files, whichever daemon serves them.
        let source = daemon.identity.clone().unwrap_or_else(|| staging.path().into());
        let files = state.served(&source);
        let found = Superblock::new("fuse", source, files, LARGE);
        let index = state.add_superblock(Superblock { identity: daemon.identity.clone(), ..found });
        state.attach(staging, Root::Filesystem(index), MountAttributes::NOSUID | MountAttributes::NODEV)
    }

    fn identity(&self, path: &Path) -> Option<OsString> {
        let state = self.state();
        state.superblock(state.top(path)?)?.identity.clone()
    }

    fn publish(&self, staging: &Path, target: &VolumePlace, attributes: MountAttributes) -> Result<Outcome> {
        self.begin()?.publish_staged(staging, target, attributes)
    }

    fn unpublish(&self, target: &VolumePlace) -> Result<Removed> {
        self.begin()?.unpublish(target, true)
    }

    fn unstage(&self, staging: &VolumePlace, _limit: Duration) -> Result<Unmounted> {
        const UNSTAGE: &str = "unstage";
        let mut state = self.begin()?;
        state.require_own(UNSTAGE, staging)?;
        let root = state.top(staging.path()).map(|mount| mount.root.clone());
        let mounts = state.mounts.iter().filter(|mount| Some(&mount.root) == root.as_ref()).count();
        if root.is_some() && mounts > 1 {
            return fail(
                ErrorKind::Busy,
                UNSTAGE,
                staging.path(),
                "its filesystem is still mounted elsewhere",
            );
        }
        state.unstage(staging)
    }
}
