//! Volumes attached to nodes, and the lists of all volumes and snapshots.

use csi_core::controller::{
    ControllerGetVolume, ControllerGetVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, ListVolumes, ListVolumesRequest, Page, Pager, PublishUnpublishVolume,
    Published, VolumeListing,
};

use super::*;

#[async_trait]
impl PublishUnpublishVolume for Memory {
    async fn publish_volume(&self, request: ControllerPublishVolumeRequest) -> Result<Published> {
        let id = request.volume_id.as_str().to_owned();
        let mut state = self.state();
        if !state.volumes.contains_key(&id) {
            return Err(Error::VolumeNotFound(request.volume_id));
        }
        match state.attached.get(&id) {
            Some((node, _)) if *node != request.node_id => {
                return Err(Error::PublishedElsewhere(node.clone()));
            }
            Some((_, earlier)) if earlier.readonly != request.readonly => {
                return Err(Error::Incompatible("it is attached in another way".into()));
            }
            _ if !request.node_id.as_str().starts_with("node-") => {
                return Err(Error::NodeNotFound(request.node_id));
            }
            _ => {}
        }
        self.attached.reserve(&request.node_id, &request.volume_id)?.keep();
        let access = if request.readonly { "read-only" } else { "read-write" };
        state.attached.insert(id, (request.node_id.clone(), request));
        Ok(Published::new([("access".to_owned(), access.to_owned())].into()))
    }

    async fn unpublish_volume(&self, request: ControllerUnpublishVolumeRequest) -> Result<()> {
        let mut state = self.state();
        let attached = state.attached.get(request.volume_id.as_str()).map(|(node, _)| node.clone());
        if let Some(node) = attached.filter(|node| request.node_id.as_ref().is_none_or(|one| one == node)) {
            state.attached.remove(request.volume_id.as_str());
            self.attached.release(&node, &request.volume_id);
        }
        Ok(())
    }
}

impl Memory {
    fn listing(state: &State, known: &Known) -> VolumeListing {
        let attached = state.attached.get(known.volume.volume_id.as_str());
        let published_node_ids = attached.map(|(node, _)| node.clone());
        VolumeListing::new(known.volume.clone(), published_node_ids)
    }
}

#[async_trait]
impl ListVolumes for Memory {
    async fn list_volumes(&self, request: ListVolumesRequest) -> Result<Page<VolumeListing>> {
        let state = self.state();
        let pager = Pager::new(request.max_entries, request.starting_token.as_ref())?;
        let entries = state.volumes.range::<str, _>(pager.range());
        pager.page(entries.map(|(id, known)| (id, Self::listing(&state, known))))
    }
}

#[async_trait]
impl ControllerGetVolume for Memory {
    async fn get_volume(&self, request: ControllerGetVolumeRequest) -> Result<VolumeListing> {
        let state = self.state();
        let known = state.volumes.get(request.volume_id.as_str());
        known.map(|known| Self::listing(&state, known)).ok_or(Error::VolumeNotFound(request.volume_id))
    }
}
