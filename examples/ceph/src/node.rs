//! The node: the volume's directory, mounted by the kernel or by `ceph-fuse`.

use std::path::Path;

use csi_core::mount::MountOptions;
use csi_core::mount::flow::fuse::FuseDaemon;
use csi_core::mount::flow::shared::SharedSource;
use csi_core::types::MountFlags;
use csi_core::{Result, prelude::*};
use serde::Deserialize;

use crate::Ceph;
use crate::cluster::{User, list};
use crate::controller::name;

/// Where the driver's subvolumes are.
const VOLUMES: &str = "/volumes/csi/";

/// The volume context: from CreateVolume, or from the PersistentVolume of a directory that exists.
#[derive(Deserialize)]
struct Context {
    path: String,
}

impl Ceph {
    /// The volume's directory, as the kernel mounts it, and its path.
    fn directory(&self, volume: &Attachment) -> Result<(SharedSource, String)> {
        if volume.volume_context.get("path").is_none() {
            return Err(Error::VolumeNotFound(volume.volume_id.clone()));
        }
        let Context { path } = volume.volume_context.parse()?;
        let own = format!("{VOLUMES}{}/", name(volume.volume_id.as_str()));
        if path.starts_with(VOLUMES) && !path.starts_with(&own) {
            // The directory of another volume.
            return Err(Error::VolumeNotFound(volume.volume_id.clone()));
        }
        let source = SharedSource::ceph(&self.args.monitors, &path);
        Ok((source.map_err(|error| Error::invalid("volume_context[path]", error.to_string()))?, path))
    }
}

#[async_trait]
impl SharedFilesystems for Ceph {
    async fn info(&self) -> Result<NodeInfo> {
        self.driver.node_info()
    }

    async fn source(&self, volume: &Attachment) -> Result<SharedSource> {
        let ((source, _), user) = (self.directory(volume)?, User::of(&volume.secrets)?);
        let options = MountOptions::new().with_option("name", user.id)?.with_option("secret", user.key)?;
        Ok(source.options(options.with_option("mds_namespace", &self.args.filesystem)?))
    }
}

#[async_trait]
impl FuseFilesystems for Ceph {
    async fn info(&self) -> Result<NodeInfo> {
        self.driver.node_info()
    }

    async fn daemon(&self, volume: &Attachment, flags: &MountFlags, at: &Path) -> Result<FuseDaemon> {
        let ((_, path), user) = (self.directory(volume)?, User::of(&volume.secrets)?);
        Ok(FuseDaemon::new("ceph-fuse")
            // No file of the node is read, and none is made. What it prints is in the driver's log.
            .args(["-f", "--conf=/dev/null", "--log-file=", "--log-to-stderr=true", "--admin-socket="])
            // Without a monitor it ends, before the caller gives up.
            .args(["--keyfile=-", "--client_mount_timeout=20", "--mon-host", &list(&self.args.monitors)])
            .arg(format!("--id={}", user.id))
            .arg(format!("--client_fs={}", self.args.filesystem))
            .arg(format!("--client_mountpoint={path}"))
            .args(flags.iter().flat_map(|flag| ["-o", flag]))
            .arg(at)
            .secret(user.key))
    }
}
