//! What an orchestrator asks for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use csi_proto::client::Target;
use csi_proto::{Pairs, v1};
use v1::volume_capability::access_mode::Mode;
use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use super::driver::Capabilities;
use super::target::Content;

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
pub(crate) enum TargetChecks {
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
pub(crate) struct Places {
    pub(crate) staging: PathBuf,
    pub(crate) target: PathBuf,
}

/// The volume that an orchestrator wants. Its `Debug` hides possible secrets, as csi-proto's messages do.
#[derive(Debug, Clone)]
pub struct VolumeSpec {
    pub(crate) name: String,
    /// The heading of the volume's steps.
    pub(crate) title: String,
    pub(crate) content: Content,
    /// Its filesystem, for files.
    pub(crate) mount: MountVolume,
    /// Its access mode; `None` chooses it by the driver's capabilities.
    pub(crate) mode: Option<Mode>,
    pub(crate) size: i64,
    /// Its size in bytes after the expansion.
    pub(crate) grown: i64,
    pub(crate) parameters: Pairs,
    /// A volume that exists before the run and is kept: it is not created, written to, expanded or deleted.
    pub(crate) existing: Option<v1::Volume>,
    pub(crate) checks: TargetChecks,
    pub(crate) keep: Keep,
}

impl VolumeSpec {
    /// A volume with the driver's default filesystem, which is removed at the end.
    pub fn new(name: impl Into<String>, content: Content, size: i64, grown: i64) -> Self {
        let name = name.into();
        Self {
            title: name.clone(),
            name,
            content,
            mount: MountVolume::default(),
            mode: None,
            size,
            grown,
            parameters: Pairs::default(),
            existing: None,
            checks: TargetChecks::Content,
            keep: Keep::Nothing,
        }
    }

    /// Uses this filesystem instead of the driver's default.
    #[must_use]
    pub fn fs_type(mut self, name: impl Into<String>) -> Self {
        self.mount.fs_type = name.into();
        self
    }

    /// Uses this access mode. Without it, the driver's capabilities decide.
    #[must_use]
    pub fn access_mode(self, mode: Mode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// Creates the volume with these parameters of the driver.
    #[must_use]
    pub fn parameters(self, parameters: BTreeMap<String, String>) -> Self {
        Self { parameters: parameters.into_iter().collect(), ..self }
    }

    /// Uses a volume that exists before the run and is kept: it is not created, written to, expanded or deleted.
    /// `context` is the volume context from its creation.
    #[must_use]
    pub fn existing(self, id: impl Into<String>, context: BTreeMap<String, String>) -> Self {
        let volume = v1::Volume { volume_id: id.into(), volume_context: context, ..Default::default() };
        Self { existing: Some(volume), ..self }
    }

    /// Makes the calls without looking at the mounts: the driver's are not visible to this process.
    #[must_use]
    pub fn without_mount_access(self) -> Self {
        Self { checks: TargetChecks::Off, ..self }
    }

    /// Keeps the volume where it was used.
    #[doc(hidden)]
    #[must_use]
    pub fn keep(self, keep: Keep) -> Self {
        Self { keep, ..self }
    }

    /// The heading of the volume's steps.
    #[doc(hidden)]
    #[must_use]
    pub fn title(self, title: impl Into<String>) -> Self {
        Self { title: title.into(), ..self }
    }

    /// Two targets on one node, as for two pods, have their own access mode, if the driver supports it.
    fn mode(&self, capabilities: &Capabilities) -> Mode {
        let offered =
            if capabilities.several_targets { Mode::SingleNodeMultiWriter } else { Mode::SingleNodeWriter };
        self.mode.unwrap_or(offered)
    }

    pub(crate) fn capability(&self, capabilities: &Capabilities) -> v1::VolumeCapability {
        let mode = AccessMode { mode: self.mode(capabilities).into() };
        let access = match self.content {
            Content::Device => AccessType::Block(BlockVolume {}),
            Content::Files => AccessType::Mount(self.mount.clone()),
        };
        v1::VolumeCapability { access_mode: Some(mode), access_type: Some(access) }
    }

    /// Its targets in this directory. There are two, for two pods, if the mode allows it.
    pub(crate) fn targets(&self, capabilities: &Capabilities, directory: &Path) -> Vec<Target> {
        let mode = self.mode(capabilities);
        let first = Target::new(directory.join("target"));
        let mut targets = vec![if mode.is_reader() { first.read_only() } else { first }];
        if mode.allows_several_targets() {
            targets.push(Target::new(directory.join("target-read-only")).read_only());
        }
        targets
    }

    /// How closely the targets are checked. An existing volume, or one for readers only, is not written to.
    pub(crate) fn checks(&self, capabilities: &Capabilities) -> TargetChecks {
        let is_for_readers =
            self.targets(capabilities, Path::new("")).iter().all(|target| target.is_read_only);
        if self.existing.is_some() || is_for_readers {
            return self.checks.min(TargetChecks::Mounts);
        }
        self.checks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing_secret() {
        let mut spec = VolumeSpec::new("pvc-1", Content::Files, 1, 2);
        spec.mount.mount_flags = vec!["noatime".to_owned(), "password=canary".to_owned()];
        let tokens = [(csi_proto::internal::TOKENS_KEY.to_owned(), "canary".to_owned())];
        let spec = spec.existing("pvc-1", tokens.into());
        let text = format!("{spec:?}");
        assert!(text.contains("noatime") && !text.contains("canary"), "{text}");
    }

    #[test]
    fn a_node_has_as_many_targets_as_the_mode_allows() {
        let capabilities = |several_targets| Capabilities { several_targets, ..Capabilities::default() };
        let spec = VolumeSpec::new("pvc-1", Content::Files, 1, 2);
        assert_eq!(spec.targets(&capabilities(false), Path::new("/t")).len(), 1);
        assert_eq!(spec.targets(&capabilities(true), Path::new("/t")).len(), 2);
        assert_eq!(
            spec.capability(&capabilities(true)).access_mode.unwrap().mode(),
            Mode::SingleNodeMultiWriter
        );
        let shared = VolumeSpec { mode: Some(Mode::MultiNodeMultiWriter), ..spec.clone() };
        assert_eq!(shared.targets(&capabilities(false), Path::new("/t")).len(), 2);
        let readers = VolumeSpec { mode: Some(Mode::MultiNodeReaderOnly), ..spec };
        assert_eq!(readers.checks(&capabilities(false)), TargetChecks::Mounts);
    }
}
