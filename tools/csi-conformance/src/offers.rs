//! The capabilities that a driver reports.

use std::collections::BTreeSet;

use csi_proto::v1;
use csi_proto::{ControllerCapability, NodeCapability, Rpc};
use v1::plugin_capability::Type;
use v1::plugin_capability::service::Type as PluginService;
use v1::plugin_capability::volume_expansion::Type as Expansion;

use crate::failure::Failure;

#[derive(Debug, Clone, Default)]
pub(crate) struct Capabilities {
    pub(crate) plugin: BTreeSet<i32>,
    pub(crate) expansion: BTreeSet<i32>,
    pub(crate) controller: BTreeSet<i32>,
    pub(crate) group: BTreeSet<i32>,
    pub(crate) node: BTreeSet<i32>,
    pub(crate) has_node: bool,
    pub(crate) node_id: String,
    /// The largest number of volumes that the node takes; 0 if it reports none.
    pub(crate) max_volumes: i64,
    pub(crate) place: Option<v1::Topology>,
    pub(crate) second_node_id: Option<String>,
    /// How the node refused to report its capabilities, if with another code than UNIMPLEMENTED.
    pub(crate) node_unclear: Option<Failure>,
    /// How the driver refused to validate capabilities, if for another reason than an unsupported one.
    pub(crate) uses_unclear: Option<Failure>,
    /// Why no volume could be created at all.
    pub(crate) no_volume: Option<String>,
    pub(crate) driver: String,
    pub(crate) version: String,
}

impl Capabilities {
    pub(crate) fn plugin(&self, one: PluginService) -> bool {
        self.plugin.contains(&(one as i32))
    }

    pub(crate) fn expands(&self, one: Expansion) -> bool {
        self.expansion.contains(&(one as i32))
    }

    pub(crate) fn controller(&self, one: ControllerCapability) -> bool {
        self.controller.contains(&(one as i32))
    }

    pub(crate) fn node(&self, one: NodeCapability) -> bool {
        self.node.contains(&(one as i32))
    }

    /// Whether the driver offers this RPC.
    pub(crate) fn serves(&self, rpc: Rpc) -> bool {
        use {ControllerCapability as C, NodeCapability as N, PluginService as P};
        match rpc {
            Rpc::CreateVolume | Rpc::DeleteVolume => self.controller(C::CreateDeleteVolume),
            Rpc::ControllerPublishVolume | Rpc::ControllerUnpublishVolume => {
                self.controller(C::PublishUnpublishVolume)
            }
            Rpc::ValidateVolumeCapabilities | Rpc::ControllerGetCapabilities => {
                self.plugin(P::ControllerService)
            }
            Rpc::GroupControllerGetCapabilities => self.plugin(P::GroupControllerService),
            Rpc::NodeGetCapabilities | Rpc::NodeGetInfo => self.has_node,
            Rpc::ListVolumes => self.controller(C::ListVolumes),
            Rpc::ControllerListVolumeHealth => self.controller(C::ListVolumeHealth),
            Rpc::ControllerGetVolumeHealth => self.controller(C::GetVolumeHealth),
            Rpc::GetCapacity => self.controller(C::GetCapacity),
            Rpc::CreateSnapshot | Rpc::DeleteSnapshot => self.controller(C::CreateDeleteSnapshot),
            Rpc::ListSnapshots => self.controller(C::ListSnapshots),
            Rpc::GetSnapshot => self.controller(C::GetSnapshot),
            Rpc::ControllerExpandVolume => self.controller(C::ExpandVolume),
            Rpc::ControllerGetVolume => self.controller(C::GetVolume),
            Rpc::ControllerModifyVolume => self.controller(C::ModifyVolume),
            // The only capability of the group controller has this number.
            Rpc::CreateVolumeGroupSnapshot | Rpc::DeleteVolumeGroupSnapshot | Rpc::GetVolumeGroupSnapshot => {
                self.group.contains(&1)
            }
            Rpc::GetMetadataAllocated | Rpc::GetMetadataDelta => self.plugin(P::SnapshotMetadataService),
            Rpc::NodeStageVolume | Rpc::NodeUnstageVolume => self.node(N::StageUnstageVolume),
            #[allow(deprecated, reason = "drivers of 1.12.0 still use it")]
            Rpc::NodeGetVolumeStats => self.node(N::GetVolumeStats) || self.node(N::VolumeCondition),
            Rpc::NodeGetVolumeHealth => self.node(N::GetVolumeHealth),
            Rpc::NodeGetStorageHealth => self.node(N::GetStorageHealth),
            Rpc::NodeExpandVolume => self.node(N::ExpandVolume),
            _ => true,
        }
    }

    pub(crate) fn take_plugin(&mut self, answer: v1::GetPluginCapabilitiesResponse) {
        for one in answer.capabilities {
            match one.r#type {
                Some(Type::Service(service)) => self.plugin.insert(service.r#type),
                Some(Type::VolumeExpansion(expansion)) => self.expansion.insert(expansion.r#type),
                None => false,
            };
        }
    }
}

/// The numbers in a list of capabilities. All three services use the same form.
macro_rules! numbers {
    ($answer:expr, $path:path) => {
        $answer.capabilities.into_iter().filter_map(|one| one.r#type.map(|$path(rpc)| rpc.r#type)).collect()
    };
}
pub(crate) use numbers;
