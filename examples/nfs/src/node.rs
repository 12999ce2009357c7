//! The part of a volume that the node mounts.

use csi_core::mount::MountOptions;
use csi_core::mount::flow::shared::SharedSource;
use csi_core::node::LeftMount;
use csi_core::{Attachment, DriverArgs, Error, NodeInfo, Result, SharedFilesystems, async_trait};
use serde::Deserialize;

use crate::parameters::sub_dir_of;
use crate::share::Share;

pub(crate) struct Mounts(pub(crate) DriverArgs);

/// The volume context: from CreateVolume, the PersistentVolume of a static share, or an inline volume's pod.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Context {
    server: String,
    share: String,
    // csi-driver-nfs writes it in small letters.
    #[serde(default, alias = "subdir")]
    sub_dir: Option<String>,
    /// For example `nfsvers=4.1,soft`. An inline volume has no other field for mount options.
    #[serde(default)]
    mount_options: Option<String>,
}

#[async_trait]
impl SharedFilesystems for Mounts {
    async fn info(&self) -> Result<NodeInfo> {
        self.0.node_info()
    }

    /// The source is mounted by name, and the kernel's client follows symbolic links in it. The controller
    /// ensures that no workload of a volume can place a link there (`places`). For static volumes the
    /// administrator decides who can mount a directory above volumes.
    async fn source(&self, volume: &Attachment) -> Result<SharedSource> {
        if ["server", "share"].iter().all(|key| volume.volume_context.get(key).is_none()) {
            // The volume context does not say where the volume is.
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

/// Whether an earlier driver's mount is taken over: it must be of NFS.
pub(crate) fn is_nfs(left: &LeftMount) -> Result<(), String> {
    match left.mount.fs_type.as_str() {
        "nfs" | "nfs4" => Ok(()),
        other => Err(format!("it is {other}, not NFS")),
    }
}
