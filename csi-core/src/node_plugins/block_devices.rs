//! The trait by which a driver describes volumes that are block devices.

use std::path::PathBuf;

use async_trait::async_trait;
use csi_mount::flow::block::{MountCopies, StagePlan};
use csi_mount::{Filesystem, Host, IdMap};

use super::kernel::mount_options;
use super::mount_group::{self, MountGroup};
use crate::call::request::TypedRequest as _;
use crate::error::{Error, Result};
use crate::kubernetes::ServiceAccountTokens;
use crate::node::{NodeInfo, NodePublishVolumeRequest, NodeStageVolumeRequest};
use crate::types::{PublishContext, Secrets, VolumeCapability, VolumeContext, VolumeId};

/// What only the driver knows about its block devices. [`BlockNode`](super::BlockNode) makes a node plugin
/// of it.
///
/// Disks that the storage system attaches to the node:
///
/// ```
#[doc = include_str!("../../docs/attached_disks.rs")]
/// # drop(BlockNode::service(std::sync::Arc::new(Disks { attachments: "/attachments".into() })));
/// ```
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `BlockDevices`",
    label = "needs `impl BlockDevices for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait BlockDevices: Send + Sync + 'static {
    /// Returns the node's id and topology; by default the id is the host name. See
    /// [`Node::info`](crate::Node::info).
    ///
    /// # Errors
    /// Those of any RPC.
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::from_host_name()
    }

    /// Makes the volume's device appear on this node, and returns its path. If the device already exists,
    /// returns its path.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] (NOT_FOUND); [`Error::Unavailable`] when the device does not appear in
    /// time.
    async fn attach(&self, volume: &Attachment) -> Result<PathBuf>;

    /// Returns the path of the volume's device on this node, if it exists.
    ///
    /// Publish calls carry the contexts of the volume. Other calls name it by its id only: with
    /// [`attachments_directory`](Self::attachments_directory) they get the contexts of its stage, and
    /// without it empty ones. Secrets are empty in any case.
    ///
    /// `None` does not stop a volume that is still mounted from being unpublished, unstaged, measured or
    /// grown: the node's mounts show which volume it is.
    ///
    /// # Errors
    /// Any failure that prevents an answer.
    async fn device(&self, volume: &Attachment) -> Result<Option<PathBuf>>;

    /// Removes the volume's device from this node. Nothing uses it any more. A device that does not exist
    /// is `Ok`. What is known about the volume is the same as for [`device`](Self::device).
    ///
    /// # Errors
    /// Any failure to remove the device.
    async fn detach(&self, volume: &Attachment) -> Result<()>;

    /// Returns the directory in which the node plugin keeps the contexts of each staged volume, for a driver
    /// that finds a device only by them: a LUN, a device name, an NQN. By default there is none, and nothing
    /// is kept.
    ///
    /// The directory must be on a disk of the node, not of the container, and belong to this driver only:
    /// `/var/lib/kubelet/plugins/NAME/attachments`, for example. It is created. Each volume has one file of
    /// mode 0600, written before [`attach`](Self::attach) and removed after [`detach`](Self::detach). It
    /// has no secrets and no data about pods. [`device`](Self::device), `detach` and
    /// [`refresh`](Self::refresh) are then called only for a volume that has a file, except at a stage and
    /// a publish, so they can rely on the contexts. One exception: if the file can't be read, NodeUnstageVolume
    /// unmounts the volume and calls `detach` with empty contexts. A driver that needs them returns an error there
    /// ([`require`](crate::types::StringMap::require)); the answer then names the file and its repair.
    ///
    /// After a restart of the node, `detach` is called with the contexts from before it. A driver whose
    /// addresses are reused must check what it finds there. A device that is in use then is another volume's,
    /// and is not detached.
    fn attachments_directory(&self) -> Option<PathBuf> {
        None
    }

    /// Makes the volume's current size visible on the node, before a filesystem is grown. For devices that
    /// do not report a new size by themselves.
    ///
    /// # Errors
    /// Any failure to update the size.
    async fn refresh(&self, _volume: &Attachment) -> Result<()> {
        Ok(())
    }

    /// Returns the filesystems whose programs should be installed when the plugin starts; it logs missing
    /// ones.
    fn filesystems(&self) -> Vec<Filesystem> {
        Filesystem::ALL.to_vec()
    }

    /// Returns what happens to mounts of a volume's device in other mount namespaces when it is unstaged.
    /// By default they stay, and NodeUnstageVolume fails and names them. With
    /// [`MountCopies::UnmountUnused`] mounts that nothing has open are unmounted; see its documentation for
    /// the danger.
    ///
    /// With [`MountCopies::ShutDown`] the filesystem is written back and shut down, and NodeUnstageVolume answers
    /// OK. The device is not [detached](Self::detach) while it is in use. It is recorded in the
    /// [`attachments_directory`](Self::attachments_directory), which this choice needs: until it is free,
    /// NodeStageVolume of the volume is FAILED_PRECONDITION and names its users. The next stage uses the device
    /// again, and a repeated unstage detaches it. What a driver of its own device addresses does after
    /// ControllerUnpublishVolume, such as to remove a LUN, is safe: the filesystem writes nothing more.
    fn mount_copies(&self) -> MountCopies {
        MountCopies::default()
    }

    /// Returns whether a volume that one node writes is reserved for that node at its storage, so that a node that is cut
    /// off cannot write any more ([`csi_mount::reservation`]). By default it is not.
    ///
    /// The driver's controller publishes volumes, keeps a [`PublishRecord`](super::PublishRecord) for each, and puts its
    /// [`context`](super::PublishRecord::context) into the publish context. NodeGetVolumeHealth reports the reservation if
    /// there is an [`attachments_directory`](Self::attachments_directory): `Fenced`, `NotReserved`, or `NotFenced` for a
    /// device without reservations. `examples/iscsi` and `examples/nvme-tcp` do this.
    #[cfg(feature = "remote")]
    fn fencing(&self) -> csi_mount::reservation::Fencing {
        csi_mount::reservation::Fencing::Off
    }

    /// Returns how the group of VOLUME_MOUNT_GROUP gets access to a volume's files, if that capability is
    /// declared.
    fn mount_group(&self) -> MountGroup {
        MountGroup::default()
    }

    /// Returns the owners and groups that the volume's mounts for pods show; by default those on the disk.
    /// [`FilesystemOptions::id_map`](super::FilesystemOptions::id_map) reads them from keys of the class. Nothing
    /// changes on the disk, and the staging path shows the disk's owners. A raw volume has none.
    ///
    /// It needs Linux 5.12 and a filesystem with id-mapped mounts ([`csi_mount::Bind::id_map`]); without them
    /// NodePublishVolume is FAILED_PRECONDITION. A container runtime can't map such a mount a second time, so pods with
    /// a user namespace of their own (`hostUsers: false`) do not start.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a map that is not possible.
    fn id_map(&self, _volume: &Attachment) -> Result<IdMap> {
        Ok(IdMap::new())
    }

    /// Returns how the volume's device is encrypted, or `None` if it is not. A blank device is encrypted
    /// when it is staged; the decrypted device is formatted, mounted or published. The key is in the call's
    /// secrets, under the name that [`encryption_key`](Self::encryption_key) returns. A volume must be
    /// either always encrypted or never, so decide by its [`volume_context`](Attachment::volume_context), not by
    /// whether the call has a key: NodePublishVolume can have none, and would publish a raw volume undecrypted.
    ///
    /// ```
    /// # use csi_core::{Attachment, Result, mount::Luks};
    /// fn encryption(volume: &Attachment) -> Result<Option<Luks>> {
    ///     Ok((volume.volume_context.get("encrypted") == Some("true")).then(Luks::new))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for unsupported encryption settings.
    #[cfg(feature = "luks")]
    fn encryption(&self, _volume: &Attachment) -> Result<Option<csi_mount::Luks>> {
        Ok(None)
    }

    /// Returns the name of the encryption key among the secrets of NodeStageVolume and NodeExpandVolume.
    /// With the key NodeExpandVolume grows an encrypted device at once; without it the device grows when it
    /// is staged next.
    #[cfg(feature = "luks")]
    fn encryption_key(&self) -> &str {
        "luksKey"
    }

    /// Returns how a volume is formatted and mounted. The default is [`stage_plan`]: the filesystem that
    /// the caller names, or ext4, with the caller's mount options. A driver with more information starts
    /// from [`stage_plan`] and adds to it: the expected disk, a label, arguments of `mkfs`, limits of
    /// checks, and whether the volume already has content: see [`staged`](Self::staged).
    ///
    /// # Errors
    /// Those of [`stage_plan`].
    async fn plan(&self, _volume: &Attachment, capability: &VolumeCapability) -> Result<StagePlan> {
        stage_plan(capability)
    }

    /// Called when the volume has a filesystem, created or found, that is about to be used.
    ///
    /// A driver can store this fact with the volume; its [`plan`](Self::plan) then returns
    /// [`never_format`](StagePlan::never_format) for the volume. This prevents data loss if the device of a
    /// used volume reads as blank. The fact must be stored for all nodes, and for copies of the volume too.
    /// The method is called before each answer to NodeStageVolume, so the fact can already be stored; it is
    /// not called for raw volumes. `examples/block` does this in ten lines.
    ///
    /// # Errors
    /// Any failure to store it: the stage then fails, and is repeated.
    async fn staged(&self, _volume: &Attachment) -> Result<()> {
        Ok(())
    }
}

