//! A complete CSI driver for block volumes: a volume is an image file of a pool, attached as a loop device, formatted
//! with the filesystem that the StorageClass names (ext4, xfs or btrfs), or handed out raw.
use std::path::{Path, PathBuf};
use std::{fs, io, sync::Arc};

use csi_core::mount::{Filesystem, LoopDevice, LoopOptions};
use csi_core::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The pool of images.
struct Images(PathBuf);

/// The StorageClass may say `csi.storage.k8s.io/fstype`, which is not the driver's, and nothing else.
#[derive(serde::Deserialize)]
struct Params {}

impl Images {
    fn image(&self, id: &VolumeId) -> Result<PathBuf> {
        Ok(self.0.join(id.as_file_name()?))
    }

    /// Runs `work` on the image of a volume, where blocking does no harm.
    async fn with<T: Send + 'static>(
        &self,
        id: &VolumeId,
        work: impl FnOnce(&Path) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let image = self.image(id)?;
        blocking(move || work(&image)).await
    }
}

/// The size of an image, if it is there.
fn size(image: &Path) -> Result<Option<u64>> {
    match image.metadata() {
        Ok(found) => Ok(Some(found.len())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Makes the image, unless it is there, and answers with its size. Its name comes last: nobody finds a half of it.
fn create(image: &Path, wanted: u64) -> Result<u64> {
    if let Some(found) = size(image)? {
        return Ok(found);
    }
    let unfinished = image.with_file_name(format!(".{}", image.file_name().unwrap_or_default().display()));
    fs::File::create(&unfinished)?.set_len(wanted)?;
    fs::rename(unfinished, image)?;
    Ok(wanted)
}

/// The device that the image is attached as on this node, if it is.
fn device(image: &Path) -> Result<Option<LoopDevice>> {
    if size(image)?.is_none() { Ok(None) } else { Ok(LoopDevice::find(image)?.into_iter().next()) }
}

#[async_trait]
impl Controller for Images {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        let found = self.with(id, size).await?;
        Ok(found.map(|bytes| Volume::new(id.clone(), bytes)))
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        let known = capability.fs_type().is_none_or(|name| name.parse::<Filesystem>().is_ok());
        known && !capability.access_mode.is_multi_node()
    }
}

#[async_trait]
impl CreateDeleteVolume for Images {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        let Params {} = request.parameters.parse()?;
        let filesystems = request.volume_capabilities.iter().filter_map(|one| one.fs_type()?.parse().ok());
        let least = filesystems.map(Filesystem::minimum_size).max().unwrap_or(MIB);
        let wanted = request.capacity_range.at_least(least).choose(GIB, MIB)?;
        let id = VolumeId::from_name(&request.name)?;
        let bytes = self.with(&id, move |image| create(image, wanted)).await?;
        Ok(Volume::new(id, bytes))
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        self.with(&request.volume_id, |image| match device(image)? {
            Some(device) => {
                Err(Error::InUse(format!("the volume is attached as {}", device.path().display())))
            }
            None => Ok(fs::remove_file(image)?),
        })
        .await
    }
}

#[async_trait]
impl ExpandVolume for Images {
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded> {
        let id = request.volume_id.clone();
        let capacity_bytes = self
            .with(&request.volume_id, move |image| {
                let now = size(image)?.ok_or(Error::VolumeNotFound(id))?;
                let wanted = request.capacity_range.choose(now, MIB)?.max(now);
                fs::File::options().write(true).open(image)?.set_len(wanted)?;
                Ok(wanted)
            })
            .await?;
        Ok(Expanded { capacity_bytes, node_expansion_required: true })
    }
}

#[async_trait]
impl BlockDevices for Images {
    async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
        let attach =
            |image: &Path| Ok(LoopDevice::attach_or_find(image, &LoopOptions::new())?.path().to_owned());
        self.lookup(&volume.volume_id).await?.ok_or(Error::VolumeNotFound(volume.volume_id.clone()))?;
        self.with(&volume.volume_id, attach).await
    }

    async fn device(&self, id: &VolumeId) -> Result<Option<PathBuf>> {
        self.with(id, |image| Ok(device(image)?.map(|device| device.path().to_owned()))).await
    }

    async fn refresh(&self, id: &VolumeId) -> Result<()> {
        self.with(id, |image| Ok(device(image)?.map_or(Ok(()), |device| device.refresh_size())?)).await
    }

    async fn detach(&self, id: &VolumeId) -> Result<()> {
        self.with(id, |image| Ok(device(image)?.map_or(Ok(()), LoopDevice::detach)?)).await
    }
}

/// The driver, with its images in `pool`.
pub fn plugin(pool: PathBuf) -> Plugin {
    let images = Arc::new(Images(pool));
    let controller = ControllerService::new(images.clone())
        .create_delete_volume()
        .expand_volume(Expansion::Online)
        .single_node_multi_writer();
    Plugin::new("block.csi.example.org", env!("CARGO_PKG_VERSION"))
        .controller(controller)
        .node(BlockNode::service(images).single_node_multi_writer())
}
