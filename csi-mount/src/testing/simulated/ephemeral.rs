//! Volumes of files on a simulated node.

use super::SimulatedNode;
use super::state::{Files, Root, Superblock, fail};
use crate::error::{ErrorKind, Result};
use crate::flow::ephemeral::{Change, Content, EphemeralPlan};
use crate::place::owned_path::OwnedPath;

pub(crate) fn publish(
    simulated: &SimulatedNode,
    target: &OwnedPath,
    content: &Content,
    plan: &EphemeralPlan,
) -> Result<Change> {
    plan.check(content).map_err(|error| error.at(target.path()))?;
    let mut state = simulated.begin()?;
    let wanted: Files = content.files().map(|(path, file)| (path.to_owned(), file.bytes.clone())).collect();
    if let Some(mount) = state.top(target.path()) {
        let root = mount.root.clone();
        let attributes = mount.attributes;
        let found = state.superblock(mount).map(|found| (found.source.clone(), found.files));
        let Some((_, files)) = found.filter(|(source, _)| source == plan.source()) else {
            return fail(ErrorKind::AlreadyMounted, "publish", target.path(), "something else is mounted");
        };
        if attributes != plan.attributes {
            return fail(ErrorKind::AlreadyMounted, "publish", target.path(), "it has other attributes");
        }
        state.attach(target, root, attributes)?;
        if state.files[files] == wanted {
            return Ok(Change::Unchanged);
        }
        state.step()?;
        state.files[files] = wanted;
        return Ok(Change::Written);
    }
    state.refuse_content(target)?;
    state.files.push(wanted);
    let files = state.files.len() - 1;
    let index = state.add_superblock(Superblock::new("tmpfs", plan.source(), files, plan.size));
    state.make_and_attach(target, Root::Filesystem(index), plan.attributes)?;
    Ok(Change::Written)
}
