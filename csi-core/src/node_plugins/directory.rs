//! A whole node plugin for volumes that are directories: the driver says which directory a volume is, this
//! module does the rest.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use csi_mount::{Evidence, Host, IdMap, MountHealth, MountState, Stats};

use super::Attachment;
use super::kernel::usage;
use super::limited_directory::grow_directory;
use super::mount_group::{MountGroup, MountGroupChange};
use super::ownership::owner_known_by;
use super::root_permissions::RootPermissions;
use super::targets::MountTable;
use crate::blocking::blocking;
use crate::call::request::TypedRequest as _;
use crate::error::{Error, Result};
use crate::node::{
    Node, NodeExpandVolume, NodeExpandVolumeRequest, NodeGetVolumeHealth, NodeGetVolumeHealthRequest,
    NodeGetVolumeStats, NodeGetVolumeStatsRequest, NodeInfo, NodePublishVolumeRequest, NodeService,
    NodeUnpublishVolumeRequest, PublishedTargets,
};
use crate::types::{Usage, VolumeHealth, VolumeId, VolumeStats};

/// What only the driver knows about its directories. [`DirectoryNode`] makes a node plugin of it.
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `Directories`",
    label = "needs `impl Directories for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait Directories: Send + Sync + 'static {
    /// Returns the node's id and topology; by default the id is the host name. See [`Node::info`].
    ///
    /// # Errors
    /// Those of any RPC.
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::from_host_name()
    }

    /// Returns the directory that the volume is, or would be: the caller checks whether it exists.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] (NOT_FOUND) for an id that can't belong to this driver.
    async fn directory(&self, volume_id: &VolumeId) -> Result<PathBuf>;

    /// Returns how the group of VOLUME_MOUNT_GROUP gets access to a volume's files, if that capability is
    /// declared.
    fn mount_group(&self) -> MountGroup {
        MountGroup::default()
    }

    /// Returns the permissions that the volume's root directory gets; by default it stays as it is. See
    /// [`RootPermissions`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for permissions that can't be parsed.
    fn root_permissions(&self, _volume: &Attachment) -> Result<RootPermissions> {
        Ok(RootPermissions::default())
    }
}

/// The unit of sizes in bytes: blocks of filesystems.
const UNIT: u64 = 4096;

/// A node plugin for directories: publishes them with bind mounts, read-only if requested, and reports their usage: of
/// the limit that [`create_directory`](super::create_directory) gave a directory, else of the filesystem.
///
/// It can also grow these limits: call [`NodeService::expand_volume`] on the [`service`](Self::service), and have the
/// controller answer [`Expanded::node_expansion_required`](crate::Expanded::node_expansion_required), or not expand at
/// all. Other implementors of one RPC, such as [`NodeService::get_volume_stats_by`], replace this one there.
#[derive(Debug, Clone)]
pub struct DirectoryNode<D>(Arc<D>);

impl<D: Directories> DirectoryNode<D> {
    /// Creates the node plugin for these directories.
    pub fn new(directories: Arc<D>) -> Self {
        Self(directories)
    }

    /// Creates a Node service for these directories, with all supported capabilities registered.
    pub fn service(directories: Arc<D>) -> NodeService<Self> {
        NodeService::new(Arc::new(Self::new(directories)))
            .get_volume_stats()
            .get_volume_health()
            .self_check(&[])
    }

    async fn existing(&self, host: &Host, volume_id: &VolumeId) -> Result<PathBuf> {
        let path = self.0.directory(volume_id).await?;
        let host = host.clone();
        let volume_id = volume_id.clone();
        blocking(move || {
            if host.directories().is_directory(&path)? {
                return Ok(path);
            }
            match host.mounts().state(&path)? {
                MountState::Absent => Err(Error::VolumeNotFound(volume_id)),
                _ => Err(Error::Internal(format!("{} is not a directory", path.display()).into())),
            }
        })
        .await
    }
}

#[async_trait]
impl<D: Directories> Node for DirectoryNode<D> {
    async fn info(&self) -> Result<NodeInfo> {
        self.0.info().await
    }

