//! A complete CSI driver for block volumes over iSCSI. A volume is an image file; its controller makes it a
//! logical unit of the kernel's own target (LIO), by configfs. Its node attaches that unit over TCP.
//! The target is on one machine: `lio.rs` is what a real driver replaces by its storage system's API.
mod lio;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::{fs, io, sync::Arc, sync::Mutex, sync::PoisonError};

use csi_core::controller::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, PublishUnpublishVolume, Published,
};
use csi_core::mount::Filesystem;
use csi_core::mount::flow::block::StagePlan;
use csi_core::mount::remote::{IscsiTarget, LunId};
use csi_core::mount::reservation::Fencing;
use csi_core::node_plugins::{PublishRecord, RemoteDisks};
use csi_core::records::Records;
use csi_core::{Result, prelude::*};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The nodes that use the pool. A real driver takes the UID of the namespace `kube-system`.
const CLUSTER: &str = "example";

/// What is known about a volume. The serial number never belongs to another volume, the LUN can.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Lun {
    serial: String,
    number: u64,
    had_filesystem: bool,
    #[serde(default)]
    published: PublishRecord,
}

/// The pool: the images, and the target that serves them.
#[derive(Clone)]
struct Pool {
    images: PathBuf,
    luns: Records<Lun>,
    /// Held while a number is chosen, and while a record is changed.
    numbers: Arc<Mutex<()>>,
    portal: SocketAddr,
    disks: RemoteDisks,
}

impl Pool {
    fn image(&self, id: &VolumeId) -> Result<PathBuf> {
        Ok(self.images.join(id.as_file_name()?))
    }

    /// Serves the volumes again that a restart of the machine took away.
    fn start(&self) -> Result<()> {
        lio::start()?;
        for (id, lun) in self.luns.list()?.records {
            let image = self.image(&VolumeId::new(id)?)?;
            if let Ok(found) = image.metadata() {
                lio::serve(&image, found.len(), lun.number, &lun.serial)?;
                if lun.published.published_node().is_some() {
                    lio::allow(lun.number, &lio::initiator()?)?;
                }
            }
        }
        lio::listen(self.portal)
    }

    /// The volume's record, made if there is none.
    fn reserve(&self, id: &VolumeId) -> Result<Lun> {
        let _alone = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lun) = self.luns.get(id)? {
            return Ok(lun);
        }
        let found = self.luns.list()?;
        // It can have any number.
        if let Some(error) = found.unreadable.into_iter().next() {
            return Err(error);
        }
        let used: Vec<u64> = found.records.values().map(|lun| lun.number).collect();
        let number = (1..).find(|number| !used.contains(number)).unwrap_or(u64::MAX);
        let serial = fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned();
        let lun = Lun { serial, number, had_filesystem: false, published: PublishRecord::default() };
        self.luns.put(id, &lun).map(|()| lun)
    }

    /// Changes the volume's record.
    fn change(&self, id: &VolumeId, change: impl FnOnce(&mut Lun) -> Result<()>) -> Result<Lun> {
        let _alone = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lun = self.luns.get(id)?.ok_or_else(|| Error::VolumeNotFound(id.clone()))?;
        change(&mut lun)?;
        self.luns.put(id, &lun).map(|()| lun)
    }

    fn volume(&self, id: &VolumeId) -> Result<Option<Volume>> {
        let lun = self.luns.get(id)?;
        let image = self.image(id)?;
        let (Some(lun), true) = (lun, image.try_exists().at("look for", &image)?) else { return Ok(None) };
        let bytes = image.metadata().at("look at", &image)?.len();
        Ok((bytes > 0).then(|| {
            Volume::new(id.clone(), bytes)
                .context("lun", lun.number.to_string())
                .context("serial", lun.serial)
                .context("portal", self.portal.to_string())
        }))
    }

    fn create(&self, id: &VolumeId, bytes: u64) -> Result<Volume> {
        let lun = self.reserve(id)?;
        let image = self.image(id)?;
        let file = fs::File::options().create(true).truncate(false).write(true).open(&image);
        let file = file.at("create", &image)?;
        if file.metadata().at("look at", &image)?.len() == 0
            && let Err(error) = file.set_len(bytes)
        {
            // The caller gives up after an error such as OUT_OF_RANGE.
            self.delete(id)?;
            return Err(error).at("size", &image);
        }
        let bytes = file.metadata().at("look at", &image)?.len();
        lio::serve(&image, bytes, lun.number, &lun.serial)?;
        self.volume(id)?.ok_or_else(|| Error::Internal("the volume was deleted meanwhile".into()))
    }

    fn delete(&self, id: &VolumeId) -> Result<()> {
        if let Some(lun) = self.luns.get(id)? {
            lio::withdraw(lun.number)?;
        }
        let image = self.image(id)?;
        match fs::remove_file(&image) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.at("remove", &image)?,
        }
        self.luns.remove(id).map(drop)
    }

    fn grow(&self, id: &VolumeId, range: &CapacityRange) -> Result<u64> {
        let gone = || Error::VolumeNotFound(id.clone());
        let now = self.volume(id)?.ok_or_else(gone)?.capacity_bytes;
        let lun = self.luns.get(id)?.ok_or_else(gone)?;
        let wanted = range.choose(now, MIB)?.max(now);
        let image = self.image(id)?;
        fs::File::options()
            .write(true)
            .open(&image)
            .and_then(|file| file.set_len(wanted))
            .at("grow", &image)?;
        lio::grow(lun.number, wanted).map(|()| wanted)
    }

    /// Runs `work` on a thread that is allowed to block.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let pool = self.clone();
        blocking(move || work(&pool)).await
    }

    /// The whole of what the node must know: this volume is this target.
    fn target(&self, volume: &Attachment) -> Result<IscsiTarget> {
        let context = &volume.volume_context;
        let bad = |reason: &str| Error::invalid("volume_context", reason);
        let portal = context.require("portal")?.parse().map_err(|_| bad("portal is not an address"))?;
        let number = context.require("lun")?.parse().map_err(|_| bad("lun is not a number"))?;
        let serial = LunId::serial(context.require("serial")?)?;
        Ok(IscsiTarget::new(lio::IQN, number, serial)?.portal(portal))
    }
}

