//! Volumes' health as callers of spec v1.12.0 read it: VOLUME_CONDITION, a field of ListVolumes and
//! ControllerGetVolume. The driver reports health in the form of v1.13.0 only.

use std::collections::BTreeMap;
use std::sync::Arc;

use csi_proto::v1;

use super::list::ListedVolume;
use super::{
    ControllerGetVolumeHealth, ControllerGetVolumeHealthRequest, ControllerListVolumeHealth,
    ControllerListVolumeHealthRequest, Page, VolumeListing,
};
use crate::call::request::PluginContext;
use crate::error::{Error, Result};
use crate::types::VolumeId;
use crate::types::health::condition;

/// The sources of volumes' conditions. The default has none: no older caller is served.
#[derive(Clone, Default)]
pub(crate) struct Conditions {
    pub(crate) get: Option<Arc<dyn ControllerGetVolumeHealth>>,
    pub(crate) list: Option<Arc<dyn ControllerListVolumeHealth>>,
}

impl Conditions {
    // spec: controller-get-volume.condition
    pub(crate) async fn add_to_volume(
        &self,
        volume: VolumeListing,
        plugin: Option<Arc<PluginContext>>,
    ) -> Result<ListedVolume> {
        let condition = self.of_volume(&volume.volume.volume_id, plugin).await?;
        Ok(ListedVolume { condition, volume })
    }

    #[allow(deprecated, reason = "the form of v1.12.0 is what this is for")]
    async fn of_volume(
        &self,
        id: &VolumeId,
        plugin: Option<Arc<PluginContext>>,
    ) -> Result<Option<v1::VolumeCondition>> {
        let Some(driver) = &self.get else { return Ok(None) };
        let wire = v1::ControllerGetVolumeHealthRequest { volume_id: id.to_string(), ..Default::default() };
        let health = driver.volume_health(ControllerGetVolumeHealthRequest::of_plugin(wire, plugin)?).await;
        Ok(condition(health))
    }

    /// Adds the conditions of the page's volumes. If the driver lists unhealthy volumes, that list is read
    /// instead of querying each volume.
    // spec: list-volumes.condition
    pub(crate) async fn add_to_page(
        &self,
        page: Page<VolumeListing>,
        plugin: Option<Arc<PluginContext>>,
    ) -> Result<Page<ListedVolume>> {
        let mut conditions = Vec::with_capacity(page.entries.len());
        match &self.list {
            Some(driver) if !page.entries.is_empty() => {
                let mut unhealthy_conditions = unhealthy_conditions(&**driver, plugin.as_ref()).await?;
                for volume in &page.entries {
                    let condition = unhealthy_conditions.remove(&volume.volume.volume_id);
                    conditions.push(Some(condition.unwrap_or_else(well)));
                }
            }
            _ => {
                for volume in &page.entries {
                    conditions.push(self.of_volume(&volume.volume.volume_id, plugin.clone()).await?);
                }
            }
        }
        let mut conditions = conditions.into_iter();
        page.try_map(|volume| Ok(ListedVolume { volume, condition: conditions.next().flatten() }))
    }
}

#[allow(deprecated, reason = "the form of v1.12.0 is what this is for")]
type ConditionsById = BTreeMap<VolumeId, v1::VolumeCondition>;

async fn unhealthy_conditions(
    driver: &dyn ControllerListVolumeHealth,
    plugin: Option<&Arc<PluginContext>>,
) -> Result<ConditionsById> {
    let mut found = ConditionsById::new();
    let mut starting_token = String::new();
    loop {
        let wire = v1::ControllerListVolumeHealthRequest { starting_token, ..Default::default() };
        let asked = wire.starting_token.clone();
        let request = ControllerListVolumeHealthRequest::of_plugin(wire, plugin.cloned())?;
        let page = driver.list_volume_health(request).await?;
        found.extend(page.entries.into_iter().map(|health| (health.volume_id.clone(), health.condition())));
        match page.next_token {
            None => return Ok(found),
            Some(next) if next.as_str() == asked => {
                return Err(Error::broken("next_token is the starting_token: the listing would never end"));
            }
            Some(next) => starting_token = next.into(),
        }
    }
}

#[allow(deprecated, reason = "the form of v1.12.0 is what this is for")]
fn well() -> v1::VolumeCondition {
    v1::VolumeCondition { abnormal: false, message: "nothing is wrong".to_owned() }
}
