//! Whether what is mounted at a place is its owner's: known by the mark of the place, or by evidence.

use rustix::fs::FileType;

use crate::error::{Error, ErrorKind, Result};
use crate::path::lookup;
use crate::place::mark::MarkedMount;
use crate::place::owner::Evidence;
use crate::place::target::{OpenTarget, Target};
use crate::sys::ids::MountId;
use crate::table::details::{Details, is_fuse};
use crate::table::facts;
use crate::table::mountinfo::mounts;

impl Target {
    /// See [`Mounts::refuse_foreign`](crate::Mounts::refuse_foreign).
    pub(crate) fn refuse_foreign(&self) -> Result<()> {
        const OPERATION: &str = "use";
        match self.require_own(OPERATION) {
            Err(error) if error.kind() == ErrorKind::NotOwned && !self.is_markable(OPERATION) => Ok(()),
            known => known.map(drop),
        }
    }

    /// See [`Mounts::adopt`](crate::Mounts::adopt).
    pub(crate) fn adopt(&self) -> Result<bool> {
        const OPERATION: &str = "adopt";
        let Some(owner) = self.owner() else { return Ok(false) };
        let Some((opened, top)) = self.open_mounted(OPERATION)? else { return Ok(false) };
        if let Some(found) = self.mark(OPERATION)?
            && found.owner.is_same(&owner.id)
            && is_marked(found.mounted, &opened, &top)
        {
            return Ok(false);
        }
        self.layers(OPERATION, &opened, &top, None)?;
        self.mark_existing(OPERATION, &opened.facts)?;
        if self.mark(OPERATION)?.is_none() {
            let reason =
                "its filesystem stores no extended attributes, so it can't be marked as the volume's";
            return Err(Error::new(ErrorKind::Unsupported, OPERATION, reason).at(self.path()));
        }
        Ok(true)
    }

    /// Every mount at the target, if each is known to be its owner's. None if the target has no owner.
    ///
    /// # Errors
    /// [`ErrorKind::NotOwned`], naming the first mount that is not.
    pub(crate) fn require_own(&self, operation: &'static str) -> Result<Option<Vec<MountId>>> {
        let Some(owner) = self.owner() else { return Ok(None) };
        let Some((opened, top)) = self.open_mounted(operation)? else { return Ok(Some(Vec::new())) };
        let mark = self.mark(operation)?;
        if let Some(found) = mark.as_ref().filter(|found| !found.owner.is_same(&owner.id)) {
            return Err(self.refuse_mount(operation, &top, &format!("the path belongs to {}", found.owner)));
        }
        let is_proven = match &mark {
            Some(mark) => is_marked(mark.mounted, &opened, &top),
            None => owner.evidence.iter().any(|evidence| proves(evidence, &opened, &top)),
        };
        if !is_proven {
            let why = match mark {
                Some(_) => "it is not what was mounted for the volume",
                None => "the path has no volume's mark",
            };
            return Err(self.refuse_mount(operation, &top, why));
        }
        if owner.is_gone && !self.is_in_roots_of(owner) {
            let roots = &owner.roots;
            let why = format!("the volume no longer exists, and no volume root is above the path: {roots:?}");
            let hint = "if it is a target of this node, name a directory above it in the volume roots \
                        (Owner::roots; VOLUME_ROOTS of a driver)";
            return Err(self.refuse_mount(operation, &top, &why).hint(hint));
        }
        let mounted = mark.map(|mark| mark.mounted);
        self.layers(operation, &opened, &top, mounted).map(Some)
    }

    /// The proven mount and the mounts beneath it. Each of them must have the same root directory, or be a FUSE filesystem
    /// that has lost its daemon.
    fn layers(
        &self,
        operation: &'static str,
        opened: &OpenTarget,
        top: &Details,
        marked: Option<MarkedMount>,
    ) -> Result<Vec<MountId>> {
        let mut layers = vec![top.id];
        if top.parent == opened.directory.mount {
            return Ok(layers);
        }
        let table = mounts()?;
        let entry = |id: MountId| table.iter().find(|entry| entry.id == id);
        let proven = entry(top.id);
        let mut next = top.parent;
        while next != opened.directory.mount {
            let (Some(proven), Some(layer)) = (proven, entry(next)) else { break };
            let can_be_lost = marked == Some(MarkedMount::Fuse) && is_fuse(&layer.fs_type);
            if !can_be_lost && (!layer.shows_same(proven) || layer.fs_type != proven.fs_type) {
                let layer = Details::from(layer.clone());
                return Err(self.refuse_mount(operation, &layer, "it lies beneath the volume's own mount"));
            }
            layers.push(next);
            next = layer.parent;
        }
        Ok(layers)
    }

    pub(crate) fn refuse_mount(&self, operation: &'static str, found: &Details, why: &str) -> Error {
        let owner = self.owner().map_or_else(String::new, |owner| owner.id.to_string());
        let reason = format!("{found} is not known to belong to {owner}: {why}");
        Error::new(ErrorKind::NotOwned, operation, reason)
            .at(self.path())
            .hint("find out what it is; if it is not needed, unmount it by hand")
    }
}

/// Whether the topmost mount is the one that the mark names.
fn is_marked(mounted: MarkedMount, opened: &OpenTarget, top: &Details) -> bool {
    match mounted {
        MarkedMount::NotYet => false,
        MarkedMount::Fuse => is_fuse(&top.fs_type),
        // A filesystem that shut down does not report even the inode number of its root.
        MarkedMount::Root(device, _) if opened.facts.is_broken() => top.is_on(device),
        MarkedMount::Root(device, inode) => (device, inode) == (opened.facts.device, opened.facts.inode),
    }
}

fn proves(evidence: &Evidence, opened: &OpenTarget, top: &Details) -> bool {
    match evidence {
        Evidence::Device(number) if opened.facts.file_type == FileType::BlockDevice => {
            opened.facts.node == *number
        }
        Evidence::Device(number) => top.is_on(*number),
        Evidence::Directory(path) => {
            let found = lookup::open_path(path, rustix::fs::OFlags::DIRECTORY).and_then(facts::from_fd);
            found.is_ok_and(|found| found.is_same_file(&opened.facts))
        }
        Evidence::Source { fs_type, source } => top.fs_type == *fs_type && top.source == **source,
    }
}
