//! The CSI driver {{driver}}: a volume is a disk of a cloud. The controller calls the
//! cloud's API, which attaches the disk to a machine. The node finds the disk by its serial number: it has no
//! credentials of the API, and never calls it.
use std::path::{Path, PathBuf};
use std::{fs, sync::Arc};

use csi_core::controller::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, PublishUnpublishVolume, Published,
};
use csi_core::mount::{ExpectedDevice, Filesystem, flow::block::StagePlan};
use csi_core::types::NodeId;
use csi_core::{Result, prelude::*};

mod cloud;

use cloud::{Cloud, Disk};

const NAME: &str = "{{driver}}";
const GIB: u64 = 1 << 30;
/// With what the serial numbers of the cloud's volumes begin, and those of a machine's other disks do not.
const SERIAL: &str = "vol-";

#[derive(clap::Parser, Clone)]
#[command(about = "The CSI driver {{driver}}")]
pub struct Args {
    /// The address of the cloud's API, for the controller
    #[arg(long, env = "API_URL", value_name = "URL", default_value = "https://api.{{organisation}}/v1")]
    pub api: String,

    /// The file with the API's token, for the controller; it is read for each call
    #[arg(long, env = "API_TOKEN_FILE", value_name = "PATH", default_value = "/etc/{{name}}/token")]
    pub token_file: PathBuf,

    /// The directory for the node's records of attached disks
    #[arg(long, env = "DATA_DIR", value_name = "PATH", default_value = "/var/lib/{{name}}")]
    pub root: PathBuf,

    /// How many disks a machine can have
    #[arg(long, env = "MACHINE_DISKS", value_name = "NUMBER", default_value_t = 16)]
    pub machine_disks: u64,

    /// How many of a machine's disks are not volumes [default: those that it has when the node starts]
    #[arg(long, env = "OTHER_DISKS", value_name = "NUMBER")]
    pub other_disks: Option<u64>,

    #[command(flatten)]
    pub driver: DriverArgs,
}

/// The controller's part.
struct Disks(Arc<Cloud>);

impl Disks {
    /// Calls the API on a thread that is allowed to block.
    async fn call(&self, call: impl FnOnce(&Cloud) -> Result<Disk> + Send + 'static) -> Result<Disk> {
        let cloud = self.0.clone();
        blocking(move || call(&cloud)).await
    }

    async fn find(&self, id: &VolumeId) -> Result<Option<Disk>> {
        let name = id.clone();
        match self.call(move |cloud| cloud.disk(&name)).await {
            Err(Error::VolumeNotFound(_)) => Ok(None),
            found => found.map(Some),
        }
    }
}

#[async_trait]
impl Controller for Disks {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        Ok(self.find(id).await?.map(|disk| Volume::new(id.clone(), disk.bytes)))
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        let is_known = capability.fs_type().is_none_or(|name| name.parse::<Filesystem>().is_ok());
        is_known && !capability.access_mode.is_multi_node()
    }
}

#[async_trait]
impl CreateDeleteVolume for Disks {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        request.parameters.check_keys(&[])?;
        let bytes = request.capacity_range.at_least(GIB).choose(GIB, GIB)?;
        let id = VolumeId::from_name(&request.name)?;
        let name = id.clone();
        let disk = self.call(move |cloud| cloud.create(&name, bytes)).await?;
        Ok(Volume::new(id, disk.bytes))
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        self.call(move |cloud| cloud.delete(&request.volume_id)).await.map(drop)
    }
}

#[async_trait]
impl PublishUnpublishVolume for Disks {
    async fn publish_volume(&self, request: ControllerPublishVolumeRequest) -> Result<Published> {
        let id = request.volume_id.clone();
        let disk = self.find(&id).await?.ok_or(Error::VolumeNotFound(id.clone()))?;
        if let Some(other) = disk.machine.filter(|machine| machine != request.node_id.as_str()) {
            return Err(Error::PublishedElsewhere(NodeId::new(other)?));
        }
        let volume = id.to_string();
        let disk = self.call(move |cloud| cloud.attach(&id, &request.node_id)).await?;
        let Disk { serial, written, .. } = disk;
        // What the node needs to know, without secrets: the cluster stores it in clear text.
        let context = [("volume", volume), ("serial", serial), ("written", written.to_string())];
        Ok(Published::new(context.map(|(key, value)| (key.to_owned(), value)).into()))
    }

    async fn unpublish_volume(&self, request: ControllerUnpublishVolumeRequest) -> Result<()> {
        let id = request.volume_id.clone();
        let Some(Disk { machine: Some(machine), .. }) = self.find(&id).await? else { return Ok(()) };
        // It can be attached to another machine already. A request without a node is for all machines.
        if request.node_id.is_none_or(|node| node.as_str() == machine) {
            self.call(move |cloud| cloud.detach(&id)).await?;
        }
        Ok(())
    }
}
{% if expand %}