/// The plan for what the caller requests: the filesystem that it names, or ext4, with its mount options,
/// read-only if the access mode is.
///
/// # Errors
/// [`Error::InvalidArgument`] for an unsupported filesystem or mount option. [`Error::Unsupported`] for an access mode
/// in which several nodes mount the filesystem and one of them writes, which destroys it. The controller is not always
/// asked before, for example about a PersistentVolume that an administrator made.
pub fn stage_plan(capability: &VolumeCapability) -> Result<StagePlan> {
    let mode = capability.access_mode;
    if mode.is_multi_node() && !mode.is_read_only() {
        return Err(Error::Unsupported(
            format!(
                "volume_capability.access_mode: with {mode} several nodes would mount the filesystem of one device, \
                 and a write destroys it; use a mode of one node, or the raw device"
            )
            .into(),
        ));
    }
    let filesystem = filesystem(capability)?.unwrap_or(Filesystem::Ext4);
    let options = mount_options(capability)?;
    Ok(StagePlan::new(filesystem).options(if mode.is_read_only() { options.read_only() } else { options }))
}

/// The filesystem that the caller names.
fn filesystem(capability: &VolumeCapability) -> Result<Option<Filesystem>> {
    let parse = |name: &str| {
        name.parse().map_err(|error: csi_mount::Error| {
            Error::invalid("volume_capability.mount.fs_type", error.to_string())
        })
    };
    capability.fs_type().map(parse).transpose()
}

