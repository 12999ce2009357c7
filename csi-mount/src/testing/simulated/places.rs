//! Places of volumes: made, marked, mounted on, unmounted and removed, for every kind of storage.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::state::{Mount, Root, State, canonical, resolved};
use crate::error::{Error, ErrorKind, Result};
use crate::mounted::health::MountHealth;
use crate::mounting::attach::Outcome;
use crate::mounting::unmount::Unmounted;
use crate::place::owned_path::OwnedPath;
use crate::place::owner::{Evidence, OwnerId};
use crate::place::target::Removed;
use crate::sys::attributes::MountAttributes;

impl State {
    /// Makes the place if it does not exist, as a directory or a file; returns whether it did.
    pub(super) fn make(&mut self, place: &OwnedPath, is_file: bool) -> Result<bool> {
        const OPERATION: &str = "make";
        let path = place.path();
        let fail = |kind, reason: &str| Err(Error::new(kind, OPERATION, reason).at(path));
        if !path.is_absolute() || path.parent().is_none() {
            return fail(ErrorKind::InvalidInput, "it is no absolute path of a place");
        }
        if self.exists(path) {
            let is_node = matches!(self.top(path), Some(Mount { root: Root::Node(_), .. }));
            let is_directory = self.is_directory(path) && !is_node;
            return if is_directory != is_file {
                Ok(false)
            } else {
                fail(ErrorKind::InvalidInput, "something else exists there already")
            };
        }
        if !path.parent().is_some_and(|parent| self.is_directory(parent)) {
            return fail(ErrorKind::NotFound, "its parent directory does not exist");
        }
        self.step()?;
        if is_file {
            self.places.insert(path.to_owned())
        } else {
            self.directories.insert(path.to_owned())
        };
        self.step()?;
        self.marks.insert(path.to_owned(), (place.owner().id.clone(), None));
        Ok(true)
    }

