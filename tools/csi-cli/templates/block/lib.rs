//! The CSI driver {{driver}}: a volume is a block device, with a filesystem or raw. Here
//! the device is a loop device over an image file; put your storage's calls in place of it.
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::{fs, sync::Arc};

use csi_core::mount::{Filesystem, LoopOptions, flow::block::StagePlan};
use csi_core::{Result, prelude::*};

const NAME: &str = "{{driver}}";
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The mode of an image that has had a filesystem: it is never formatted again, even if it reads as blank.
/// Storage with records of its volumes keeps this fact there.
const STAGED: u32 = 0o1600;

#[derive(clap::Parser, Clone)]
#[command(about = "The CSI driver {{driver}}")]
pub struct Args {
    /// The directory that has the images
    #[arg(long, env = "DATA_DIR", value_name = "PATH", default_value = "/var/lib/{{name}}")]
    pub root: PathBuf,

    #[command(flatten)]
    pub driver: DriverArgs,
}

struct Driver(Args);

impl Driver {
    /// Runs `work` on the image of a volume, on a thread that is allowed to block.
    async fn with<T: Send + 'static>(
        &self,
        id: &VolumeId,
        work: impl FnOnce(&Path) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let image = self.0.root.join(id.as_file_name()?);
        blocking(move || work(&image)).await
    }
}

/// The size of an image in bytes; `None` if the image does not exist.
fn size(image: &Path) -> Result<Option<u64>> {
    let found = image.try_exists().and_then(|exists| exists.then(|| image.metadata()).transpose());
    Ok(found.at("look at", image)?.map(|found| found.len()))
}

/// Creates the image unless it exists, and returns its size. A creation that was killed leaves an empty image: the
/// next creation completes it.
fn create(image: &Path, wanted: u64) -> Result<u64> {
    fs::create_dir_all(image.parent().unwrap_or(image)).at("create the directory of", image)?;
    let file =
        fs::File::options().create(true).truncate(false).write(true).open(image).at("create", image)?;
    let size = || file.set_len(wanted).inspect_err(|_| drop(fs::remove_file(image)));
    match file.metadata().at("look at", image)?.len() {
        0 => size().at("size", image).map(|()| wanted),
        found => Ok(found),
    }
}

/// The device of the image on this node, if it is attached.
fn device(host: &Host, image: &Path) -> Result<Option<PathBuf>> {
    Ok(host.devices().loop_devices(image)?.into_iter().next().map(|device| device.path))
}

#[async_trait]
impl Controller for Driver {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        Ok(self.with(id, size).await?.map(|bytes| Volume::new(id.clone(), bytes)))
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        let is_known = capability.fs_type().is_none_or(|name| name.parse::<Filesystem>().is_ok());
        is_known && !capability.access_mode.is_multi_node()
    }
}

#[async_trait]
impl CreateDeleteVolume for Driver {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        request.parameters.check_keys(&[])?;
        let sizes = request.volume_capabilities.iter().map(VolumeCapability::min_device_size);
        let wanted = request.capacity_range.at_least(sizes.fold(MIB, u64::max)).choose(GIB, MIB)?;
        let id = VolumeId::from_name(&request.name)?;
        let bytes = self.with(&id, move |image| create(image, wanted)).await?;
        Ok(Volume::new(id, bytes))
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        let host = request.host().clone();
        let delete = move |image: &Path| match device(&host, image)? {
            Some(device) => Err(Error::InUse(format!("attached as {}", device.display()).into())),
            None => fs::remove_file(image).at("remove", image),
        };
        self.with(&request.volume_id, delete).await
    }
}
{% if expand %}

#[async_trait]
impl ControllerExpandVolume for Driver {
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded> {
        let id = request.volume_id.clone();
        let grow = move |image: &Path| {
            let now = size(image)?.ok_or(Error::VolumeNotFound(id))?;
            let wanted = request.capacity_range.choose(now, MIB)?.max(now);
            let file = fs::File::options().write(true).open(image);
            file.and_then(|file| file.set_len(wanted)).at("grow", image).map(|()| wanted)
        };
        let capacity_bytes = self.with(&request.volume_id, grow).await?;
        Ok(Expanded::node_expansion_required(capacity_bytes))
    }
}
{% endif %}

#[async_trait]
impl BlockDevices for Driver {
    async fn info(&self) -> Result<NodeInfo> {
        self.0.driver.node_info()
    }

    async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
        self.lookup(&volume.volume_id).await?.ok_or(Error::VolumeNotFound(volume.volume_id.clone()))?;
        let host = volume.host().clone();
        let attach = move |image: &Path| Ok(host.devices().loop_attach(image, &LoopOptions::new())?.path);
        self.with(&volume.volume_id, attach).await
    }

    async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
        let host = volume.host().clone();
        self.with(&volume.volume_id, move |image| device(&host, image)).await
    }

    async fn detach(&self, volume: &Attachment) -> Result<()> {
        let host = volume.host().clone();
        self.with(&volume.volume_id, move |image| Ok(host.devices().loop_detach(image).map(drop)?)).await
    }
{% if expand %}

    async fn refresh(&self, volume: &Attachment) -> Result<()> {
        let host = volume.host().clone();
        self.with(&volume.volume_id, move |image| Ok(host.devices().loop_refresh(image)?)).await
    }
{% endif %}

    async fn plan(&self, volume: &Attachment, capability: &VolumeCapability) -> Result<StagePlan> {
        let was_staged = |image: &Path| Ok(image.metadata().is_ok_and(|it| it.mode() & STAGED == STAGED));
        let plan = stage_plan(capability)?;
        Ok(if self.with(&volume.volume_id, was_staged).await? { plan.never_format() } else { plan })
    }

    async fn staged(&self, volume: &Attachment) -> Result<()> {
        let staged = fs::Permissions::from_mode(STAGED);
        self.with(&volume.volume_id, |image| Ok(fs::set_permissions(image, staged)?)).await
    }
}

/// Returns the driver, configured by its flags.
pub fn plugin(args: &Args) -> Plugin {
    let driver = Arc::new(Driver(args.clone()));
    let controller = ControllerService::new(driver.clone()).create_delete_volume();
    let node = BlockNode::service(driver);
    let plugin = Plugin::new(NAME, env!("CARGO_PKG_VERSION"))
        .own_directory(&args.root)
        .controller(controller{% if expand %}.expand_volume(Expansion::Online){% endif %}{% if multi_writer %}.single_node_multi_writer(){% endif %})
        .node(node{% if not expand %}.without(csi_core::NodeCapability::ExpandVolume){% endif %}{% if multi_writer %}.single_node_multi_writer(){% endif %});
    #[cfg(feature = "manifests")]
    let plugin = declare(plugin, args.clone());
    plugin
}

/// Declares what the manifests say besides the driver's capabilities.
#[cfg(feature = "manifests")]
fn declare(plugin: Plugin, args: Args) -> Plugin {
    let root = args.root.display().to_string();
    plugin.declare(move |options| {
        options.default_fstype = Some("ext4".into());
        options.storage_class.push(csi_core::deploy::Class::new("{{name}}"));
        options.arg.push(format!("--root={root}"));
        options.controller_host_path.push(root.clone());
        options.node_host_path.push(root);
    })
}