#[async_trait]
impl ControllerExpandVolume for Disks {
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded> {
        let id = request.volume_id.clone();
        let disk = self.find(&id).await?.ok_or(Error::VolumeNotFound(id.clone()))?;
        let bytes = request.capacity_range.choose(disk.bytes, GIB)?.max(disk.bytes);
        let grown = self.call(move |cloud| cloud.grow(&id, bytes)).await?;
        Ok(Expanded::node_expansion_required(grown.bytes))
    }
}
{% endif %}

/// The node's part.
struct Machine {
    args: Args,
}

/// The disk of a volume, as the kernel sees it. A volume that the controller did not attach does not exist here.
fn disk(volume: &Attachment) -> Result<ExpectedDevice> {
    let context = &volume.publish_context;
    match (context.get("volume"), context.get("serial")) {
        // Not the disk of another volume.
        (Some(id), Some(serial)) if id == volume.volume_id.as_str() => {
            Ok(ExpectedDevice::new().serial(serial))
        }
        _ => Err(Error::VolumeNotFound(volume.volume_id.clone())),
    }
}

/// How many disks of a machine are not volumes, by its `/sys/block`. The kernel shows the serial numbers of virtio and
/// NVMe disks there.
fn other_disks(sys: &Path) -> Result<u64> {
    let mut others = 0;
    for entry in fs::read_dir(sys).at("read", sys)? {
        let disk = entry?.path();
        let serial = ["serial", "device/serial"].map(|file| fs::read_to_string(disk.join(file)));
        let is_volume = serial.into_iter().flatten().any(|serial| serial.starts_with(SERIAL));
        // Loop devices and the like have no `device`.
        others += u64::from(disk.join("device").exists() && !is_volume);
    }
    Ok(others)
}

#[async_trait]
impl BlockDevices for Machine {
    async fn info(&self) -> Result<NodeInfo> {
        let others = match self.args.other_disks {
            Some(others) => others,
            None => other_disks("/sys/block".as_ref())?,
        };
        // 0 would be no limit.
        let free = self.args.machine_disks.saturating_sub(others).max(1);
        Ok(self.args.driver.node_info()?.max_volumes(free))
    }

    fn attachments_directory(&self) -> Option<PathBuf> {
        Some(self.args.root.join("attachments"))
    }

    async fn attach(&self, volume: &Attachment) -> Result<PathBuf> {
        let host = volume.host().clone();
        let disk = disk(volume)?;
        blocking(move || Ok(host.devices().wait(&disk)?)).await
    }

    async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>> {
        let host = volume.host().clone();
        let disk = disk(volume)?;
        blocking(move || Ok(host.devices().find(&disk)?)).await
    }

    async fn detach(&self, _: &Attachment) -> Result<()> {
        Ok(()) // ControllerUnpublishVolume takes the disk away.
    }

    async fn plan(&self, volume: &Attachment, capability: &VolumeCapability) -> Result<StagePlan> {
        let plan = stage_plan(capability)?;
        // A disk with data is never formatted, even if it reads as blank: it would be the wrong one.
        let was_written = volume.publish_context.get("written") == Some("true");
        Ok(if was_written { plan.never_format() } else { plan })
    }
}

/// Returns the driver, configured by its flags.
pub fn plugin(args: &Args) -> Plugin {
    let cloud = Cloud::new(args.api.clone(), args.token_file.clone());
    let controller = ControllerService::new(Arc::new(Disks(Arc::new(cloud))))
        .create_delete_volume()
{% if expand %}
        .expand_volume(Expansion::Online)
{% endif %}
{% if multi_writer %}
        .single_node_multi_writer()
{% endif %}
        .publish_unpublish_volume();
    let node = BlockNode::service(Arc::new(Machine { args: args.clone() }));
    let plugin = Plugin::new(NAME, env!("CARGO_PKG_VERSION"))
        .own_directory(&args.root)
        .controller(controller)
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
        options.controller_arg.push(format!("--api={}", args.api));
        let token = "/etc/{{name}}={{name}}-token";
        options.secret_files.push(token.parse().expect("a directory for the files of a Secret"));
        options.node_arg.push(format!("--root={root}"));
        options.node_arg.push(format!("--machine-disks={}", args.machine_disks));
        options.node_host_path.push(root);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_disks_that_are_not_volumes_are_counted() {
        let sys = tempfile::tempdir().unwrap();
        let disks = [
            ("vda/serial", "root"),
            ("vdb/serial", "vol-1"),
            ("nvme0n1/device/serial", "vol-2"),
            ("sda/device/vendor", "QEMU"),
            ("loop0/size", "0"),
        ];
        for (file, text) in disks {
            let file = sys.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        for disk in ["vda", "vdb"] {
            fs::create_dir(sys.path().join(disk).join("device")).unwrap();
        }
        assert_eq!(other_disks(sys.path()).unwrap(), 2);
    }
}
