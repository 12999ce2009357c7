//! A whole node plugin for network filesystems: the driver says what to mount and how, this module does the
//! rest.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use csi_mount::flow::shared::SharedSource;
use csi_mount::{Host, MountAttributes, Outcome, OwnedPath, UNMOUNT_TIME_LIMIT};

use super::kernel::{mount_options, refuse_block};
use super::selinux::require_context;
use super::{
    Attachment,
    ownership::{owner, published_from_staging, refuse_to_publish},
    root_permissions::RootPermissions,
    targets::MountTable,
};
use crate::blocking::blocking;
use crate::call::request::TypedRequest as _;
use crate::error::Result;
use crate::node::{
    Node, NodeGetVolumeHealth, NodeGetVolumeHealthRequest, NodeGetVolumeStats, NodeGetVolumeStatsRequest,
    NodeInfo, NodePublishVolumeRequest, NodeService, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, PublishedTargets, StageUnstageVolume,
};
use crate::types::{VolumeCapability, VolumeHealth, VolumeStats};

const NO_DEVICE: &str = "a shared filesystem is no device";

/// What only the driver knows about its shared filesystems (NFS, CephFS, SMB and similar). [`SharedNode`]
/// makes a node plugin of it.
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `SharedFilesystems`",
    label = "needs `impl SharedFilesystems for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait SharedFilesystems: Send + Sync + 'static {
    /// Returns the node's id and topology; by default the id is the host name. See [`Node::info`].
    ///
    /// # Errors
    /// Those of any RPC.
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::from_host_name()
    }

    /// Returns the volume's filesystem: its type, its source, and the options that only the driver knows,
    /// including passwords. The caller's mount flags are added; if both set the same option, the driver's
    /// value applies.
    ///
    /// A plugin that declares VOLUME_MOUNT_GROUP
    /// ([`NodeService::volume_mount_group`](crate::NodeService::volume_mount_group)) must give the files to
    /// [`Attachment::mount_group`]; a filesystem that is staged has the group of its stage. SMB has an option
    /// for it, and so has any filesystem that has no owners on the server:
    ///
    /// ```
    /// # use csi_core::{Attachment, Result, mount::{MountOptions, flow::shared::SharedSource}};
    /// async fn source(volume: &Attachment) -> Result<SharedSource> {
    ///     let mut options = MountOptions::new();
    ///     if let Some(group) = volume.mount_group()? {
    ///         options = options.with_option("gid", &group.to_string())?.with_option("file_mode", "0770")?;
    ///     }
    ///     Ok(SharedSource::smb(volume.volume_context.require("share")?)?.options(options))
    /// }
    /// ```
    ///
    /// Called at each stage, and at each publish that mounts, there more than once.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`](crate::Error::VolumeNotFound) (NOT_FOUND);
    /// [`Error::Unavailable`](crate::Error::Unavailable) while the server can't be found.
    async fn source(&self, volume: &Attachment) -> Result<SharedSource>;

    /// Returns the permissions that the volume's root directory gets; by default it stays as it is. See
    /// [`RootPermissions`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for permissions that can't be parsed.
    fn root_permissions(&self, _volume: &Attachment) -> Result<RootPermissions> {
        Ok(RootPermissions::default())
    }

    /// Returns how long a server can take, after a volume is unmounted, to receive data that was written
    /// but not yet sent; by default [`UNMOUNT_TIME_LIMIT`]. Data that the server does not
    /// accept in this time is lost, because a slow server can't be distinguished from a dead one. A caller
    /// that times out and retries joins the call that waits.
    fn unmount_time_limit(&self) -> Duration {
        UNMOUNT_TIME_LIMIT
    }
}

/// A node plugin for shared filesystems. It mounts them once per node and bind-mounts them for each
/// workload, or mounts them for each workload, and unmounts them whatever state their server is in. See
/// [`csi_mount::flow::shared`].
///
/// A path that is marked as one volume's ([`csi_mount::Owner`]) is refused for another volume:
/// ALREADY_EXISTS to stage it there; FAILED_PRECONDITION to publish it from there, to unpublish or unstage
/// it; NOT_FOUND for stats and health.
///
/// ```
/// use csi_core::mount::{MountOptions, flow::shared::SharedSource};
/// use csi_core::{Result, prelude::*};
/// use std::sync::Arc;
///
/// struct Nfs;
///
/// #[async_trait]
/// impl SharedFilesystems for Nfs {
///     async fn source(&self, volume: &Attachment) -> Result<SharedSource> {
///         let address = volume.volume_context.require("address")?;
///         let options = MountOptions::parse(["vers=4.2"])?.with_option("addr", address)?;
///         Ok(SharedSource::new("nfs", format!("{address}:/{}", volume.volume_id)).options(options))
///     }
/// }
///
/// let service = SharedNode::service(Arc::new(Nfs));
/// # drop(service);
/// ```
#[derive(Debug)]
pub struct SharedNode<S> {
    filesystems: Arc<S>,
    staging: Staging,
}

/// Whether a volume is mounted once per node or at each target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Staging {
    Staged,
    Unstaged,
}

impl<S: SharedFilesystems> SharedNode<S> {
    /// Creates the node plugin that mounts each filesystem once per node.
    pub fn new(filesystems: Arc<S>) -> Self {
        Self { filesystems, staging: Staging::Staged }
    }

    /// Creates a Node service that mounts each filesystem once per node, with all supported capabilities
    /// registered.
    pub fn service(filesystems: Arc<S>) -> NodeService<Self> {
        NodeService::new(Arc::new(Self::new(filesystems)))
            .always_staged()
            .get_volume_stats()
            .get_volume_health()
            .self_check(&[])
    }

