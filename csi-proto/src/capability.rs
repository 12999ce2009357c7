//! How a volume is used: access modes by what they allow, and the usual capabilities.

use crate::v1;
use v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode};

impl Mode {
    /// The modes that a volume can have, in the spec's order.
    pub const ALL: [Self; 7] = [
        Self::SingleNodeWriter,
        Self::SingleNodeReaderOnly,
        Self::MultiNodeReaderOnly,
        Self::MultiNodeSingleWriter,
        Self::MultiNodeMultiWriter,
        Self::SingleNodeSingleWriter,
        Self::SingleNodeMultiWriter,
    ];

    /// Whether the volume is only read.
    pub fn is_reader(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }

    /// Whether a node publishes the volume at several targets, by the spec's table of a second
    /// NodePublishVolume.
    pub fn allows_several_targets(self) -> bool {
        matches!(
            self,
            Self::MultiNodeReaderOnly
                | Self::MultiNodeSingleWriter
                | Self::MultiNodeMultiWriter
                | Self::SingleNodeMultiWriter
        )
    }

    /// Whether only drivers with the capability SINGLE_NODE_MULTI_WRITER know the mode.
    pub fn needs_single_node_multi_writer(self) -> bool {
        matches!(self, Self::SingleNodeSingleWriter | Self::SingleNodeMultiWriter)
    }
}

impl v1::VolumeCapability {
    /// A volume that is mounted, with the driver's default filesystem and no mount flags.
    pub fn mount(mode: Mode) -> Self {
        Self {
            access_mode: Some(AccessMode { mode: mode.into() }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }
    }

    /// A volume that is used as a raw block device.
    pub fn block(mode: Mode) -> Self {
        Self {
            access_mode: Some(AccessMode { mode: mode.into() }),
            access_type: Some(AccessType::Block(BlockVolume {})),
        }
    }
}
