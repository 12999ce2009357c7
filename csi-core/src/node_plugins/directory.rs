//! A whole node plugin for volumes that are directories: the driver says which directory a volume is, this
//! module does the rest.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use csi_mount::{Evidence, Host, IdMap, MountHealth, MountState};

use super::Attachment;
use super::mount_group::{MountGroup, MountGroupChange};
use super::ownership::owner_known_by;
use super::root_permissions::RootPermissions;
use super::targets::MountTable;
use crate::blocking::blocking;
use crate::call::request::TypedRequest as _;
use crate::error::{Error, Result};
use crate::node::{
    Node, NodeGetVolumeHealth, NodeGetVolumeHealthRequest, NodeGetVolumeStats, NodeGetVolumeStatsRequest,
    NodeInfo, NodePublishVolumeRequest, NodeService, NodeUnpublishVolumeRequest, PublishedTargets,
};
use crate::types::{VolumeHealth, VolumeId, VolumeStats};

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

/// A node plugin for directories: publishes them with bind mounts, read-only if requested, and reports the
/// usage of their filesystem.
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
            if !request.host().directories().is_same_file(&source, &request.volume_path)? {
                return Err(Error::VolumeNotFound(request.volume_id));
            }
            Ok(stats)
        })
        .await
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
