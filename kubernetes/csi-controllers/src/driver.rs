//! The name and capabilities of the driver in this process, read once at the start.

use std::collections::HashSet;
use std::time::Duration;

use csi_proto::ControllerCapability;
use csi_proto::v1;
use csi_proto::v1::controller_service_capability::Type::Rpc;
use csi_proto::v1::group_controller_service_capability::Type::Rpc as GroupRpc;
use csi_proto::v1::group_controller_service_capability::rpc::Type as GroupCapability;
use csi_proto::v1::plugin_capability::service::Type as PluginCapability;
use csi_proto::v1::plugin_capability::{self, volume_expansion};
use tokio::time::sleep;

use crate::calls::Calls;
use crate::error::Result;

/// What the driver is and can do.
#[derive(Debug, Default)]
pub(crate) struct Driver {
    pub(crate) name: String,
    controller: HashSet<ControllerCapability>,
    pub(crate) has_topology: bool,
    pub(crate) has_group_snapshots: bool,
    /// Whether the driver expands volumes at all, be it on the node only.
    pub(crate) expands: bool,
    /// It expands no volume that is in use.
    pub(crate) expands_offline: bool,
}

impl Driver {
    pub(crate) async fn read(calls: &Calls) -> Result<Self> {
        // Without the field the driver is ready.
        while calls.call(v1::ProbeRequest {}).await?.ready == Some(false) {
            tracing::info!("the driver is not ready yet");
            sleep(Duration::from_secs(1)).await;
        }
        let name = calls.call(v1::GetPluginInfoRequest {}).await?.name;
        let mut driver = Self { name, ..Self::default() };
        let mut serves = HashSet::new();
        for capability in calls.call(v1::GetPluginCapabilitiesRequest {}).await?.capabilities {
            match capability.r#type {
                Some(plugin_capability::Type::Service(service)) => {
                    serves.insert(service.r#type());
                }
                Some(plugin_capability::Type::VolumeExpansion(expansion)) => {
                    driver.expands = expansion.r#type() != volume_expansion::Type::Unknown;
                    driver.expands_offline = expansion.r#type() == volume_expansion::Type::Offline;
                }
                None => {}
            }
        }
        driver.has_topology = serves.contains(&PluginCapability::VolumeAccessibilityConstraints);
        if serves.contains(&PluginCapability::ControllerService) {
            let all = calls.call(v1::ControllerGetCapabilitiesRequest {}).await?.capabilities.into_iter();
            driver.controller = all.filter_map(|one| one.r#type.map(|Rpc(rpc)| rpc.r#type())).collect();
        }
        if serves.contains(&PluginCapability::GroupControllerService) {
            let all = calls.call(v1::GroupControllerGetCapabilitiesRequest {}).await?.capabilities;
            let snapshots = GroupCapability::CreateDeleteGetVolumeGroupSnapshot;
            let mut types = all.into_iter().filter_map(|one| one.r#type);
            driver.has_group_snapshots = types.any(|GroupRpc(rpc)| rpc.r#type() == snapshots);
        }
        Ok(driver)
    }

    pub(crate) fn can(&self, capability: ControllerCapability) -> bool {
        self.controller.contains(&capability)
    }

    pub(crate) fn modifies(&self) -> bool {
        self.can(ControllerCapability::ModifyVolume)
    }

    /// Whether the controller knows its volumes' health: by the calls of spec v1.13, or by those of v1.12.
    #[allow(deprecated, reason = "drivers of spec v1.12 have VOLUME_CONDITION")]
    pub(crate) fn reports_health(&self) -> bool {
        let finds = self.can(ControllerCapability::ListVolumes) || self.can(ControllerCapability::GetVolume);
        self.can(ControllerCapability::GetVolumeHealth)
            || (self.can(ControllerCapability::VolumeCondition) && finds)
    }

    pub(crate) fn snapshots(&self) -> bool {
        self.can(ControllerCapability::CreateDeleteSnapshot)
    }
}
