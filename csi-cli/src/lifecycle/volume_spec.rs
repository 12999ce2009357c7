//! What an orchestrator asks for.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use csi_proto::client::Target;
use csi_proto::redact::{ContextMap, MountFlags};
use csi_proto::v1;
use v1::volume_capability::access_mode::Mode;
use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use super::discovery::Offers;
use super::target::Content;
use crate::secrets::Secrets;

/// What happens to everything that was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// It is removed.
    Nothing,
    /// It is kept for inspection.
    Everything,
}

/// How closely the targets are checked, in addition to the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TargetChecks {
    /// Not at all: the driver's mounts are not visible here.
    Off,
    /// The mounts are checked; nothing is written.
    Mounts,
    /// The mounts are checked; files and raw devices are written and read.
    Content,
}

/// The orchestrator's directories for volumes. Both must exist. The run creates a directory with the
/// volume's name in each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The directory for staging.
    pub staging: PathBuf,
    /// The directory for publishing.
    pub target: PathBuf,
}

/// A volume that exists before the run and is kept: it is not created, written to, expanded or deleted.
#[derive(Clone, PartialEq, Eq)]
pub struct ExistingVolume {
    /// Its id.
    pub id: String,
    /// The volume context from its creation.
    pub context: BTreeMap<String, String>,
}

/// The volume that an orchestrator wants. Its `Debug` hides possible secrets, as csi-proto's messages do.
#[derive(Clone)]
pub struct VolumeSpec {
    /// The name for CreateVolume.
    pub name: String,
    /// The heading of the volume's steps.
    pub title: String,
    /// The type of its targets.
    pub content: Content,
    /// The filesystem's name; empty if the driver chooses it.
    pub fs_type: String,
    /// Its mount flags.
    pub mount_flags: Vec<String>,
    /// The group that owns its files; empty for none.
    pub mount_group: String,
    /// Its access mode; `None` chooses it by the driver's capabilities.
    pub mode: Option<Mode>,
    /// Its initial size in bytes.
    pub size: i64,
    /// Its size in bytes after the expansion.
    pub grown: i64,
    /// The driver's parameters for the volume.
    pub parameters: BTreeMap<String, String>,
    /// The secrets for every call that takes some.
    pub secrets: Secrets,
    /// The volume, if it exists already.
    pub existing: Option<ExistingVolume>,
    /// How closely its targets are checked.
    pub checks: TargetChecks,
    /// What happens to it at the end.
    pub keep: Keep,
}

impl fmt::Debug for ExistingVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExistingVolume")
            .field("id", &self.id)
            .field("context", &ContextMap(&self.context))
            .finish()
    }
}

impl fmt::Debug for VolumeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeSpec")
            .field("name", &self.name)
            .field("content", &self.content)
            .field("fs_type", &self.fs_type)
            .field("mount_flags", &MountFlags(&self.mount_flags))
            .field("mount_group", &self.mount_group)
            .field("mode", &self.mode)
            .field("size", &self.size)
            .field("grown", &self.grown)
            .field("parameters", &ContextMap(&self.parameters))
            .field("secrets", &self.secrets)
            .field("existing", &self.existing)
            .field("checks", &self.checks)
            .field("keep", &self.keep)
            .finish_non_exhaustive()
    }
}

impl VolumeSpec {
    /// A volume with the driver's default filesystem, which is removed at the end.
    pub fn new(name: impl Into<String>, content: Content, size: i64, grown: i64) -> Self {
        let name = name.into();
        Self {
            title: name.clone(),
            name,
            content,
            fs_type: String::new(),
            mount_flags: Vec::new(),
            mount_group: String::new(),
            mode: None,
            size,
            grown,
            parameters: BTreeMap::new(),
            secrets: Secrets::default(),
            existing: None,
            checks: TargetChecks::Content,
            keep: Keep::Nothing,
        }
    }

    /// Two targets on one node, as for two pods, have their own access mode, if the driver supports it.
    fn mode(&self, offers: &Offers) -> Mode {
        let offered =
            if offers.several_targets { Mode::SingleNodeMultiWriter } else { Mode::SingleNodeWriter };
        self.mode.unwrap_or(offered)
    }

    /// Its capability.
    pub(crate) fn capability(&self, offers: &Offers) -> v1::VolumeCapability {
        let mode = AccessMode { mode: self.mode(offers).into() };
        let access = match self.content {
            Content::Device => AccessType::Block(BlockVolume {}),
            Content::Files => AccessType::Mount(MountVolume {
                fs_type: self.fs_type.clone(),
                mount_flags: self.mount_flags.clone(),
                volume_mount_group: self.mount_group.clone(),
            }),
        };
        v1::VolumeCapability { access_mode: Some(mode), access_type: Some(access) }
    }

    /// Its targets in this directory. There are two, for two pods, if the mode allows it.
    pub(crate) fn targets(&self, offers: &Offers, directory: &Path) -> Vec<Target> {
        let first = Target::new(directory.join("target"));
        let second = || Target::new(directory.join("target-read-only")).read_only();
        match self.mode(offers) {
            Mode::Unknown | Mode::SingleNodeWriter | Mode::SingleNodeSingleWriter => vec![first],
            Mode::SingleNodeReaderOnly => vec![first.read_only()],
            Mode::MultiNodeReaderOnly => vec![first.read_only(), second()],
            Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter | Mode::SingleNodeMultiWriter => {
                vec![first, second()]
            }
        }
    }

    /// How closely the targets are checked. An existing volume, or one for readers only, is not written to.
    pub(crate) fn checks(&self, offers: &Offers) -> TargetChecks {
        let is_for_readers = self.targets(offers, Path::new("")).iter().all(|target| target.is_read_only);
        match self.existing.is_some() || is_for_readers {
            true => self.checks.min(TargetChecks::Mounts),
            false => self.checks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing_secret() {
        let mut spec = VolumeSpec::new("pvc-1", Content::Files, 1, 2);
        spec.secrets.set("key", "canary");
        spec.mount_flags = vec!["noatime".to_owned(), "password=canary".to_owned()];
        let tokens = [(csi_proto::redact::TOKENS_KEY.to_owned(), "canary".to_owned())];
        spec.existing = Some(ExistingVolume { id: "pvc-1".to_owned(), context: tokens.into() });
        let text = format!("{spec:?}");
        assert!(text.contains("key") && text.contains("noatime") && !text.contains("canary"), "{text}");
    }

    #[test]
    fn a_node_has_as_many_targets_as_the_mode_allows() {
        let offers = |several_targets| Offers { several_targets, ..Offers::default() };
        let spec = VolumeSpec::new("pvc-1", Content::Files, 1, 2);
        assert_eq!(spec.targets(&offers(false), Path::new("/t")).len(), 1);
        assert_eq!(spec.targets(&offers(true), Path::new("/t")).len(), 2);
        assert_eq!(spec.capability(&offers(true)).access_mode.unwrap().mode(), Mode::SingleNodeMultiWriter);
        let shared = VolumeSpec { mode: Some(Mode::MultiNodeMultiWriter), ..spec.clone() };
        assert_eq!(shared.targets(&offers(false), Path::new("/t")).len(), 2);
        let readers = VolumeSpec { mode: Some(Mode::MultiNodeReaderOnly), ..spec };
        assert_eq!(readers.checks(&offers(false)), TargetChecks::Mounts);
    }
}