#[async_trait]
impl Controller for Pool {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        let id = id.clone();
        self.run(move |pool| pool.volume(&id)).await
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        let known = capability.fs_type().is_none_or(|name| name.parse::<Filesystem>().is_ok());
        known && !capability.access_mode.is_multi_node()
    }
}

#[async_trait]
impl CreateDeleteVolume for Pool {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        request.parameters.check_keys(&[])?;
        let sizes = request.volume_capabilities.iter().map(VolumeCapability::min_device_size);
        let wanted = request.capacity_range.at_least(sizes.fold(MIB, u64::max)).choose(GIB, MIB)?;
        let id = VolumeId::from_name(&request.name)?;
        self.run(move |pool| pool.create(&id, wanted)).await
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        // On several machines the target's own list of connected hosts says this.
        if let Some(device) = self.disks.device(&Attachment::new(request.volume_id.clone())).await? {
            return Err(Error::InUse(format!("attached as {}", device.display()).into()));
        }
        self.run(move |pool| pool.delete(&request.volume_id)).await
    }
}

#[async_trait]
impl ControllerExpandVolume for Pool {
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded> {
        let grown = self.run(move |pool| pool.grow(&request.volume_id, &request.capacity_range)).await?;
        Ok(Expanded::node_expansion_required(grown))
    }
}

/// The target shows a unit to the node that it is published to. The record says which node the storage lets write: the
/// node's plugin reserves the disk by it.
#[async_trait]
impl PublishUnpublishVolume for Pool {
    async fn publish_volume(&self, request: ControllerPublishVolumeRequest) -> Result<Published> {
        // All of the pool is on this machine. A real driver asks its storage system for the node.
        if request.node_id != self.info().await?.node_id {
            return Err(Error::NodeNotFound(request.node_id.clone()));
        }
        let lun = self.run(move |pool| {
            let lun = pool.change(&request.volume_id, |lun| lun.published.publish(&request.node_id))?;
            lio::allow(lun.number, &lio::initiator()?).map(|()| lun)
        });
        Ok(Published::new(lun.await?.published.context(CLUSTER).into()))
    }

