//! A complete CSI driver for block volumes. A volume is an image file, attached as a loop device. It has a
//! filesystem (ext4, xfs or btrfs, as the StorageClass names it) or is published raw.
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::{fs, fs::File, fs::Permissions, path::Path, path::PathBuf, sync::Arc};

use csi_core::mount::{Filesystem, LoopOptions, flow::block::StagePlan};
use csi_core::{Result, prelude::*};

const MIB: u64 = 1 << 20;
/// The mode of an image that has had a filesystem: it is never formatted again, even if it reads as blank. A
/// driver that keeps records of its volumes stores this fact there.
const STAGED: u32 = 0o1600;

/// The pool: the directory of the image files.
struct Images(PathBuf);

impl Images {
    /// Runs `work` on the image of a volume, on a thread that is allowed to block.
    async fn with<T: Send + 'static>(
        &self,
        id: &VolumeId,
        work: impl FnOnce(&Path) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let image = self.0.join(id.as_file_name()?);
        blocking(move || work(&image)).await
    }
}

/// The size of an image in bytes; `None` if the image does not exist.
fn size(image: &Path) -> Result<Option<u64>> {
    let found = image.try_exists().and_then(|there| there.then(|| image.metadata()).transpose());
    Ok(found.at("look at", image)?.map(|found| found.len()))
}

/// Creates the image unless it exists, and returns its size. An empty image is left by a creation that was
/// killed: the next creation completes it, and a deletion removes it.
fn create(image: &Path, wanted: u64) -> Result<u64> {
    fs::create_dir_all(image.parent().unwrap_or(image)).at("create the directory of", image)?;
    let file = File::options().create(true).truncate(false).write(true).open(image).at("create", image)?;
    let found = file.metadata().at("look at", image)?.len();
    let size = || file.set_len(wanted).inspect_err(|_| drop(fs::remove_file(image)));
    if found == 0 { size().at("size", image).map(|()| wanted) } else { Ok(found) }
}

#[async_trait]
impl Controller for Images {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        Ok(self.with(id, size).await?.map(|bytes| Volume::new(id.clone(), bytes)))
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        let known = capability.fs_type().is_none_or(|name| name.parse::<Filesystem>().is_ok());
        known && !capability.access_mode.is_multi_node()
    }
}

#[async_trait]
impl CreateDeleteVolume for Images {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        request.parameters.check_keys(&[])?;
        let sizes = request.volume_capabilities.iter().map(VolumeCapability::min_device_size);
        let wanted = request.capacity_range.at_least(sizes.fold(MIB, u64::max)).choose(1024 * MIB, MIB)?;
        let id = VolumeId::from_name(&request.name)?;
        self.with(&id, move |image| create(image, wanted)).await.map(|bytes| Volume::new(id, bytes))
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        let host = request.host().clone();
        self.with(&request.volume_id, move |image| match host.devices().loop_devices(image)?.first() {
            Some(device) => Err(Error::InUse(format!("attached as {}", device.path.display()).into())),
            None => fs::remove_file(image).at("remove", image),
        })
        .await
    }
}

#[async_trait]
impl ControllerExpandVolume for Images {
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded> {
        let id = request.volume_id.clone();
        let grow = move |image: &Path| {
            let now = size(image)?.ok_or(Error::VolumeNotFound(id))?;
            let wanted = request.capacity_range.choose(now, MIB)?.max(now);
            let file = File::options().write(true).open(image);
            file.and_then(|file| file.set_len(wanted)).at("grow", image).map(|()| wanted)
        };
        self.with(&request.volume_id, grow).await.map(Expanded::node_expansion_required)
    }
}

#[async_trait]
impl BlockDevices for Images {
    async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
        let host = volume.host().clone();
        let attach = move |image: &Path| Ok(host.devices().loop_attach(image, &LoopOptions::new())?.path);
        self.lookup(&volume.volume_id).await?.ok_or(Error::VolumeNotFound(volume.volume_id.clone()))?;
        self.with(&volume.volume_id, attach).await
    }

    async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
        let host = volume.host().clone();
        // It is found also if the image was deleted by hand.
        let first = move |image: &Path| Ok(host.devices().loop_devices(image)?.pop().map(|one| one.path));
        self.with(&volume.volume_id, first).await
    }

    async fn plan(&self, volume: &Attachment, capability: &VolumeCapability) -> Result<StagePlan> {
        let was_staged = |image: &Path| Ok(image.metadata().is_ok_and(|it| it.mode() & STAGED == STAGED));
        let plan = stage_plan(capability)?;
        Ok(if self.with(&volume.volume_id, was_staged).await? { plan.never_format() } else { plan })
    }

    async fn staged(&self, volume: &Attachment) -> Result<()> {
        let mark = |image: &Path| Ok(fs::set_permissions(image, Permissions::from_mode(STAGED))?);
        self.with(&volume.volume_id, mark).await
    }

    async fn refresh(&self, volume: &Attachment) -> Result<()> {
        let host = volume.host().clone();
        self.with(&volume.volume_id, move |image| Ok(host.devices().loop_refresh(image)?)).await
    }

    async fn detach(&self, volume: &Attachment) -> Result<()> {
        let host = volume.host().clone();
        self.with(&volume.volume_id, move |image| Ok(host.devices().loop_detach(image).map(drop)?)).await
    }
}

/// Returns the driver, which keeps its images in `pool`.
pub fn plugin(pool: PathBuf) -> Plugin {
    let images = Arc::new(Images(pool.clone()));
    let controller = ControllerService::new(images.clone())
        .create_delete_volume()
        .expand_volume(Expansion::Online)
        .single_node_multi_writer();
    Plugin::new("block.csi.example.org", env!("CARGO_PKG_VERSION"))
        .own_directory(pool)
        .controller(controller)
        .node(BlockNode::service(images).single_node_multi_writer())
}
