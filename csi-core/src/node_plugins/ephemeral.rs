//! A whole node plugin for volumes whose content the driver generates: the driver says which files a volume
//! has, this module does the rest.

use std::sync::Arc;

use async_trait::async_trait;
use csi_mount::flow::ephemeral::{Content, EphemeralPlan};
use csi_mount::{Evidence, MountEntry};

use super::kernel::{mount_options, refuse_block};
use super::selinux::refuse_filesystem_options;
use super::{mount_group, targets::MountTable};
use crate::blocking::blocking;
use crate::call::request::TypedRequest as _;
use crate::error::Result;
use crate::node::{
    Node, NodeGetVolumeStats, NodeGetVolumeStatsRequest, NodeInfo, NodePublishVolumeRequest, NodeService,
    NodeUnpublishVolumeRequest, PublishedTargets,
};
use crate::types::{VolumeId, VolumeStats};

/// What only the driver knows about its volumes' content: secrets of a vault, certificates of an authority,
/// a token. [`EphemeralNode`] makes a node plugin of it.
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `EphemeralContent`",
    label = "needs `impl EphemeralContent for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait EphemeralContent: Send + Sync + 'static {
    /// Returns the node's id and topology; by default the id is the host name. See [`Node::info`].
    ///
    /// # Errors
    /// Those of any RPC.
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::from_host_name()
    }

    /// Returns all files that the volume currently has. The request says for which pod: see
    /// [`VolumeContext::pod`](crate::types::VolumeContext::pod) and
    /// [`ServiceAccountTokens`](crate::kubernetes::ServiceAccountTokens).
    ///
    /// With `requiresRepublish` in its CSIDriver object the method is called repeatedly, about every 90
    /// seconds, and its answer replaces the content in place. An error leaves the content unchanged.
    ///
    /// # Errors
    /// Any failure that prevents an answer: [`Error::Unavailable`](crate::Error::Unavailable),
    /// [`Error::PermissionDenied`](crate::Error::PermissionDenied).
    async fn content(&self, request: &NodePublishVolumeRequest) -> Result<Content>;

    /// Returns how the volume is mounted. The default is read-only if the request says so, nosuid and
    /// nodev, owned by the group that gets the files, 16 MiB in size. Override it for another size.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for unsupported mount flags.
    fn plan(&self, request: &NodePublishVolumeRequest) -> Result<EphemeralPlan> {
        plan(request)
    }

    /// Called when the volume is removed from the node: for leases that end with it.
    ///
    /// # Errors
    /// Any failure that should be retried: unpublish is repeated, and calls this method again.
    async fn removed(&self, _volume_id: &VolumeId) -> Result<()> {
        Ok(())
    }
}

fn plan(request: &NodePublishVolumeRequest) -> Result<EphemeralPlan> {
    refuse_filesystem_options(&mount_options(&request.volume_capability)?, "this volume")?;
    refuse_block(&request.volume_capability, "these volumes are files")?;
    let plan = EphemeralPlan::new(request.volume_id.as_str()).attributes(request.attributes()?);
    Ok(match mount_group::group(&request.volume_capability)? {
        Some(group) => plan.group(group),
        None => plan,
    })
}

/// A node plugin for generated content: writes the content to memory, replaces it atomically when the
/// volume is published again, and removes it at unpublish. See [`csi_mount::flow::ephemeral`].
///
/// For inline volumes: set the lifecycle mode `Ephemeral` in the CSIDriver object, `podInfoOnMount`, and
/// `requiresRepublish` for content that changes.
///
/// ```
/// use csi_core::mount::flow::ephemeral::Content;
/// use csi_core::node::NodePublishVolumeRequest;
/// use csi_core::{Result, prelude::*};
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
    /// Creates the node plugin for this content.
    pub fn new(content: Arc<C>) -> Self {
        Self(content)
    }

    /// Creates a Node service for this content, with all supported capabilities registered.
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
            let change = request.host().ephemeral().publish(&request.owned_target(), &content, &plan)?;
            tracing::debug!(?change, "published");
            Ok(())
        })
        .await
    }

    async fn published(&self, request: &NodePublishVolumeRequest) -> Result<PublishedTargets> {
        let plan = self.0.plan(request)?;
        let target = request.target_path.clone();
        let host = request.host().clone();
        blocking(move || {
            let is_volume = |entry: &MountEntry| entry.fs_type == "tmpfs" && entry.source == *plan.source();
            Ok(MountTable::read(&host)?.of_mounts(&target, is_volume))
        })
        .await
    }

    async fn unpublish_volume(&self, request: NodeUnpublishVolumeRequest) -> Result<()> {
        let source = EphemeralPlan::new(request.volume_id.as_str()).source().to_owned();
        let evidence = Evidence::Source { fs_type: "tmpfs".to_owned(), source };
        request.unmount_owned(request.owner().evidence(evidence)).await?;
        self.0.removed(&request.volume_id).await
    }
}

#[async_trait]
impl<C: EphemeralContent> NodeGetVolumeStats for EphemeralNode<C> {
    async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
        request.statfs().await
    }
}
