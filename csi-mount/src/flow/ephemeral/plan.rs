//! How an ephemeral volume is mounted, and whether an existing mount is that volume.

use super::Content;
use crate::error::{Error, ErrorKind, Result};
use crate::mounting::options::MountOptions;
use crate::mounting::{MOUNT, attach};
use crate::place::target::Target;
use crate::sys::attributes::MountAttributes;
use crate::table::details::Details;

/// The default size. Certificates and similar content are about a thousandth of it.
const DEFAULT_SIZE: u64 = 16 << 20;
/// The kernel takes 255 bytes for a source.
const MAX_NAME_BYTES: usize = 200;

/// How an ephemeral volume is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct EphemeralPlan {
    source: String,
    pub(crate) size: u64,
    pub(crate) attributes: MountAttributes,
    pub(super) group: Option<u32>,
}

impl EphemeralPlan {
    /// A plan for the volume of this name. The mount is nosuid, nodev and writable.
    ///
    /// The mount table shows the name. A later publish, also from a later process, recognizes the volume by
    /// it.
    pub fn new(name: impl AsRef<str>) -> Self {
        Self {
            source: format!("content:{}", name.as_ref()),
            size: DEFAULT_SIZE,
            attributes: MountAttributes::NOSUID | MountAttributes::NODEV,
            group: None,
        }
    }

    /// Adds these attributes: [`RDONLY`](MountAttributes::RDONLY) stops writes of the workload, but not of
    /// [`publish`](crate::EphemeralVolumes::publish).
    pub fn attributes(mut self, attributes: MountAttributes) -> Self {
        self.attributes = self.attributes.combined_with(attributes);
        self
    }

    /// Sets the size in bytes; the default is 16 MiB.
    ///
    /// Content can take half of it, so that one version and the next fit at the same time. The size is set
    /// by the first publish and does not change later.
    pub fn size(mut self, size: u64) -> Self {
        self.size = size;
        self
    }

    /// Sets the group of files and directories. Their modes stay as in the content.
    pub fn group(mut self, group: u32) -> Self {
        self.group = Some(group);
        self
    }

    /// The source that the mount table shows.
    pub fn source(&self) -> &str {
        &self.source
    }

    pub(super) fn options(&self) -> Result<MountOptions> {
        let options = MountOptions::new()
            .with_attributes(self.attributes.difference(MountAttributes::RDONLY))
            .with_option("size", &self.size.to_string())?
            .with_option("mode", "0755")?;
        match self.group {
            Some(group) => options.with_option("gid", &group.to_string()),
            None => Ok(options),
        }
    }

    pub(crate) fn check(&self, content: &Content) -> Result<()> {
        let name = self.source.trim_start_matches("content:");
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains('\0') {
            let reason = format!(
                "the volume's name is empty, contains a NUL, or is longer than {MAX_NAME_BYTES} bytes"
            );
            return Err(Error::new(ErrorKind::InvalidInput, "publish", reason));
        }
        let footprint = content.footprint();
        let size = self.size;
        if footprint > size / 2 {
            let reason = format!(
                "the content needs {footprint} bytes, more than half of the volume's size ({})",
                size / 2
            );
            return Err(
                Error::new(ErrorKind::OutOfRange, "publish", reason).hint("increase the size of the volume")
            );
        }
        Ok(())
    }

    /// Refuses an existing mount unless it is this volume with the same attributes.
    pub(super) fn accept(&self, target: &Target, found: &Details) -> Result<()> {
        if found.fs_type != "tmpfs" || found.source != *self.source {
            let difference = format!("{} is not mounted", self.source);
            return Err(attach::refuse(MOUNT, target, found, &difference));
        }
        attach::require_attributes(MOUNT, target, found, self.attributes)
    }
}
