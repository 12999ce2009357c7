//! A whole node plugin for filesystems that a FUSE program serves: the driver says which program, this
//! module does the rest.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use csi_mount::flow::fuse::FuseDaemon;
use csi_mount::{ErrorKind, NodeNeed, Owner, UNMOUNT_TIME_LIMIT, VolumePlace};

use super::kernel::mount_options;
use super::selinux::require_context;
use super::{
    Attachment,
    places::{another_is_staged, owner, refuse_to_publish},
    targets::MountTable,
};
use crate::node::{
    Node, NodeGetVolumeHealth, NodeGetVolumeHealthRequest, NodeGetVolumeStats, NodeGetVolumeStatsRequest,
    NodeInfo, NodePublishVolumeRequest, NodeService, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, PublishedTargets, StageUnstageVolume,
};
use crate::{
    Error, MountFlags, Reason, Result, VolumeCapability, VolumeHealth, VolumeId, VolumeStats, blocking,
    machine,
};

/// What only the driver knows about its FUSE filesystems. [`FuseNode`] makes a node plugin of it.
#[async_trait]
pub trait FuseFilesystems: Send + Sync + 'static {
    /// Returns the node's id and topology; by default the id is the host name. See [`Node::info`].
    ///
    /// # Errors
    /// Those of any RPC.
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::from_host_name()
    }

    /// Returns the program that mounts the volume at this directory. The driver translates the caller's
    /// mount flags into the program's arguments, because only it knows their form. Pass a password with
    /// [`FuseDaemon::secret`].
    ///
    /// A plugin that declares VOLUME_MOUNT_GROUP
    /// ([`NodeService::volume_mount_group`](crate::NodeService::volume_mount_group)) must give the files to
    /// [`Attachment::mount_group`], for example by the program's `--gid`. The group is part of what identifies
    /// the daemon: a volume is not staged again with another group.
    ///
    /// Called at each stage. Also called at a publish, with that call's secrets, if the daemon has died
    /// meanwhile: it is then started again.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] (NOT_FOUND); [`Error::InvalidArgument`] for unsupported flags.
    async fn daemon(&self, volume: &Attachment, flags: &MountFlags, mountpoint: &Path) -> Result<FuseDaemon>;

    /// Checks that the volume is ready, after the mount exists and answers: for a daemon that mounts before
    /// it knows. An error fails the stage; the daemon keeps running for the next attempt.
    ///
    /// # Errors
    /// Any reason why the volume can't be used.
    async fn ready(&self, _volume: &Attachment, _mountpoint: &Path) -> Result<()> {
        Ok(())
    }

    /// Returns how long a daemon can take to end when its volume is unstaged; by default
    /// [`UNMOUNT_TIME_LIMIT`]. A daemon that does not end in this time is killed, and data that it has
    /// not sent is lost, so give a daemon that writes back late the time that its cache can need. A caller
    /// that times out and retries joins the call that waits.
    fn unmount_time_limit(&self) -> Duration {
        UNMOUNT_TIME_LIMIT
    }
}

/// A node plugin for FUSE filesystems. For each volume it starts a daemon, which outlives this process. It
/// bind-mounts the daemon's filesystem for each workload, restarts a daemon that has died, and ends it at
/// unstage. See [`csi_mount::flow::fuse`].
///
/// A path that is marked as one volume's ([`csi_mount::Owner`]) is refused for another volume:
/// ALREADY_EXISTS to stage it there; FAILED_PRECONDITION to publish it from there, to unpublish or unstage
/// it; NOT_FOUND for stats and health. The daemon also identifies its volume and flags
/// ([`FuseDaemon::identity`] is the volume's id with a hash of the flags), so a volume is not staged with
/// other flags.
///
/// ```
/// use csi_core::mount::flow::fuse::FuseDaemon;
/// use csi_core::{Result, prelude::*};
/// use std::{path::Path, sync::Arc};
///
/// struct Buckets;
///
/// #[async_trait]
/// impl FuseFilesystems for Buckets {
///     async fn daemon(&self, volume: &Attachment, _: &MountFlags, mountpoint: &Path) -> Result<FuseDaemon> {
///         let daemon = FuseDaemon::new("example-s3").arg(volume.volume_id.as_str()).arg(mountpoint);
///         Ok(daemon.secret(volume.secrets.require("key")?))
///     }
/// }
///
/// let service = FuseNode::service(Arc::new(Buckets));
/// # drop(service);
/// ```
#[derive(Debug)]
pub struct FuseNode<F> {
    filesystems: Arc<F>,
}

// Not derived, because the filesystems need not be `Clone`.
impl<F> Clone for FuseNode<F> {
    fn clone(&self) -> Self {
        Self { filesystems: Arc::clone(&self.filesystems) }
    }
}

impl<F: FuseFilesystems> FuseNode<F> {
    /// Creates the node plugin for these filesystems.
    pub fn new(filesystems: Arc<F>) -> Self {
        Self { filesystems }
    }

    /// Creates a Node service for these filesystems, with all supported capabilities registered.
    pub fn service(filesystems: Arc<F>) -> NodeService<Self> {
        NodeService::new(Arc::new(Self::new(filesystems)))
            .stage_unstage_volume()
            .get_volume_stats()
            .get_volume_health()
            .self_check(&[NodeNeed::Fuse])
    }