    async fn publish_volume(&self, request: NodePublishVolumeRequest) -> Result<()> {
        let source = self.existing(request.host(), &request.volume_id).await?;
        let group = MountGroupChange::new(&request.volume_capability, self.0.mount_group())?;
        let permissions = self.0.root_permissions(&Attachment::from(&request))?;
        let permissions = group.permissions(permissions.unless_read_only(request.attributes()?));
        let path = source.clone();
        let host = request.host().clone();
        let is_read_only = request.is_read_only();
        let id_map = blocking(move || {
            require_alive(&host, &path)?;
            let id_map = group.apply(&host, &path, is_read_only, IdMap::new())?;
            permissions.apply(&host, &path)?;
            Ok(id_map)
        })
        .await?;
        request.bind_with_id_map(source, id_map).await
    }

    async fn published(&self, request: &NodePublishVolumeRequest) -> Result<PublishedTargets> {
        let source = self.existing(request.host(), &request.volume_id).await?;
        let target = request.target_path.clone();
        let host = request.host().clone();
        blocking(move || Ok(MountTable::read(&host)?.of_directory(&source, &target))).await
    }

    async fn unpublish_volume(&self, request: NodeUnpublishVolumeRequest) -> Result<()> {
        let evidence = match self.existing(request.host(), &request.volume_id).await {
            Ok(directory) => Some(Evidence::Directory(directory)),
            Err(error) => {
                tracing::debug!("unpublished without its directory: {error}");
                None
            }
        };
        let owner = owner_known_by(&request.volume_id, request.plugin(), evidence);
        request.unmount_owned(owner).await
    }
}

#[async_trait]
impl<D: Directories> NodeGetVolumeStats for DirectoryNode<D> {
    async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
        let source = self.existing(request.host(), &request.volume_id).await?;
        // The filesystem has just answered, so access to the path does not hang.
        let stats = request.statfs().await?;
        blocking(move || {
            let directories = request.host().directories();
            if !directories.is_same_file(&source, &request.volume_path)? {
                return Err(Error::VolumeNotFound(request.volume_id));
            }
            Ok(directories.usage(&source)?.map_or(stats, |limited| of_limit(limited, stats)))
        })
        .await
    }
}

/// The usage of a directory's limit. No more is available than the filesystem has.
fn of_limit(limited: Stats, filesystem: VolumeStats) -> VolumeStats {
    let within = |limited, filesystem: Option<Usage>| {
        let limited: Usage = usage(limited);
        let most = filesystem.map_or(u64::MAX, |filesystem| filesystem.available);
        Usage { available: limited.available.min(most), ..limited }
    };
    let inodes = limited.inodes.map(|inodes| within(inodes, filesystem.inodes));
    VolumeStats::from_usage(within(limited.bytes, filesystem.bytes), inodes)
}

/// Grows the limit of a directory. A directory without one needs nothing.
#[async_trait]
impl<D: Directories> NodeExpandVolume for DirectoryNode<D> {
    async fn expand_volume(&self, request: NodeExpandVolumeRequest) -> Result<u64> {
        let source = self.existing(request.host(), &request.volume_id).await?;
        let size = request.capacity_range.choose(0, UNIT)?;
        let host = request.host().clone();
        let path = source.clone();
        let at = request.volume_path.to_path_buf();
        if !blocking(move || Ok(MountTable::read(&host)?.is_mounted_from(&path, &at))).await? {
            return Err(Error::VolumeNotFound(request.volume_id));
        }
        grow_directory(request.host(), source, size).await
    }
}

#[async_trait]
impl<D: Directories> NodeGetVolumeHealth for DirectoryNode<D> {
    async fn volume_health(&self, request: NodeGetVolumeHealthRequest) -> Result<VolumeHealth> {
        request.mount_health().await
    }
}

/// Refuses a directory on a filesystem that does not answer, before a workload gets it.
fn require_alive(host: &Host, directory: &Path) -> Result<()> {
    match host.mounts().health_of_filesystem(directory)? {
        unhealthy @ (MountHealth::Dead(_) | MountHealth::Unresponsive) => Err(Error::Unavailable(
            format!("the volume's directory {}: {unhealthy}", directory.display()).into(),
        )),
        _ => Ok(()),
    }
}