    /// What keeps an unmounted place from being removed, if anything.
    fn content(&self, path: &Path) -> Option<&'static str> {
        let is_inside = |other: &PathBuf| other != path && other.starts_with(path);
        let mut inside = self.directories.iter().chain(&self.places).chain(self.host_files.keys());
        if self.top(path).is_some() {
            return None;
        }
        if self.host_files.get(path).is_some_and(|bytes| !bytes.is_empty()) {
            return Some("the file is not empty");
        }
        inside.any(is_inside).then_some("the directory is not empty")
    }

    /// Refuses to publish over content.
    pub(super) fn refuse_content(&self, target: &OwnedPath) -> Result<()> {
        match self.content(target.path()) {
            Some(content) => Err(Error::new(ErrorKind::Busy, "publish", content).at(target.path())),
            None => Ok(()),
        }
    }

    /// Mounts at an existing place, or finds that it was done.
    pub(super) fn attach(
        &mut self,
        place: &OwnedPath,
        root: Root,
        attributes: MountAttributes,
    ) -> Result<Outcome> {
        const OPERATION: &str = "mount";
        let refuse =
            |reason: &str| Err(Error::new(ErrorKind::AlreadyMounted, OPERATION, reason).at(place.path()));
        let owner = &place.owner().id;
        if let Some(top) = self.top(place.path()) {
            if top.root != root {
                return refuse("something else is mounted there");
            }
            if top.attributes != attributes {
                return refuse("it is mounted with other attributes");
            }
            self.refuse_unresponsive(OPERATION, place.path())?;
            let mark = self.marks.get(place.path());
            if mark.is_some_and(|(marked, _)| !marked.is_same(owner)) {
                return refuse("another volume is mounted there");
            }
            self.marks.insert(place.path().to_owned(), (owner.clone(), Some(root)));
            return Ok(Outcome::AlreadyMounted);
        }
        self.step()?;
        self.marks.insert(place.path().to_owned(), (owner.clone(), Some(root.clone())));
        self.step()?;
        let id = 100 + u64::from(self.next());
        self.mounts.push(Mount { id, path: resolved(place.path()), root, attributes });
        Ok(Outcome::Mounted)
    }

    /// Makes the place and mounts there; a failure removes what was made.
    pub(super) fn make_and_attach(
        &mut self,
        place: &OwnedPath,
        root: Root,
        attributes: MountAttributes,
    ) -> Result<Outcome> {
        let is_new = self.make(place, matches!(root, Root::Node(_)))?;
        self.attach(place, root, attributes).inspect_err(|_| {
            if is_new && self.step().is_ok() {
                self.forget(place.path());
            }
        })
    }

    /// Publishes a staged filesystem or a directory at a target.
    pub(super) fn bind(
        &mut self,
        staged: (Root, MountAttributes),
        target: &OwnedPath,
        added: MountAttributes,
    ) -> Result<Outcome> {
        let (root, attributes) = staged;
        self.refuse_content(target)?;
        self.make_and_attach(target, root, attributes.combined_with(added))
    }

    pub(super) fn refuse_unresponsive(&self, operation: &'static str, path: &Path) -> Result<()> {
        match self.health(path) {
            health @ (MountHealth::Dead(_) | MountHealth::Unresponsive) => {
                Err(Error::new(ErrorKind::Unresponsive, operation, health.to_string()).at(path))
            }
            _ => Ok(()),
        }
    }

    /// Whether a staged filesystem can be given to a workload.
    pub(super) fn require_staged(&self, staging: &Path, attributes: MountAttributes) -> Result<Mount> {
        const OPERATION: &str = "publish";
        let fail =
            |kind, health: MountHealth| Err(Error::new(kind, OPERATION, health.to_string()).at(staging));
        match self.health(staging) {
            health @ MountHealth::NotMounted => return fail(ErrorKind::NotFound, health),
            MountHealth::ReadOnly if attributes.contains(MountAttributes::RDONLY) => {}
            health @ MountHealth::ReadOnly => return fail(ErrorKind::ReadOnly, health),
            health @ (MountHealth::Unresponsive | MountHealth::Dead(_)) => {
                return fail(ErrorKind::Unresponsive, health);
            }
            _ => {}
        }
        let nothing = || Error::new(ErrorKind::NotFound, OPERATION, "no volume is staged there").at(staging);
        self.top(staging).cloned().ok_or_else(nothing)
    }

    pub(super) fn publish_staged(
        &mut self,
        staging: &Path,
        target: &OwnedPath,
        attributes: MountAttributes,
    ) -> Result<Outcome> {
        let staged = self.require_staged(staging, attributes)?;
        self.unmount_if_lost(target)?;
        self.bind((staged.root, staged.attributes), target, attributes)
    }

    fn forget(&mut self, path: &Path) {
        self.directories.remove(path);
        self.places.remove(path);
        self.marks.remove(path);
    }

    pub(super) fn marked_owner(&self, path: &Path) -> Option<&OwnerId> {
        self.marks.get(path).map(|(owner, _)| owner)
    }

    pub(super) fn unmark(&mut self, place: &OwnedPath) {
        if self.marked_owner(place.path()).is_some_and(|found| found.is_same(&place.owner().id)) {
            self.marks.remove(place.path());
        }
    }

    /// Refuses a mount that is not known to be the place's owner's.
    pub(super) fn require_own(&self, operation: &'static str, place: &OwnedPath) -> Result<()> {
        let path = place.path();
        let owner = place.owner();
        let refuse = |why: &str| Err(Error::new(ErrorKind::NotOwned, operation, why).at(path));
        let Some(top) = self.top(path) else { return Ok(()) };
        match self.marks.get(path) {
            Some((marked, _)) if !marked.is_same(&owner.id) => {
                return refuse(&format!("the path belongs to {marked}"));
            }
            Some((_, mounted)) if mounted.as_ref() != Some(&top.root) => {
                return refuse("it is not what was mounted for the volume");
            }
            None if !owner.evidence.iter().any(|evidence| self.proves(evidence, top)) => {
                return refuse("the path has no volume's mark");
            }
            _ => {}
        }
        if owner.is_gone && !owner.roots.iter().any(|root| path.starts_with(root)) {
            return refuse("the volume no longer exists");
        }
        if self.mounts.iter().any(|mount| mount.path == top.path && mount.root != top.root) {
            refuse("something else lies beneath the volume's own mount")
        } else {
            Ok(())
        }
    }

    /// Marks what is mounted at the place as its owner's. Returns whether that was not known before.
    pub(super) fn adopt(&mut self, place: &OwnedPath) -> Result<bool> {
        const OPERATION: &str = "adopt";
        let path = place.path();
        let Some(root) = self.top(path).map(|top| top.root.clone()) else { return Ok(false) };
        match self.marks.get(path) {
            Some((marked, _)) if !marked.is_same(&place.owner().id) => {
                let reason = format!("the path belongs to {marked}");
                return Err(Error::new(ErrorKind::AlreadyMounted, OPERATION, reason).at(path));
            }
            Some((_, mounted)) if mounted.as_ref() == Some(&root) => return Ok(false),
            _ => {}
        }
        self.marks.insert(path.to_owned(), (place.owner().id.clone(), Some(root)));
        self.require_own(OPERATION, place).map(|()| true)
    }

    fn proves(&self, evidence: &Evidence, top: &Mount) -> bool {
        match (evidence, &top.root) {
            (Evidence::Device(number), Root::Node(node)) => {
                self.nodes.get(node).is_some_and(|node| node.number == *number)
            }
            (Evidence::Device(number), Root::Filesystem(index)) => self.superblocks[*index].number == *number,
            (Evidence::Directory(directory), Root::Directory(root)) => canonical(directory) == *root,
            (Evidence::Source { fs_type, source }, Root::Filesystem(index)) => {
                let found = &self.superblocks[*index];
                (&found.fs_type, &found.source) == (fs_type, &OsString::from(source))
            }
            _ => false,
        }
    }

    /// Unmounts every layer that is the owner's; `by_force` also what a workload uses, if it does not answer.
    pub(super) fn unmount(
        &mut self,
        operation: &'static str,
        place: &OwnedPath,
        by_force: bool,
    ) -> Result<Unmounted> {
        self.require_own(operation, place)?;
        let mut layers = 0;
        while let Some(top) = self.top(place.path()) {
            let id = top.id;
            let is_dead =
                matches!(self.health(place.path()), MountHealth::Dead(_) | MountHealth::Unresponsive);
            if self.open.contains(&id) && !(by_force && is_dead) {
                let reason = "a process has a file of it open";
                return Err(Error::new(ErrorKind::Busy, operation, reason).at(place.path()));
            }
            self.step()?;
            self.mounts.retain(|mount| mount.id != id);
            self.open.remove(&id);
            layers += 1;
        }
        Ok(if layers == 0 { Unmounted::NotMounted } else { Unmounted::Unmounted { layers } })
    }

    /// Unmounts what has lost its server or daemon.
    pub(super) fn unmount_if_lost(&mut self, place: &OwnedPath) -> Result<()> {
        use nix::libc::{ECONNREFUSED, ENOTCONN, ESTALE};
        match self.health(place.path()) {
            MountHealth::Dead(ENOTCONN | ESTALE | ECONNREFUSED) => {
                self.unmount("mount", place, true).map(drop)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn unpublish(&mut self, target: &OwnedPath, by_force: bool) -> Result<Removed> {
        let unmounted = self.unmount("unpublish", target, by_force)?;
        self.remove(target, unmounted != Unmounted::NotMounted)
    }

    pub(super) fn unstage(&mut self, staging: &OwnedPath) -> Result<Unmounted> {
        let unmounted = self.unmount("unstage", staging, true)?;
        self.unmark(staging);
        Ok(unmounted)
    }

    /// Removes the place if it was made for the owner's volume.
    pub(super) fn remove(&mut self, place: &OwnedPath, was_unmounted: bool) -> Result<Removed> {
        let path = place.path();
        let owner = place.owner();
        let fail = |reason: &str| Err(Error::new(ErrorKind::Busy, "remove", reason).at(path));
        if !self.exists(path) {
            self.marks.remove(path);
            return Ok(Removed::WasAbsent);
        }
        if self.top(path).is_some() {
            return fail("something is mounted on it");
        }
        if let Some(content) = self.content(path) {
            return fail(content);
        }
        let is_own = match self.marks.get(path) {
            Some((marked, _)) => marked.is_same(&owner.id),
            None => was_unmounted || owner.roots.iter().any(|root| path.starts_with(root)),
        };
        // A directory of the real system stays: the node changes nothing outside of itself.
        if !is_own || !(self.directories.contains(path) || self.places.contains(path)) {
            return Ok(Removed::Kept);
        }
        self.step()?;
        self.forget(path);
        Ok(Removed::Removed)
    }
}