/// A volume on this node, and what is known about it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Attachment {
    /// The volume.
    pub volume_id: VolumeId,
    /// The context that ControllerPublishVolume returned, if it is known.
    pub publish_context: PublishContext,
    /// The context that CreateVolume returned, if it is known.
    pub volume_context: VolumeContext,
    /// How the volume is to be used, at a stage and a publish.
    pub volume_capability: Option<VolumeCapability>,
    /// The credentials of the call. They are never kept.
    pub secrets: Secrets,
    pub(super) host: Host,
}

impl Attachment {
    /// A volume of which only the id is known, on the kernel.
    pub fn new(volume_id: VolumeId) -> Self {
        Self {
            volume_id,
            publish_context: PublishContext::default(),
            volume_context: VolumeContext::default(),
            volume_capability: None,
            secrets: Secrets::default(),
            host: Host::kernel(),
        }
    }

    /// Returns the host that the call works on: see [`TypedRequest::host`](crate::TypedRequest::host).
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the group that is to have access to the volume's files, at a stage and a publish of a plugin
    /// that declares VOLUME_MOUNT_GROUP
    /// ([`NodeService::volume_mount_group`](crate::NodeService::volume_mount_group)).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it is not the number of a group.
    pub fn mount_group(&self) -> Result<Option<u32>> {
        self.volume_capability.as_ref().map_or(Ok(None), mount_group::group)
    }

    /// Returns the tokens of the pod's service account, which the kubelet sends at a publish if the CSIDriver
    /// object has `tokenRequests`. Empty if it sent none.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the tokens can't be parsed.
    pub fn service_account_tokens(&self) -> Result<ServiceAccountTokens> {
        ServiceAccountTokens::from_request(&self.secrets, &self.volume_context)
    }
}

macro_rules! from_request {
    ($($request:ident),+) => {
        $(impl From<&$request> for Attachment {
            fn from(request: &$request) -> Self {
                Self {
                    volume_id: request.volume_id.clone(),
                    publish_context: request.publish_context.clone(),
                    volume_context: request.volume_context.clone(),
                    volume_capability: Some(request.volume_capability.clone()),
                    secrets: request.secrets.clone(),
                    host: request.host().clone(),
                }
            }
        })+
    };
}
from_request!(NodeStageVolumeRequest, NodePublishVolumeRequest);
