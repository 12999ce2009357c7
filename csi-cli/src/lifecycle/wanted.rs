//! What an orchestrator asks for.

use std::collections::BTreeMap;
use std::path::PathBuf;

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Premade {
    /// Its id.
    pub id: String,
    /// What the driver told of it when it was made.
    pub context: BTreeMap<String, String>,
}

/// The volume that an orchestrator wants.
#[derive(Debug, Clone)]
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
                ..Default::default()
            }),
        };
        v1::VolumeCapability { access_mode: Some(mode), access_type: Some(access) }
    }

    /// Whether a node may have it at several targets.
    pub(crate) fn has_several_targets(&self, offers: &Offers) -> bool {
        match self.mode(offers) {
            Mode::SingleNodeWriter
            | Mode::SingleNodeReaderOnly
            | Mode::SingleNodeSingleWriter
            | Mode::Unknown => false,
            Mode::MultiNodeReaderOnly
            | Mode::MultiNodeSingleWriter
            | Mode::MultiNodeMultiWriter
            | Mode::SingleNodeMultiWriter => true,
        }
    }

    /// How closely to look: into a volume that is somebody's, or for readers only, nothing is written.
    pub(crate) fn looks(&self, offers: &Offers) -> Looks {
        let readers = matches!(self.mode(offers), Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly);
        match self.premade.is_some() || readers {
            true => self.looks.min(Looks::AtMounts),
            false => self.looks,
        }
    }
}
