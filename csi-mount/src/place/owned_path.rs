//! A path of a volume on a node, before it is opened.

use std::path::{Path, PathBuf};

use super::owner::Owner;
use crate::error::Result;
use crate::place::target::Target;

/// A path on a node, and the volume that owns what is mounted there.
#[derive(Debug, Clone)]
#[must_use]
pub struct OwnedPath {
    path: PathBuf,
    owner: Owner,
}

impl OwnedPath {
    /// An absolute path with the owner of its volume.
    pub fn new(path: impl Into<PathBuf>, owner: Owner) -> Self {
        Self { path: path.into(), owner }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The owner of what is mounted there.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Opens the path as a target.
    ///
    /// # Errors
    /// Those of [`Target::new`].
    pub fn target(&self) -> Result<Target> {
        Ok(Target::new(&self.path)?.owned_by(self.owner.clone()))
    }
}
