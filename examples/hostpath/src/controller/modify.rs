//! MODIFY_VOLUME.

use csi_core::{ControllerModifyVolume, ControllerModifyVolumeRequest, Error, Result, async_trait};

use crate::content::{self, Fill};
use crate::damage;
use crate::host::Driver;
use crate::parameters::Mutable;

#[async_trait]
impl ControllerModifyVolume for Driver {
    async fn modify_volume(&self, request: ControllerModifyVolumeRequest) -> Result<()> {
        self.with(move |host| {
            let id = request.volume_id.as_str();
            let asked = Mutable::asked(&request.mutable_parameters, &host.accepted_parameters)?;
            let modified = host.volumes.update(id, |record| {
                if asked.is_thick() {
                    damage::refuse_volume(host, id, record)?;
                    let bytes = record.created.capacity_bytes();
                    content::grow(record.kind, &host.volumes.place(id), bytes, Fill::Thick)?;
                }
                record.mutable.take(asked);
                record.created.modified(&request.mutable_parameters);
                Ok(())
            })?;
            modified.ok_or_else(|| Error::VolumeNotFound(request.volume_id.clone()))
        })
        .await
    }
}
