//! What an orchestrator asks for.

use csi_proto::v1;
use v1::volume_capability::access_mode::Mode;
use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use crate::target::Content;

/// The volume that an orchestrator wants.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) name: &'static str,
    pub(crate) content: Content,
    /// The filesystem's name; empty where it is the driver's choice.
    pub(crate) fs_type: &'static str,
    /// Its size in bytes at first.
    pub(crate) size: i64,
    /// Its size in bytes later.
    pub(crate) grown: i64,
}

impl Wanted {
    pub(crate) fn title(&self) -> String {
        let what = match (self.content, self.fs_type) {
            (Content::Device, _) => "a raw device",
            (Content::Files, "") => "a directory",
            (Content::Files, fs_type) => &format!("a filesystem, {fs_type}"),
        };
        format!("{}: {what}", self.name)
    }

    pub(crate) fn capability(&self) -> v1::VolumeCapability {
        // Two targets on one node, as two pods have them.
        let mode = AccessMode { mode: Mode::SingleNodeMultiWriter.into() };
        let access = match self.content {
            Content::Device => AccessType::Block(BlockVolume {}),
            Content::Files => {
                AccessType::Mount(MountVolume { fs_type: self.fs_type.to_owned(), ..Default::default() })
            }
        };
        v1::VolumeCapability { access_mode: Some(mode), access_type: Some(access) }
    }
}
