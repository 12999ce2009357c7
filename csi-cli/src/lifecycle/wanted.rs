//! What an orchestrator asks for.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use csi_proto::redact::{ContextMap, MountFlags};
use csi_proto::v1;
use v1::volume_capability::access_mode::Mode;
use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use super::introductions::Offers;
use super::target::Content;
use crate::secrets::Secrets;

/// What becomes of what was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// It is taken away.
    Nothing,
    /// It stays, for a look.
    Everything,
}

/// How closely the targets are looked at, beside the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Looks {
    /// Not at all: the driver's mounts are not to be seen from here.
    Nowhere,
    /// At the mounts; nothing is written.
    AtMounts,
    /// At the mounts; files are written and read, and so are raw devices.
    Inside,
}

/// Where the orchestrator puts volumes: directories that are there. The play makes one of the volume's name in each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Where they are staged.
    pub staging: PathBuf,
    /// Where they are published.
    pub target: PathBuf,
}

/// A volume that is there before the play and stays: it is neither made, nor written to, nor grown, nor deleted.
#[derive(Clone, PartialEq, Eq)]
pub struct Premade {
    /// Its id.
    pub id: String,
    /// What the driver told of it when it was made.
    pub context: BTreeMap<String, String>,
}

/// The volume that an orchestrator wants. Its `Debug` hides what may be secret, as csi-proto's messages do.
#[derive(Clone)]
pub struct Wanted {
    /// The name that CreateVolume gets.
    pub name: String,
    /// The heading of its steps.
    pub title: String,
    /// What is at its targets.
    pub content: Content,
    /// The filesystem's name; empty where it is the driver's choice.
    pub fs_type: String,
    /// How it is mounted.
    pub mount_flags: Vec<String>,
    /// The group that gets its files; empty where none is asked for.
    pub mount_group: String,
    /// How it is shared; by what the driver offers if it is not said.
    pub mode: Option<Mode>,
    /// Its size in bytes at first.
    pub size: i64,
    /// Its size in bytes later.
    pub grown: i64,
    /// The driver's parameters of the volume.
    pub parameters: BTreeMap<String, String>,
    /// The secrets of every call that takes some.
    pub secrets: Secrets,
    /// The volume, where it is there already.
    pub premade: Option<Premade>,
    /// How closely its targets are looked at.
    pub looks: Looks,
    /// What becomes of it in the end.
    pub keep: Keep,
}

impl fmt::Debug for Premade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Premade").field("id", &self.id).field("context", &ContextMap(&self.context)).finish()
    }
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wanted")
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
            .field("premade", &self.premade)
            .field("looks", &self.looks)
            .field("keep", &self.keep)
            .finish_non_exhaustive()
    }
}

impl Wanted {
    /// A volume with the driver's own choice of filesystem, and all of it taken away in the end.
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
            premade: None,
            looks: Looks::Inside,
            keep: Keep::Nothing,
        }
    }

    /// Two targets on one node, as two pods have them, have a mode of their own, where it is offered.
    fn mode(&self, offers: &Offers) -> Mode {
        let offered =
            if offers.several_targets { Mode::SingleNodeMultiWriter } else { Mode::SingleNodeWriter };
        self.mode.unwrap_or(offered)
    }

    /// How it is used.
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

    /// Its targets on the node: by name, with what each takes. Two pods of one node have two, where the mode allows it.
    pub(crate) fn targets(&self, offers: &Offers) -> &'static [(&'static str, Access)] {
        match self.mode(offers) {
            Mode::Unknown | Mode::SingleNodeWriter | Mode::SingleNodeSingleWriter => {
                &[("target", Access::ReadWrite)]
            }
            Mode::SingleNodeReaderOnly => &[("target", Access::ReadOnly)],
            Mode::MultiNodeReaderOnly => {
                &[("target", Access::ReadOnly), ("target-read-only", Access::ReadOnly)]
            }
            Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter | Mode::SingleNodeMultiWriter => {
                &[("target", Access::ReadWrite), ("target-read-only", Access::ReadOnly)]
            }
        }
    }

    /// How closely to look: into a volume that is somebody's, or for readers only, nothing is written.
    pub(crate) fn looks(&self, offers: &Offers) -> Looks {
        let is_for_readers = self.targets(offers).iter().all(|(_, access)| *access == Access::ReadOnly);
        match self.premade.is_some() || is_for_readers {
            true => self.looks.min(Looks::AtMounts),
            false => self.looks,
        }
    }
}

/// Whether a target takes writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    ReadWrite,
    ReadOnly,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing_secret() {
        let mut wanted = Wanted::new("pvc-1", Content::Files, 1, 2);
        wanted.secrets.set("key", "canary");
        wanted.mount_flags = vec!["noatime".to_owned(), "password=canary".to_owned()];
        let tokens = [(csi_proto::redact::TOKENS_KEY.to_owned(), "canary".to_owned())];
        wanted.premade = Some(Premade { id: "pvc-1".to_owned(), context: tokens.into() });
        let text = format!("{wanted:?}");
        assert!(text.contains("key") && text.contains("noatime") && !text.contains("canary"), "{text}");
    }

    #[test]
    fn a_node_has_as_many_targets_as_the_mode_allows() {
        let offers = |several_targets| Offers { several_targets, ..Offers::default() };
        let wanted = Wanted::new("pvc-1", Content::Files, 1, 2);
        assert_eq!(wanted.targets(&offers(false)).len(), 1);
        assert_eq!(wanted.targets(&offers(true)).len(), 2);
        assert_eq!(wanted.capability(&offers(true)).access_mode.unwrap().mode(), Mode::SingleNodeMultiWriter);
        let shared = Wanted { mode: Some(Mode::MultiNodeMultiWriter), ..wanted.clone() };
        assert_eq!(shared.targets(&offers(false)).len(), 2);
        let readers = Wanted { mode: Some(Mode::MultiNodeReaderOnly), ..wanted };
        assert_eq!(readers.looks(&offers(false)), Looks::AtMounts);
    }
}
