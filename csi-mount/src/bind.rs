//! Bind mounts that have their attributes from the start, wherever they are seen.

use std::path::Path;

use crate::{Error, ErrorKind, MountAttributes, Result, Target};

/// What a mount call found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was mounted.
    Mounted,
    /// The same thing with the same attributes was mounted there already.
    AlreadyMounted,
}

/// A bind mount to be made.
#[derive(Debug, Clone)]
#[must_use = "nothing is mounted before `at`"]
pub struct Bind<'a> {
    source: &'a Path,
    attributes: MountAttributes,
    depth: Depth,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    Single,
    Recursive,
}

impl<'a> Bind<'a> {
    /// A bind of this file or directory.
    pub fn new(source: &'a (impl AsRef<Path> + ?Sized)) -> Self {
        Self { source: source.as_ref(), attributes: MountAttributes::empty(), depth: Depth::Single }
    }

    /// Adds attributes to those that the source's mount has.
    pub fn attributes(mut self, attributes: MountAttributes) -> Self {
        self.attributes = attributes;
        self
    }

    /// Takes the mounts below the source along.
    pub fn recursive(mut self) -> Self {
        self.depth = Depth::Recursive;
        self
    }

    /// Mounts it.
    ///
    /// # Errors
    /// To come.
    pub fn at(self, target: &Target) -> Result<Outcome> {
        let _ = (self.source, self.attributes, self.depth);
        Err(Error::new(ErrorKind::Unsupported, "bind", "not there yet").at(target.path()))
    }
}