    /// Creates a Node service without staging: a volume is mounted at each of its targets. For filesystems
    /// that are cheap to mount, or that are mounted with different credentials for each workload.
    pub fn unstaged_service(filesystems: Arc<S>) -> NodeService<Self> {
        let node = Self { filesystems, staging: Staging::Unstaged };
        NodeService::new(Arc::new(node)).get_volume_stats().get_volume_health().self_check(&[])
    }

    async fn source(&self, volume: &Attachment, capability: &VolumeCapability) -> Result<SharedSource> {
        refuse_block(capability, NO_DEVICE)?;
        let asked = mount_options(capability)?;
        Ok(self.filesystems.source(volume).await?.requested_options(asked)?)
    }

    async fn source_at_target(&self, request: &NodePublishVolumeRequest) -> Result<SharedSource> {
        let volume = Attachment::from(request);
        self.source(&volume, &request.volume_capability).await
    }

    /// Whether the volume is bind-mounted from a staging path; an inline volume never has one.
    fn is_bound(&self, request: &NodePublishVolumeRequest) -> bool {
        self.staging == Staging::Staged && request.staging_target_path.is_some()
    }
}

/// Gives the root its permissions. If that fails, what this call mounted is unmounted: after a final error
/// the caller does not do it.
fn give_permissions(
    host: &Host,
    permissions: RootPermissions,
    place: &OwnedPath,
    outcome: Outcome,
    undo: impl FnOnce() -> csi_mount::Result<()>,
) -> Result<()> {
    let given = permissions.apply(host, place.path());
    if given.is_err()
        && outcome == Outcome::Mounted
        && let Err(left) = undo()
    {
        tracing::info!("a filesystem whose root did not get its permissions stays mounted: {left}");
    }
    given
}

#[async_trait]
impl<S: SharedFilesystems> StageUnstageVolume for SharedNode<S> {
    async fn stage_volume(&self, request: NodeStageVolumeRequest) -> Result<()> {
        let is_read_only = request.volume_capability.access_mode.is_read_only();
        let volume = Attachment::from(&request);
        let mut source = self.source(&volume, &request.volume_capability).await?;
        let mut attributes = mount_options(&request.volume_capability)?.attributes();
        if is_read_only {
            source = source.with_attributes(MountAttributes::RDONLY);
            attributes |= MountAttributes::RDONLY;
        }
        let permissions = self.filesystems.root_permissions(&volume)?.unless_read_only(attributes);
        let limit = self.filesystems.unmount_time_limit();
        blocking(move || {
            let place = request.owned_staging();
            let outcome = request.host().shared().stage(&place, &source)?;
            let undo = || request.host().shared().unstage(&place, limit).map(drop);
            give_permissions(request.host(), permissions, &place, outcome, undo)?;
            tracing::info!(?source, ?outcome, "staged");
            Ok(())
        })
        .await
    }

    async fn unstage_volume(&self, request: NodeUnstageVolumeRequest) -> Result<()> {
        let limit = self.filesystems.unmount_time_limit();
        blocking(move || {
            request.host().shared().unstage(&request.owned_staging(), limit)?;
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl<S: SharedFilesystems> Node for SharedNode<S> {
    async fn info(&self) -> Result<NodeInfo> {
        self.filesystems.info().await
    }

    async fn publish_volume(&self, request: NodePublishVolumeRequest) -> Result<()> {
        refuse_block(&request.volume_capability, NO_DEVICE)?;
        let options = mount_options(&request.volume_capability)?;
        let attributes = request.attributes()?;
        if !self.is_bound(&request) {
            let source = self.source_at_target(&request).await?;
            let permissions = self.filesystems.root_permissions(&Attachment::from(&request))?;
            let permissions = permissions.unless_read_only(attributes);
            let limit = self.filesystems.unmount_time_limit();
            return blocking(move || {
                let place = request.owned_target();
                let outcome = request.host().shared().publish_directly(&place, &source, attributes)?;
                let undo = || request.host().shared().unpublish(&place, limit).map(drop);
                give_permissions(request.host(), permissions, &place, outcome, undo)
            })
            .await;
        }
        let Some(staging) = request.staging_target_path.clone() else { return Ok(()) };
        blocking(move || {
            let owner = owner(&request.volume_id, request.plugin());
            refuse_to_publish(request.host(), &staging, &request.volume_id, &owner)?;
            require_context(request.host(), &options, &staging)?;
            published_from_staging(request.host().shared().publish(
                &staging,
                &request.owned_target(),
                attributes,
            ))
        })
        .await
    }

    async fn published(&self, request: &NodePublishVolumeRequest) -> Result<PublishedTargets> {
        let target = request.target_path.clone();
        let host = request.host().clone();
        match &request.staging_target_path {
            Some(staging) if self.is_bound(request) => {
                let staging = staging.clone();
                blocking(move || Ok(MountTable::read(&host)?.of_staged(&staging, &target, None))).await
            }
            _ => {
                let source = self.source_at_target(request).await?;
                blocking(move || {
                    Ok(MountTable::read(&host)?.of_mounts(&target, |entry| source.is_mounted_as(entry)))
                })
                .await
            }
        }
    }

    async fn unpublish_volume(&self, request: NodeUnpublishVolumeRequest) -> Result<()> {
        let limit = self.filesystems.unmount_time_limit();
        blocking(move || {
            request.host().shared().unpublish(&request.owned_target(), limit)?;
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl<S: SharedFilesystems> NodeGetVolumeStats for SharedNode<S> {
    async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
        request.statfs().await
    }
}

#[async_trait]
impl<S: SharedFilesystems> NodeGetVolumeHealth for SharedNode<S> {
    async fn volume_health(&self, request: NodeGetVolumeHealthRequest) -> Result<VolumeHealth> {
        request.mount_health().await
    }
}
