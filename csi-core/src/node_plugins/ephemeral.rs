//! A whole node plugin for volumes whose content is known: the driver says which files a volume has, and the rest is
//! done here.

use std::sync::Arc;

use async_trait::async_trait;
use csi_mount::flow::ephemeral::{self, Content, EphemeralPlan};
use csi_mount::{Evidence, MountEntry};

use super::kernel::mount_options;
use super::{mount_group, targets::MountTable};
use crate::node::{
    GetVolumeStats, Node, NodeGetVolumeStatsRequest, NodeInfo, NodePublishVolumeRequest, NodeService,
    NodeUnpublishVolumeRequest, PublishedTargets,
};
use crate::{Error, Result, VolumeId, VolumeStats, blocking};

/// What only the driver knows of its volumes' content: secrets of a vault, certificates of an authority, a token.
/// [`EphemeralNode`] makes a node plugin of it.
#[async_trait]
pub trait EphemeralContent: Send + Sync + 'static {
    /// Which node this is; the machine's host name, unless the driver knows better. See [`Node::info`].
    ///
    /// # Errors
    /// Those of any RPC.
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::of_host()
    }

    /// All files that the volume has now. The request says for whom: see
    /// [`VolumeContext::pod`](crate::VolumeContext::pod) and [`ServiceAccountTokens`](crate::ServiceAccountTokens).
    ///
    /// With `requiresRepublish` in its CSIDriver object it is asked again and again, about every minute and a half, and
    /// what it answers then replaces the content in place. An error leaves the content as it is.
    ///
    /// # Errors
    /// Whatever keeps the driver from knowing: [`Error::Unavailable`], [`Error::PermissionDenied`].
    async fn content(&self, request: &NodePublishVolumeRequest) -> Result<Content>;

    /// How the volume is mounted: read-only where the request says so, nosuid and nodev, of the group that the files
    /// are handed to, 16 MiB in size. For a size of the driver's own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for mount flags that can't be had.
    fn plan(&self, request: &NodePublishVolumeRequest) -> Result<EphemeralPlan> {
        plan(request)
    }

    /// The volume is gone from the node: for leases that end with it.
    ///
    /// # Errors
    /// Whatever the driver wants to be asked for once more: unpublish is tried again.
    async fn removed(&self, _volume_id: &VolumeId) -> Result<()> {
        Ok(())
    }
}

fn plan(request: &NodePublishVolumeRequest) -> Result<EphemeralPlan> {
    if let Some(option) = mount_options(&request.volume_capability)?.filesystem().first() {
        let reason = format!("{} is an option of a filesystem, which these volumes can't have", option.key());
        return Err(Error::invalid("volume_capability.mount.mount_flags", reason));
    }
    if !request.volume_capability.is_mount() {
        return Err(Error::Unsupported("volume_capability.block: these volumes are files".to_owned()));
    }
    let plan = EphemeralPlan::new(request.volume_id.as_str()).attributes(request.attributes()?);
    Ok(match mount_group::group(&request.volume_capability)? {
        Some(group) => plan.group(group),
        None => plan,
    })
}

/// A node plugin for volumes of known content: writes it to memory, exchanges it as one when it is published again, and
/// has it gone with the unpublish. See [`csi_mount::flow::ephemeral`].
///
/// For inline volumes: name the lifecycle mode `Ephemeral` in the CSIDriver object, `podInfoOnMount`, and
/// `requiresRepublish` for content that changes.
///
/// ```
/// use csi_core::mount::flow::ephemeral::Content;
/// use csi_core::*;
/// use std::sync::Arc;
///
/// struct Greeting;
///
/// #[async_trait]
/// impl EphemeralContent for Greeting {
///     async fn content(&self, request: &NodePublishVolumeRequest) -> Result<Content> {
///         let pod = request.volume_context.pod("pod.name").unwrap_or("whoever you are");
///         Ok(Content::new().file("greeting.txt", format!("Hello, {pod}"))?)
///     }
/// }
///
/// let service = EphemeralNode::service(Arc::new(Greeting));
/// # drop(service);
/// ```
#[derive(Debug, Clone)]
pub struct EphemeralNode<C>(Arc<C>);

impl<C: EphemeralContent> EphemeralNode<C> {
    /// The node plugin of this content.
    pub fn new(content: Arc<C>) -> Self {
        Self(content)
    }

    /// The same as a service, with all that it can do registered.
    pub fn service(content: Arc<C>) -> NodeService<Self> {
        NodeService::new(Arc::new(Self::new(content))).get_volume_stats().volume_mount_group().self_check(&[])
    }
}

#[async_trait]
impl<C: EphemeralContent> Node for EphemeralNode<C> {
    async fn info(&self) -> Result<NodeInfo> {
        self.0.info().await
    }

    async fn publish_volume(&self, request: NodePublishVolumeRequest) -> Result<()> {
        let plan = self.0.plan(&request)?;
        let content = self.0.content(&request).await?;
        blocking(move || {
            let change = ephemeral::publish(&request.target()?, &content, &plan)?;
            tracing::debug!(?change, "published");
            Ok(())
        })
        .await
    }

    async fn published(&self, request: &NodePublishVolumeRequest) -> Result<PublishedTargets> {
        let plan = self.0.plan(request)?;
        let target = request.target_path.clone();
        blocking(move || {
            let is_volume = |entry: &MountEntry| entry.fs_type == "tmpfs" && entry.source == *plan.source();
            Ok(MountTable::read()?.of_mounts(&target, is_volume))
        })
        .await
    }

    async fn unpublish_volume(&self, request: NodeUnpublishVolumeRequest) -> Result<()> {
        let source = EphemeralPlan::new(request.volume_id.as_str()).source().to_owned();
        let evidence = Evidence::Source { fs_type: "tmpfs".to_owned(), source };
        request.unmount_owned(request.owner().known_by(evidence)).await?;
        self.0.removed(&request.volume_id).await
    }
}

#[async_trait]
impl<C: EphemeralContent> GetVolumeStats for EphemeralNode<C> {
    async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
        request.statfs().await
    }
}
