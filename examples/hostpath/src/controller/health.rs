//! GET_VOLUME_HEALTH and LIST_VOLUME_HEALTH: the damage of volumes on the disk.

use csi_core::{
    ControllerGetVolumeHealth, ControllerGetVolumeHealthRequest, ControllerListVolumeHealth,
    ControllerListVolumeHealthRequest, Error, Page, Pager, Result, VolumeHealth, VolumeId, async_trait,
};

use crate::damage::{self, Disk};
use crate::host::Driver;

#[async_trait]
impl ControllerGetVolumeHealth for Driver {
    async fn volume_health(&self, request: ControllerGetVolumeHealthRequest) -> Result<VolumeHealth> {
        self.with(move |host| {
            let volume_id = request.volume_id;
            let record = host.volumes.find(volume_id.as_str())?;
            let record = record.ok_or_else(|| Error::VolumeNotFound(volume_id.clone()))?;
            let entries = damage::of_volume(host, volume_id.as_str(), &record, &Disk::of(host));
            Ok(VolumeHealth::new(volume_id, entries))
        })
        .await
    }
}

#[async_trait]
impl ControllerListVolumeHealth for Driver {
    async fn list_volume_health(
        &self,
        request: ControllerListVolumeHealthRequest,
    ) -> Result<Page<VolumeHealth>> {
        let pager = Pager::new(request.max_entries, request.starting_token.as_ref())?;
        self.with(move |host| {
            let (mut unhealthy, disk) = (Vec::new(), Disk::of(host));
            for (id, record) in host.volumes.from(pager.from()) {
                let entries = damage::of_volume(host, &id, &record, &disk);
                if !entries.is_empty() {
                    let volume_id = VolumeId::new(&id)?;
                    unhealthy.push((id, VolumeHealth::new(volume_id, entries)));
                }
            }
            pager.page(unhealthy)
        })
        .await
    }
}
