//! A complete CSI driver whose volumes are served by a FUSE program. Each volume staged on the node has its
//! own `flatfs` process: a child of the driver, in a pod for all volumes of the node, or in a pod of its own.
pub mod flatfs;
mod volumes;
mod wait;

use csi_core::mount::{MountOptions, flow::fuse::FuseDaemon, flow::fuse::Mounter};
use csi_core::{Result, controller::*, prelude::*, types::MountFlags};
use csi_kube::FusePods;
use std::{path::Path, sync::Arc};
pub use volumes::Volumes;

/// The driver's name.
pub const NAME: &str = "flat.csi.example.org";

struct Flat {
    volumes: Volumes,
    daemon: FuseDaemon,
    mounter: Option<Mounter>,
    pods: Option<FusePods>,
    args: DriverArgs,
}

impl Flat {
    fn pods(&self) -> Result<&FusePods> {
        self.pods.as_ref().ok_or(Error::Unimplemented("no volume has a pod of its own".into()))
    }
}

#[async_trait]
impl Controller for Flat {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        Ok(self.volumes.has(id).await?.then(|| Volume::new(id.clone(), 0)))
    }
    fn supports(&self, capability: &VolumeCapability) -> bool {
        capability.is_mount() && !capability.access_mode.is_multi_node()
    }
}

#[async_trait]
impl CreateDeleteVolume for Flat {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        let volume = wait::keep(&request.parameters, Volume::new(VolumeId::from_name(&request.name)?, 0))?;
        self.volumes.make(&volume.volume_id).await.map(|()| volume)
    }
    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        self.volumes.remove(request.host(), &request.volume_id).await
    }
}

/// A volume gets its pod when it is attached to a node.
#[async_trait]
impl PublishUnpublishVolume for Flat {
    async fn publish_volume(&self, request: ControllerPublishVolumeRequest) -> Result<Published> {
        self.lookup(&request.volume_id).await?.ok_or(Error::VolumeNotFound(request.volume_id.clone()))?;
        self.pods()?.publish(&request.volume_id, &request.node_id).await
    }
    async fn unpublish_volume(&self, request: ControllerUnpublishVolumeRequest) -> Result<()> {
        self.pods()?.unpublish(&request.volume_id, request.node_id.as_ref()).await
    }
}

#[async_trait]
impl FuseFilesystems for Flat {
    async fn info(&self) -> Result<NodeInfo> {
        self.args.node_info()
    }
    async fn daemon(&self, volume: &Attachment, _: &MountFlags, mountpoint: &Path) -> Result<FuseDaemon> {
        self.lookup(&volume.volume_id).await?.ok_or(Error::VolumeNotFound(volume.volume_id.clone()))?;
        let daemon = self.daemon.clone().arg(self.volumes.store(&volume.volume_id)?);
        if self.mounter.is_none() {
            return Ok(daemon.arg(mountpoint));
        }
        let options = MountOptions::parse(["allow_other", "default_permissions"])?;
        // flatfs can serve what an earlier process has mounted.
        wait::apply(&volume.volume_context, daemon.arg_device(options).continue_when_lost())
    }
    fn mounter(&self) -> Option<Mounter> {
        self.mounter.clone()
    }
}

/// Returns the driver, which serves each of its volumes with a `daemon` of its own: in the pods that `args` name, or as its
/// child. With `pods` its controller makes a pod for each volume.
pub fn plugin(volumes: Volumes, daemon: FuseDaemon, pods: Option<FusePods>, args: &DriverArgs) -> Plugin {
    let flat = Arc::new(Flat { volumes, daemon, mounter: args.mounter(), pods, args: args.clone() });
    let controller = ControllerService::new(flat.clone()).create_delete_volume();
    // Also in the process that writes the manifests, which has no client for pods.
    let are_per_volume = flat.mounter.as_ref().and_then(Mounter::namespace_of_volumes).is_some();
    let plugin = Plugin::new(NAME, env!("CARGO_PKG_VERSION")).controller(if are_per_volume {
        controller.publish_unpublish_volume()
    } else {
        controller
    });
    let plugin = flat.volumes.directory().into_iter().fold(plugin, Plugin::own_directory);
    plugin.node(FuseNode::service(flat))
}
