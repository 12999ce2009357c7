//! LIST_VOLUMES, LIST_VOLUMES_PUBLISHED_NODES and GET_VOLUME; GET_VOLUME_HEALTH and LIST_VOLUME_HEALTH, from the
//! damage of volumes on the disk.

use csi_core::controller::{
    ControllerGetVolume, ControllerGetVolumeHealth, ControllerGetVolumeHealthRequest,
    ControllerGetVolumeRequest, ControllerListVolumeHealth, ControllerListVolumeHealthRequest, ListVolumes,
    ListVolumesRequest, Page, Pager, VolumeListing,
};
use csi_core::types::VolumeHealth;
use csi_core::{Error, Result, VolumeId, async_trait};

use crate::damage::{self, Disk};
use crate::host::Driver;

#[async_trait]
impl ListVolumes for Driver {
    async fn list_volumes(&self, request: ListVolumesRequest) -> Result<Page<VolumeListing>> {
        let pager = Pager::new(request.max_entries, request.starting_token.as_ref())?;
        let page = self.volumes.visit(pager.range(), |found| {
            pager.page(found.map(|(id, record)| (id.to_owned(), (id.to_owned(), record))))
        })?;
        page.try_map(|(id, record)| record.listing(&id))
    }
}

#[async_trait]
impl ControllerGetVolume for Driver {
    async fn get_volume(&self, request: ControllerGetVolumeRequest) -> Result<VolumeListing> {
        let id = request.volume_id;
        let record = self.volumes.find(id.as_str())?;
        record.ok_or_else(|| Error::VolumeNotFound(id.clone()))?.listing(id.as_str())
    }
}

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
            let mut unhealthy = Vec::new();
            let disk = Disk::of(host);
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
