//! Mounting a filesystem.

use std::path::Path;

use crate::{Error, ErrorKind, MountOptions, Outcome, Result, Target};

/// A mount of a filesystem to be made.
#[derive(Debug, Clone)]
#[must_use = "nothing is mounted before `at`"]
pub struct Mount<'a> {
    fs_type: &'a str,
    source: &'a Path,
    options: MountOptions,
}

impl<'a> Mount<'a> {
    /// A mount of this type of filesystem (`"ext4"`, `"tmpfs"`) from this source, usually a block device.
    pub fn new(fs_type: &'a str, source: &'a (impl AsRef<Path> + ?Sized)) -> Self {
        Self { fs_type, source: source.as_ref(), options: MountOptions::new() }
    }

    /// With these options.
    pub fn options(mut self, options: &MountOptions) -> Self {
        self.options = options.clone();
        self
    }

    /// Mounts it.
    ///
    /// # Errors
    /// To come.
    pub fn at(self, target: &Target) -> Result<Outcome> {
        let _ = (self.fs_type, self.source, self.options);
        Err(Error::new(ErrorKind::Unsupported, "mount", "not there yet").at(target.path()))
    }
}
