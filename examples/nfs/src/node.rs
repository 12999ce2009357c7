//! What of a volume the node is to mount.

use csi_core::mount::MountOptions;
use csi_core::mount::flow::shared::SharedSource;
use csi_core::{Attachment, DriverArgs, Error, NodeInfo, Result, SharedFilesystems, async_trait};
use serde::Deserialize;

use crate::parameters::sub_dir_of;
use crate::share::Share;

pub(crate) struct Mounts(pub(crate) DriverArgs);

/// What CreateVolume said of a volume; for a static share what is written in its PersistentVolume, and for an inline
/// volume what is written in its pod.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Context {
    server: String,
    share: String,
    #[serde(default)]
    sub_dir: Option<String>,
    /// As `nfsvers=4.1,soft`: an inline volume has no other place for them.
    #[serde(default)]
    mount_options: Option<String>,
}

#[async_trait]
impl SharedFilesystems for Mounts {
    async fn info(&self) -> Result<NodeInfo> {
        self.0.node_info()
    }

    /// By its name: the kernel's client follows links on the way. That no workload of a volume can put one there, the
    /// controller sees to (`places`); who may have a directory above volumes mounted is for whoever writes static ones.
    async fn source(&self, volume: &Attachment) -> Result<SharedSource> {
        if ["server", "share"].iter().all(|key| volume.volume_context.get(key).is_none()) {
            // Nobody says where it is.
            return Err(Error::VolumeNotFound(volume.volume_id.clone()));
        }
        let context: Context = volume.volume_context.parse()?;
        let sub_dir = context.sub_dir.as_deref().filter(|sub_dir| !sub_dir.is_empty());
        let sub_dir = sub_dir.map(|sub_dir| sub_dir_of("volume_context[subDir]", sub_dir)).transpose()?;
        let source = Share::new(&context.server, &context.share)?.source(sub_dir.as_deref())?;
        let options = context.mount_options.unwrap_or_default();
        let options = options.split(',').map(str::trim).filter(|option| !option.is_empty());
        Ok(source.options(MountOptions::parse(options)?))
    }
}
