//! Health: one volume is degraded, for two reasons.

use csi_core::controller::{
    ControllerGetVolumeHealth, ControllerGetVolumeHealthRequest, ControllerListVolumeHealth,
    ControllerListVolumeHealthRequest, Page, Pager,
};
use csi_core::types::{VolumeHealth, VolumeHealthEntry, VolumeHealthStatus};

use super::*;

impl Memory {
    fn health(id: &VolumeId) -> VolumeHealth {
        let entry =
            |status, reason: &str| VolumeHealthEntry::new(status, reason.to_owned(), "it was made so");
        let entries = match id.as_str() {
            UNWELL => vec![
                entry(VolumeHealthStatus::Degraded, "ReplicaLost"),
                entry(VolumeHealthStatus::DataLoss, "BadBlocks"),
            ],
            _ => vec![],
        };
        VolumeHealth::new(id.clone(), entries)
    }
}

#[async_trait]
impl ControllerGetVolumeHealth for Memory {
    async fn volume_health(&self, request: ControllerGetVolumeHealthRequest) -> Result<VolumeHealth> {
        let found = self.lookup(&request.volume_id).await?;
        found.ok_or(Error::VolumeNotFound(request.volume_id.clone()))?;
        Ok(Self::health(&request.volume_id))
    }
}

#[async_trait]
impl ControllerListVolumeHealth for Memory {
    async fn list_volume_health(
        &self,
        request: ControllerListVolumeHealthRequest,
    ) -> Result<Page<VolumeHealth>> {
        let pager = Pager::new(request.max_entries, request.starting_token.as_ref())?;
        let unwell = Some(UNWELL).filter(|id| pager.from().is_none_or(|from| *id > from));
        let entries = unwell.into_iter().map(|id| Ok((id, Self::health(&VolumeId::new(id)?))));
        pager.page(entries.collect::<Result<Vec<_>>>()?)
    }
}
