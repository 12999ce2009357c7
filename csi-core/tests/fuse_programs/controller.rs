//! The driver's controller: a volume is a directory of the program's storage.

use csi_core::mount::internal::mount_state;
use csi_core::*;

use super::Vendor;

#[async_trait]
impl Controller for Vendor {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        let exists = self.volume(id.as_file_name()?).is_dir();
        Ok(exists.then(|| Volume::new(id.clone(), 0)))
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        capability.is_mount() && !capability.access_mode.is_multi_node()
    }
}

#[async_trait]
impl CreateDeleteVolume for Vendor {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        let id = VolumeId::from_name(&request.name)?;
        if self.lookup(&id).await?.is_none() {
            self.create(id.as_str());
        }
        Ok(Volume::new(id, 0))
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        let id = request.volume_id.as_str();
        let mounted = self.mounted.lock().unwrap().get(id).cloned();
        if let Some(path) = mounted
            && mount_state(path)?.mount_point().is_some()
        {
            return Err(Error::InUse(format!("volume {id} is staged").into()));
        }
        remove_tree(request.host(), self.volume(request.volume_id.as_file_name()?)).await
    }
}