    async fn stage(
        &self,
        volume: &Attachment,
        capability: &VolumeCapability,
        (staging, owner): (&Path, Owner),
    ) -> Result<()> {
        let Some(flags) = flags(capability) else { return Err(no_device()) };
        let daemon = self.filesystems.daemon(volume, flags, staging).await?;
        let group = volume.mount_group()?.map(|group| format!("volume_mount_group={group}"));
        let of_daemon = flags.iter().chain(group.as_deref()).collect();
        let daemon = daemon.identity(mark(&volume.volume_id, of_daemon));
        let place = VolumePlace::new(staging, owner);
        blocking(move || {
            let outcome = machine().fuse_stage(&place, &daemon)?;
            tracing::info!(?daemon, ?outcome, "staged");
            Ok(())
        })
        .await?;
        self.filesystems.ready(volume, staging).await
    }
}

/// The mark by which a later process recognises the volume's daemon: the id, and a hash of the flags. The
/// hash detects other flags, and is too short to find a password with it.
fn mark(id: &VolumeId, mut flags: Vec<&str>) -> String {
    flags.sort_unstable();
    let bytes = flags.iter().flat_map(|flag| flag.bytes().chain([0]));
    let sum = bytes.fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{id} {:04x}", sum >> 16)
}

/// Whether a mark belongs to this volume.
fn is_of(mark: &str, id: &VolumeId) -> bool {
    mark.rsplit_once(' ').is_some_and(|(marked, _)| marked == id.as_str())
}

fn flags(capability: &VolumeCapability) -> Option<&MountFlags> {
    match &capability.access_type {
        crate::AccessType::Mount { mount_flags, .. } => Some(mount_flags),
        crate::AccessType::Block => None,
    }
}

fn no_device() -> Error {
    Error::Unsupported("volume_capability.block: a FUSE filesystem is no device".into())
}

#[async_trait]
impl<F: FuseFilesystems> StageUnstageVolume for FuseNode<F> {
    async fn stage_volume(&self, request: NodeStageVolumeRequest) -> Result<()> {
        let owner = owner(&request.volume_id, request.plugin());
        let volume = Attachment::from(&request);
        self.stage(&volume, &request.volume_capability, (&request.staging_target_path, owner)).await
    }

    async fn unstage_volume(&self, request: NodeUnstageVolumeRequest) -> Result<()> {
        let limit = self.filesystems.unmount_time_limit();
        blocking(move || {
            machine().fuse_unstage(&request.place(), limit)?;
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl<F: FuseFilesystems> Node for FuseNode<F> {
    async fn info(&self) -> Result<NodeInfo> {
        self.filesystems.info().await
    }

    async fn publish_volume(&self, request: NodePublishVolumeRequest) -> Result<()> {
        if !request.volume_capability.is_mount() {
            return Err(no_device());
        }
        // The daemon gets the filesystem's flags; the bind mount gets the mount attributes.
        let (options, attributes) = (mount_options(&request.volume_capability)?, request.attributes()?);
        let Some(staging) = request.staging_target_path.clone() else {
            return Err(Error::invalid("staging_target_path", "is required: this driver stages its volumes"));
        };
        let owner = owner(&request.volume_id, request.plugin());
        let (id, path, add_to_volume) = (request.volume_id.clone(), staging.clone(), owner.clone());
        let is_lost = blocking(move || {
            refuse_to_publish(&path, &id, &add_to_volume)?;
            // If the path has no mark, its daemon identifies the volume.
            let machine = machine();
            let is_marked = machine.marked_owner(&path)?.is_some();
            let served = (!is_marked).then(|| machine.fuse_identity(&path)).flatten();
            if served.is_some_and(|mark| !is_of(&mark.to_string_lossy(), &id)) {
                return Err(another_is_staged(&path, &id));
            }
            Ok(machine.fuse_is_lost(&path)?)
        });
        if is_lost.await? {
            let volume = Attachment::from(&request);
            self.stage(&volume, &request.volume_capability, (&staging, owner)).await?;
        }
        blocking(move || {
            require_context(&options, &staging)?;
            match machine().fuse_publish(&staging, &request.place(), attributes) {
                Ok(_) => Ok(()),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    Err(Error::NotStaged(Reason::from_error(error)))
                }
                Err(error) => Err(error.into()),
            }
        })
        .await
    }

    async fn published(&self, request: &NodePublishVolumeRequest) -> Result<PublishedTargets> {
        let Some(staging) = request.staging_target_path.clone() else {
            return Ok(PublishedTargets::default());
        };
        let target = request.target_path.clone();
        blocking(move || Ok(MountTable::read()?.of_staged(&staging, &target, None))).await
    }

    async fn unpublish_volume(&self, request: NodeUnpublishVolumeRequest) -> Result<()> {
        blocking(move || {
            machine().fuse_unpublish(&request.place())?;
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl<F: FuseFilesystems> NodeGetVolumeStats for FuseNode<F> {
    async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
        request.statfs().await
    }
}

#[async_trait]
impl<F: FuseFilesystems> NodeGetVolumeHealth for FuseNode<F> {
    async fn volume_health(&self, request: NodeGetVolumeHealthRequest) -> Result<VolumeHealth> {
        request.mount_health().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_tells_volumes_and_flags_apart_in_every_version() {
        let mark = |id: &str, flags: &[&str]| mark(&VolumeId::new(id).unwrap(), flags.to_vec());
        assert_eq!(mark("v", &["a", "b"]), mark("v", &["b", "a"]));
        for other in [mark("w", &["a", "b"]), mark("v", &["a"]), mark("v", &[]), mark("v", &["ab"])] {
            assert_ne!(mark("v", &["a", "b"]), other);
        }
        assert_eq!(mark("a volume", &["password=hunter2"]), "a volume 30dc");
        assert!(is_of("a volume 12ab", &VolumeId::new("a volume").unwrap()));
        assert!(!is_of("a volume 12ab", &VolumeId::new("a").unwrap()));
    }
}
