//! A whole node plugin for volumes that are directories: the driver says which one a volume is, and the rest is
//! done here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use super::{
    GetVolumeStats, Node, NodeGetVolumeStatsRequest, NodeInfo, NodePublishVolumeRequest, NodeService,
    NodeUnpublishVolumeRequest, PublishedTargets, targets::MountTable,
};
use crate::{Error, Result, VolumeId, VolumeStats, blocking};

/// What only the driver knows of its directories. [`DirectoryNode`] makes a node plugin of it.
#[async_trait]
pub trait Directories: Send + Sync + 'static {
    /// Which node this is; the machine's host name, unless the driver knows better. See [`Node::info`].
    ///
    /// # Errors
    /// Those of any RPC.
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::of_host()
    }

    /// The directory that the volume is, or would be: whether it is there is looked at by the caller.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] (NOT_FOUND) for an id that can't be one of this driver's.
    async fn directory(&self, volume_id: &VolumeId) -> Result<PathBuf>;
}

/// A node plugin for directories: publishes them by binding, read-only where that is asked for, and tells how full
/// their filesystem is.
#[derive(Debug, Clone)]
pub struct DirectoryNode<D>(Arc<D>);

impl<D: Directories> DirectoryNode<D> {
    /// The node plugin of these directories.
    pub fn new(directories: Arc<D>) -> Self {
        Self(directories)
    }

    /// The same as a service, with all that it can do registered.
    pub fn service(directories: Arc<D>) -> NodeService<Self> {
        NodeService::new(Arc::new(Self::new(directories))).get_volume_stats()
    }

    async fn existing(&self, volume_id: &VolumeId) -> Result<PathBuf> {
        let path = self.0.directory(volume_id).await?;
        let volume_id = volume_id.clone();
        blocking(move || match path.symlink_metadata() {
            Ok(found) if found.is_dir() => Ok(path),
            Ok(_) => Err(Error::internal_message(format!("{} is not a directory", path.display()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(Error::VolumeNotFound(volume_id))
            }
            Err(error) => Err(error.into()),
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
        request.bind(self.existing(&request.volume_id).await?).await
    }

    async fn published(&self, request: &NodePublishVolumeRequest) -> Result<PublishedTargets> {
        let source = self.existing(&request.volume_id).await?;
        let target = request.target_path.clone();
        blocking(move || Ok(MountTable::read()?.of_directory(&source, &target))).await
    }

    async fn unpublish_volume(&self, request: NodeUnpublishVolumeRequest) -> Result<()> {
        request.unmount().await
    }
}

#[async_trait]
impl<D: Directories> GetVolumeStats for DirectoryNode<D> {
    async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
        let source = self.existing(&request.volume_id).await?;
        // The filesystem has just answered this, so looking at the path does not hang.
        let stats = request.statfs().await?;
        blocking(move || match is_same_file(&source, &request.volume_path)? {
            true => Ok(stats),
            false => Err(Error::VolumeNotFound(request.volume_id)),
        })
        .await
    }
}

fn is_same_file(one: &Path, other: &Path) -> Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (one, other) = (one.metadata()?, other.metadata()?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}
