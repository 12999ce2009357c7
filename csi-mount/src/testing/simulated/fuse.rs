//! FUSE filesystems on a simulated node.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use super::SimulatedNode;
use super::state::{LARGE, Root, Superblock, fail};
use crate::error::{ErrorKind, Result};
use crate::flow::fuse::FuseDaemon;
use crate::mounting::attach::Outcome;
use crate::mounting::unmount::Unmounted;
use crate::place::owned_path::OwnedPath;
use crate::place::target::Removed;
use crate::sys::attributes::MountAttributes;

pub(crate) fn stage(simulated: &SimulatedNode, staging: &OwnedPath, daemon: &FuseDaemon) -> Result<Outcome> {
    const START: &str = "start the daemon";
    let mut state = simulated.begin()?;
    state.make(staging, false)?;
    state.unmount_if_lost(staging)?;
    if let Some(mount) = state.top(staging.path()) {
        let root = mount.root.clone();
        let attributes = mount.attributes;
        let is_same = state.superblock(mount).is_some_and(|found| found.identity == daemon.identity);
        state.refuse_unresponsive(START, staging.path())?;
        return if is_same {
            state.attach(staging, root, attributes)
        } else {
            fail(ErrorKind::AlreadyMounted, START, staging.path(), "another daemon serves it")
        };
    }
    let program = daemon.program().to_string_lossy().into_owned();
    if state.missing_tools.contains(&program) {
        return fail(ErrorKind::MissingTool, START, staging.path(), &format!("{program} is not installed"));
    }
    // The backend of a daemon has its files, whichever daemon serves them.
    let source = daemon.identity.clone().unwrap_or_else(|| staging.path().into());
    let files = state.served(&source);
    let found = Superblock::new("fuse", source, files, LARGE);
    let index = state.add_superblock(Superblock { identity: daemon.identity.clone(), ..found });
    state.attach(staging, Root::Filesystem(index), MountAttributes::NOSUID | MountAttributes::NODEV)
}

pub(crate) fn identity(simulated: &SimulatedNode, path: &Path) -> Option<OsString> {
    let state = simulated.state();
    state.superblock(state.top(path)?)?.identity.clone()
}

pub(crate) fn exceeded_memory_limit(_simulated: &SimulatedNode, _staging: &Path) -> Option<u64> {
    None
}

pub(crate) fn publish(
    simulated: &SimulatedNode,
    staging: &Path,
    target: &OwnedPath,
    attributes: MountAttributes,
) -> Result<Outcome> {
    simulated.begin()?.publish_staged(staging, target, attributes)
}

pub(crate) fn unpublish(simulated: &SimulatedNode, target: &OwnedPath) -> Result<Removed> {
    simulated.begin()?.unpublish(target, true)
}

pub(crate) fn unstage(simulated: &SimulatedNode, staging: &OwnedPath, _limit: Duration) -> Result<Unmounted> {
    const UNSTAGE: &str = "unstage";
    let mut state = simulated.begin()?;
    state.require_own(UNSTAGE, staging)?;
    let root = state.top(staging.path()).map(|mount| mount.root.clone());
    let mounts = state.mounts.iter().filter(|mount| Some(&mount.root) == root.as_ref()).count();
    if root.is_some() && mounts > 1 {
        return fail(ErrorKind::Busy, UNSTAGE, staging.path(), "its filesystem is still mounted elsewhere");
    }
    state.unstage(staging)
}