    async fn unpublish_volume(&self, request: ControllerUnpublishVolumeRequest) -> Result<()> {
        let unpublished = self.run(move |pool| {
            pool.change(&request.volume_id, |lun| {
                // A node that is cut off can't write from here on, also if no other node gets the volume.
                let node = lun.published.published_node();
                if request.node_id.as_ref().is_none_or(|id| node == Some(id.as_str())) {
                    lio::forbid(lun.number)?;
                }
                lun.published.unpublish(request.node_id.as_ref());
                Ok(())
            })
        });
        match unpublished.await {
            // A deleted volume is attached nowhere. After an error the call would be repeated for ever.
            Err(Error::VolumeNotFound(_)) => Ok(()),
            done => done.map(drop),
        }
    }
}

#[async_trait]
impl BlockDevices for Pool {
    async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
        if self.luns.get(&volume.volume_id)?.is_none() {
            return Err(Error::VolumeNotFound(volume.volume_id.clone()));
        }
        self.disks.attach(volume, self.target(volume)?).await
    }

    async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
        self.disks.device(volume).await
    }

    async fn plan(&self, volume: &Attachment, capability: &VolumeCapability) -> Result<StagePlan> {
        let plan = stage_plan(capability)?.expect(self.target(volume)?.expected());
        let lun = self.luns.get(&volume.volume_id)?;
        Ok(if lun.is_some_and(|lun| lun.had_filesystem) { plan.never_format() } else { plan })
    }

    async fn staged(&self, volume: &Attachment) -> Result<()> {
        let id = volume.volume_id.clone();
        self.run(move |pool| {
            pool.change(&id, |lun| {
                lun.had_filesystem = true;
                Ok(())
            })
        })
        .await
        .map(drop)
    }

    /// A node that is cut off must not write when another one has the volume.
    fn fencing(&self) -> Fencing {
        Fencing::IfSupported
    }

    fn attachments_directory(&self) -> Option<PathBuf> {
        Some(self.images.with_file_name("contexts"))
    }

    async fn refresh(&self, volume: &Attachment) -> Result<()> {
        self.disks.refresh(volume).await
    }

    async fn detach(&self, volume: &Attachment) -> Result<()> {
        self.disks.detach(volume).await
    }
}

/// Returns the driver, which keeps its images and records in `pool` and serves them at `portal`.
///
/// # Errors
/// Those of the target's configuration: the modules `iscsi_target_mod`, `target_core_file` and `iscsi_tcp`, configfs
/// and open-iscsi are needed.
pub fn plugin(pool: PathBuf, portal: SocketAddr) -> Result<Plugin> {
    let images = pool.join("images");
    fs::create_dir_all(&images).at("create", &images)?;
    let luns = Records::open(pool.join("luns"))?;
    let disks = RemoteDisks::new(pool.join("attached"));
    let volumes = Arc::new(Pool { images, luns, numbers: Arc::default(), portal, disks });
    volumes.start()?;
    let controller = ControllerService::new(volumes.clone())
        .create_delete_volume()
        .publish_unpublish_volume()
        .expand_volume(Expansion::Online)
        .single_node_multi_writer();
    Ok(Plugin::new("iscsi.csi.example.org", env!("CARGO_PKG_VERSION"))
        .own_directory(pool)
        .controller(controller)
        .node(BlockNode::service(volumes).single_node_multi_writer()))
}

#[cfg(test)]
mod tests {
    use csi_core::proto::v1;

    use super::*;

    /// It would be repeated for ever, and keep the VolumeAttachment.
    #[tokio::test]
    async fn a_deleted_volume_can_be_detached() {
        let directory = tempfile::tempdir().unwrap();
        let pool = Pool {
            images: directory.path().to_owned(),
            luns: Records::open(directory.path().join("luns")).unwrap(),
            numbers: Arc::default(),
            portal: "127.0.0.1:0".parse().unwrap(),
            disks: RemoteDisks::new(directory.path().join("attached")),
        };
        let detach = v1::ControllerUnpublishVolumeRequest {
            volume_id: "deleted".to_owned(),
            node_id: "node-1".to_owned(),
            ..Default::default()
        };
        pool.unpublish_volume(detach.try_into().unwrap()).await.unwrap();
    }
}
