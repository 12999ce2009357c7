//! Which version of the spec is served.

#[cfg(feature = "grpc-reflection")]
use csi_proto::Rpc;

use crate::choice::choice;
use crate::error::{Error, Result};

/// The version of the spec that the plugin serves: [`Plugin::spec`](crate::Plugin::spec).
///
/// The default is v1.12.0. All current callers know this version, and test suites for it stop at a
/// capability number that they do not know. A caller of v1.13.0 loses only optional calls: it reads volumes'
/// health from VOLUME_CONDITION instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Spec {
    /// v1.12.0: no capability, RPC or field of a later version. Health that the driver reports through
    /// GET_VOLUME_HEALTH is returned as VOLUME_CONDITION.
    #[default]
    V1_12,
    /// v1.13.0: also GET_VOLUME_HEALTH, LIST_VOLUME_HEALTH, GET_STORAGE_HEALTH and
    /// SNAPSHOT_ACCESSIBILITY_CONSTRAINTS.
    V1_13,
}

impl Spec {
    /// Whether this version has the RPC.
    #[cfg(feature = "grpc-reflection")]
    pub(crate) const fn has(self, rpc: Rpc) -> bool {
        let is_newer = matches!(
            rpc,
            Rpc::ControllerGetVolumeHealth
                | Rpc::ControllerListVolumeHealth
                | Rpc::NodeGetVolumeHealth
                | Rpc::NodeGetStorageHealth
        );
        match self {
            Self::V1_12 => !is_newer,
            Self::V1_13 => true,
        }
    }
}

choice!(Spec of "spec": V1_12 = "v1.12", V1_13 = "v1.13");
