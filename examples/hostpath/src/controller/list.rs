//! LIST_VOLUMES, LIST_VOLUMES_PUBLISHED_NODES and GET_VOLUME.

use csi_core::{
    ControllerGetVolume, ControllerGetVolumeRequest, Error, ListVolumes, ListVolumesRequest, Page, Pager,
    Result, VolumeListing, async_trait,
};

use crate::host::Driver;

#[async_trait]
impl ListVolumes for Driver {
    async fn list_volumes(&self, request: ListVolumesRequest) -> Result<Page<VolumeListing>> {
        let pager = Pager::new(request.max_entries, request.starting_token.as_ref())?;
        let page = self.volumes.visit(pager.range(), |found| {
            pager.page(found.map(|(id, record)| (id.to_owned(), (id.to_owned(), record))))
        })?;
        let entries = page.entries.into_iter().map(|(id, record)| record.listing(&id));
        Ok(Page::new(entries.collect::<Result<_>>()?, page.next_token))
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
