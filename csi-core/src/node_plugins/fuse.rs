//! A whole node plugin for filesystems that a FUSE program serves: the driver says which program, this
//! module does the rest.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
#[cfg(feature = "http")]
use csi_mount::flow::fuse::MounterDaemon;
use csi_mount::flow::fuse::{FuseDaemon, Mounter, resume};
use csi_mount::{ErrorKind, Host, MountAttributes, NodeNeed, OwnedPath, Owner, UNMOUNT_TIME_LIMIT};
use tokio::sync::Mutex;

#[cfg(feature = "http")]
use super::fuse_metrics;
use super::kernel::{mount_options, refuse_block};
use super::selinux::require_context;
use super::{
    Attachment,
    ownership::{another_is_staged, owner, published_from_staging, refuse_to_publish},
    root_permissions::RootPermissions,
    targets::MountTable,
};
use crate::blocking::blocking;
use crate::call::request::TypedRequest as _;
use crate::error::{Error, Result};
use crate::kubernetes::FUSE_POD_KEY;
use crate::node::{
    Node, NodeGetVolumeHealth, NodeGetVolumeHealthRequest, NodeGetVolumeStats, NodeGetVolumeStatsRequest,
    NodeInfo, NodePublishVolumeRequest, NodeService, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, PublishedTargets, StageUnstageVolume,
};
use crate::types::{
    AccessType, MountFlags, VolumeCapability, VolumeHealth, VolumeHealthEntry, VolumeId, VolumeStats,
};

const NO_DEVICE: &str = "a FUSE filesystem is no device";

/// What only the driver knows about its FUSE filesystems. [`FuseNode`] makes a node plugin of it.
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `FuseFilesystems`",
    label = "needs `impl FuseFilesystems for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
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
    /// Called at each stage. Also called at a publish with that call's secrets, if it has any, or service account tokens, or
    /// if the daemon has died meanwhile: a daemon that runs gets the new content of its
    /// [credentials](FuseDaemon::arg_credential), and another one is started again. Without staging ([`FuseNode::unstaged_service`]) it is called at
    /// each publish, also where the daemon already runs, with the call's current tokens and secrets. A
    /// driver whose tokens are renewed writes them here to the file from which its daemon reads them.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] (NOT_FOUND); [`Error::InvalidArgument`] for unsupported flags.
    async fn daemon(&self, volume: &Attachment, flags: &MountFlags, mountpoint: &Path) -> Result<FuseDaemon>;

    /// Returns where the daemons run, if they are not children of this process: in a pod of their own, so that they
    /// outlive the driver's pod, have their own limits and log, and no privilege. `DriverArgs::mounter` returns what
    /// the manifests have set. The same value at each call.
    ///
    /// Such a daemon must have [`FuseDaemon::arg_device`], stay in the foreground, and find its program and files in that
    /// pod. `docs/fuse.md` of the repository has the details. A daemon that an earlier version of the driver has started
    /// as its child stays until its volume is unstaged.
    fn mounter(&self) -> Option<Mounter> {
        None
    }

    /// Checks that the volume is ready, after the mount exists and answers: for a daemon that mounts before
    /// it knows. An error fails the stage; the daemon keeps running for the next attempt.
    ///
    /// # Errors
    /// Any reason why the volume can't be used.
    async fn ready(&self, _volume: &Attachment, _mountpoint: &Path) -> Result<()> {
        Ok(())
    }

    /// Returns the permissions that the volume's root directory gets; by default it stays as it is. See
    /// [`RootPermissions`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for permissions that can't be parsed.
    fn root_permissions(&self, _volume: &Attachment) -> Result<RootPermissions> {
        Ok(RootPermissions::default())
    }

    /// Returns whether volumes can have set-user-ID programs and device nodes. By default they can't: each target is mounted
    /// with `nosuid,nodev`, because the program alone decides what its files are, and a workload or the node would run
    /// them with root's rights.
    fn allows_suid_and_dev(&self) -> bool {
        false
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
/// use csi_core::types::MountFlags;
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
    /// Where the daemons mount if the volumes are not staged.
    mounts: Option<PathBuf>,
    /// Held while the daemons in other pods are looked for.
    resuming: Arc<Mutex<()>>,
}

// Not derived, because the filesystems need not be `Clone`.
impl<F> Clone for FuseNode<F> {
    fn clone(&self) -> Self {
        let filesystems = Arc::clone(&self.filesystems);
        Self { filesystems, mounts: self.mounts.clone(), resuming: Arc::clone(&self.resuming) }
    }
}

impl<F: FuseFilesystems> FuseNode<F> {
    /// Creates the node plugin for these filesystems.
    pub fn new(filesystems: Arc<F>) -> Self {
        Self { filesystems, mounts: None, resuming: Arc::default() }
    }

    /// Creates a Node service for these filesystems, with all supported capabilities registered.
    pub fn service(filesystems: Arc<F>) -> NodeService<Self> {
        Self::new(filesystems).into_service().always_staged()
    }

    /// Creates a Node service with what staged and unstaged volumes have.
    fn into_service(self) -> NodeService<Self> {
        let filesystems = Arc::clone(&self.filesystems);
        let service = NodeService::new(Arc::new(self))
            .get_volume_stats()
            .get_volume_health()
            .self_check(&[NodeNeed::Fuse])
            .fuse_pods(filesystems.mounter().is_some());
        #[cfg(feature = "http")]
        let service = service.metrics(move |out| {
            let Some(mounter) = filesystems.mounter() else { return Ok(()) };
            let daemons = mounter.daemons();
            fuse_metrics::write(out, daemons.iter().map(|daemon| (volume_of(daemon), daemon.into())))
        });
        service
    }

    /// Creates a Node service without STAGE_UNSTAGE_VOLUME: each target has a daemon of its own, which is
    /// started by NodePublishVolume and ended by NodeUnpublishVolume.
    ///
    /// For inline volumes, and for daemons that act as the pod that uses them. The volume context has the
    /// pod's identity with `podInfoOnMount` in the CSIDriver object, and
    /// [`Attachment::service_account_tokens`] has its tokens with `tokenRequests`. With `requiresRepublish`
    /// the kubelet publishes again about every 90 seconds, with new tokens:
    /// [`FuseFilesystems::daemon`] is then called again, and the running daemon stays.
    ///
    /// The daemons mount in `directory`, in one directory per target, and the target gets a bind mount with
    /// the attributes of the call. The directory must exist, belong to this driver alone, and be visible to
    /// the host: in a container below a volume with `mountPropagation: Bidirectional`, such as
    /// `/var/lib/kubelet/plugins/DRIVER/mounts`.
    ///
    /// ```
    /// use csi_core::mount::flow::fuse::FuseDaemon;
    /// use csi_core::types::MountFlags;
    /// use csi_core::{Result, prelude::*};
    /// use std::{path::Path, sync::Arc};
    ///
    /// struct Buckets;
    ///
    /// #[async_trait]
    /// impl FuseFilesystems for Buckets {
    ///     async fn daemon(&self, volume: &Attachment, _: &MountFlags, mountpoint: &Path) -> Result<FuseDaemon> {
    ///         let tokens = volume.service_account_tokens()?;
    ///         let token = tokens.for_audience("s3.example.org").ok_or(Error::invalid("tokens", "has none for s3.example.org"))?;
    ///         let file = mountpoint.with_extension("token");
    ///         write_private(&file, token.reveal())?;
    ///         let pod = volume.volume_context.pod("pod.name").unwrap_or("unknown");
    ///         Ok(FuseDaemon::new("example-s3").args(["--user-agent", pod, "--token-file"]).arg(file).arg(mountpoint))
    ///     }
    /// }
    ///
    /// let mounts = "/var/lib/kubelet/plugins/s3.csi.example.org/mounts";
    /// let service = FuseNode::unstaged_service(Arc::new(Buckets), mounts).volume_mount_group();
    /// # drop(service);
    /// # fn write_private(_: &Path, _: &str) -> Result<()> { Ok(()) }
    /// ```
    pub fn unstaged_service(filesystems: Arc<F>, directory: impl Into<PathBuf>) -> NodeService<Self> {
        Self { mounts: Some(directory.into()), ..Self::new(filesystems) }.into_service()
    }

    /// Follows the daemons in other pods again, beside the calls: no mounter and no daemon makes one wait.
    fn resume(&self) {
        let Some(mounter) = self.filesystems.mounter() else { return };
        let Ok(turn) = Arc::clone(&self.resuming).try_lock_owned() else { return };
        let limit = self.filesystems.unmount_time_limit();
        tokio::spawn(async move {
            if let Err(error) = blocking(move || Ok(resume(&mounter, limit)?)).await {
                tracing::warn!(
                    "the FUSE daemons in other pods are not followed before their next call: {error}"
                );
            }
            drop(turn);
        });
    }

    /// Where the daemon of a target mounts if the volumes are not staged.
    fn mount_of(&self, target: &Path, owner: Owner) -> Option<OwnedPath> {
        let mounts = self.mounts.as_ref()?;
        let name = format!("{:016x}", fnv1a(target.as_os_str().as_encoded_bytes().iter().copied()));
        Some(OwnedPath::new(mounts.join(name), owner.roots([mounts])))
    }

    async fn stage(
        &self,
        volume: &Attachment,
        capability: &VolumeCapability,
        staging: &Path,
        owner: Owner,
        permissions: RootPermissions,
    ) -> Result<()> {
        let AccessType::Mount { mount_flags: flags, .. } = &capability.access_type else {
            return refuse_block(capability, NO_DEVICE);
        };
        let daemon = self.filesystems.daemon(volume, flags, staging).await?;
        let group = volume.mount_group()?.map(|group| format!("volume_mount_group={group}"));
        let of_daemon = flags.iter().chain(group.as_deref()).collect();
        let daemon = daemon.unmount_time_limit(self.filesystems.unmount_time_limit());
        let daemon =
            if self.filesystems.allows_suid_and_dev() { daemon.allow_suid_and_dev() } else { daemon };
        let mut daemon = daemon.identity(mark(&volume.volume_id, of_daemon));
        if let Some(mounter) = self.filesystems.mounter() {
            if let Some(pod) = volume.publish_context.get(FUSE_POD_KEY) {
                mounter.set_pod(staging, pod);
            }
            daemon = daemon.mounter(mounter);
        }
        let place = OwnedPath::new(staging, owner);
        let host = volume.host().clone();
        blocking(move || {
            let outcome = host.fuse().stage(&place, &daemon)?;
            tracing::info!(?daemon, ?outcome, "staged");
            Ok(())
        })
        .await?;
        self.filesystems.ready(volume, staging).await?;
        let host = volume.host().clone();
        let staging = staging.to_owned();
        blocking(move || permissions.apply(&host, &staging)).await
    }

    /// Binds what the daemon mounts at `staging` to the target. Starts the daemon first if it has died, or
    /// if the volume is not staged.
    async fn publish_staged(
        &self,
        request: NodePublishVolumeRequest,
        staging: &Path,
        owner: Owner,
    ) -> Result<()> {
        refuse_block(&request.volume_capability, NO_DEVICE)?;
        // The daemon gets the filesystem's flags; the bind mount gets the mount attributes.
        let options = mount_options(&request.volume_capability)?;
        let attributes = request.attributes()?;
        let host = request.host().clone();
        let id = request.volume_id.clone();
        let path = staging.to_owned();
        let volume_owner = owner.clone();
        let looked = blocking(move || {
            refuse_to_publish(&host, &path, &id, &volume_owner)?;
            // If the path has no mark, its daemon identifies the volume.
            let is_marked = host.mounts().marked_owner(&path)?.is_some();
            let served = (!is_marked).then(|| host.fuse().identity(&path)).flatten();
            if served.is_some_and(|mark| !is_of(&mark.to_string_lossy(), &id)) {
                return Err(another_is_staged(&path, &id));
            }
            let is_staged = host.mounts().state(&path)?.mount_point().is_some();
            Ok((is_staged, host.mounts().has_lost_daemon(&path)?))
        });
        let (is_staged, is_lost) = looked.await?;
        let volume = Attachment::from(&request);
        if is_lost || self.mounts.is_some() {
            let permissions = self.filesystems.root_permissions(&volume)?.unless_read_only(attributes);
            self.stage(&volume, &request.volume_capability, staging, owner, permissions).await?;
        } else if is_staged && has_credentials(&request) {
            let kept = RootPermissions::default();
            // The volume works with those of its stage.
            if let Err(error) = self.stage(&volume, &request.volume_capability, staging, owner, kept).await {
                tracing::warn!(
                    volume_id = %request.volume_id,
                    "the credentials of a FUSE daemon are not those of the publish: {error}"
                );
            }
        }
        let staging = staging.to_owned();
        let forced = if self.filesystems.allows_suid_and_dev() {
            MountAttributes::empty()
        } else {
            MountAttributes::NOSUID | MountAttributes::NODEV
        };
        blocking(move || {
            require_context(request.host(), &options, &staging)?;
            let target = request.owned_target();
            let publish = |attributes| request.host().fuse().publish(&staging, &target, attributes);
            published_from_staging(publish(attributes | forced).or_else(|error| match error.kind() {
                // A version of the driver that forced nothing has published it, and its pod runs.
                ErrorKind::AlreadyMounted => publish(attributes).map_err(|_| error),
                _ => Err(error),
            }))
        })
        .await
    }
}

/// Whether a publish has what can be newer than at the stage, which the orchestrator does not repeat.
fn has_credentials(request: &NodePublishVolumeRequest) -> bool {
    request.secrets.iter().next().is_some() || request.volume_context.pod("serviceAccount.tokens").is_some()
}

/// The mark by which a later process recognises the volume's daemon: the id, and a hash of the flags. The
/// hash detects other flags, and is too short to find a password with it.
fn mark(id: &VolumeId, mut flags: Vec<&str>) -> String {
    flags.sort_unstable();
    let sum = fnv1a(flags.iter().flat_map(|flag| flag.bytes().chain([0])));
    format!("{id} {:04x}", sum >> 48)
}

/// A hash that stays the same in all versions.
fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn is_of(mark: &str, id: &VolumeId) -> bool {
    mark.rsplit_once(' ').is_some_and(|(marked, _)| marked == id.as_str())
}

/// The id of the volume that a daemon serves, by its mark.
#[cfg(feature = "http")]
fn volume_of(daemon: &MounterDaemon) -> String {
    let mark = daemon.identity.as_deref().unwrap_or_default().to_string_lossy();
    mark.rsplit_once(' ').map_or_else(String::new, |(id, _)| id.to_owned())
}

#[async_trait]
impl<F: FuseFilesystems> StageUnstageVolume for FuseNode<F> {
    async fn stage_volume(&self, request: NodeStageVolumeRequest) -> Result<()> {
        let owner = owner(&request.volume_id, request.plugin());
        let volume = Attachment::from(&request);
        let permissions = if request.volume_capability.access_mode.is_read_only() {
            RootPermissions::default()
        } else {
            self.filesystems.root_permissions(&volume)?
        };
        let staging = &request.staging_target_path;
        self.stage(&volume, &request.volume_capability, staging, owner, permissions).await
    }

    async fn unstage_volume(&self, request: NodeUnstageVolumeRequest) -> Result<()> {
        let limit = self.filesystems.unmount_time_limit();
        let mounter = self.filesystems.mounter();
        blocking(move || end_daemon(request.host(), &request.owned_staging(), limit, mounter)).await
    }
}

#[async_trait]
impl<F: FuseFilesystems> Node for FuseNode<F> {
    async fn info(&self) -> Result<NodeInfo> {
        // The plugin asks for this before it serves.
        self.resume();
        self.filesystems.info().await
    }

    async fn publish_volume(&self, request: NodePublishVolumeRequest) -> Result<()> {
        let owner = owner(&request.volume_id, request.plugin());
        let Some(mount) = self.mount_of(&request.target_path, owner.clone()) else {
            let Some(staging) = request.staging_target_path.clone() else {
                let required = "is required: this driver stages its volumes";
                return Err(Error::invalid("staging_target_path", required));
            };
            return self.publish_staged(request, &staging, owner).await;
        };
        let host = request.host().clone();
        let path = mount.path().to_owned();
        let owner = mount.owner().clone();
        let published = self.publish_staged(request, &path, owner).await;
        if published.is_err() {
            // After a final error the caller need not unpublish. A daemon that a target uses stays.
            let limit = self.filesystems.unmount_time_limit();
            let mounter = self.filesystems.mounter();
            if let Err(left) = blocking(move || end_unstaged(&host, &mount, limit, mounter)).await {
                tracing::info!("the daemon of a target that could not be published stays: {left}");
            }
        }
        published
    }

    async fn published(&self, request: &NodePublishVolumeRequest) -> Result<PublishedTargets> {
        let owner = owner(&request.volume_id, request.plugin());
        let staging = match self.mount_of(&request.target_path, owner) {
            Some(mount) => mount.path().to_owned(),
            None => match &request.staging_target_path {
                Some(staging) => staging.to_path_buf(),
                None => return Ok(PublishedTargets::default()),
            },
        };
        let target = request.target_path.clone();
        let host = request.host().clone();
        blocking(move || Ok(MountTable::read(&host)?.of_staged(&staging, &target, None))).await
    }

    async fn unpublish_volume(&self, request: NodeUnpublishVolumeRequest) -> Result<()> {
        let mount = self.mount_of(&request.target_path, request.owner());
        let limit = self.filesystems.unmount_time_limit();
        let mounter = self.filesystems.mounter();
        blocking(move || {
            request.host().fuse().unpublish(&request.owned_target())?;
            mount.map_or(Ok(()), |mount| end_unstaged(request.host(), &mount, limit, mounter))
        })
        .await
    }
}

/// Unmounts, and waits for the end of the daemon.
fn end_daemon(host: &Host, staging: &OwnedPath, limit: Duration, mounter: Option<Mounter>) -> Result<()> {
    let start = Instant::now();
    host.fuse().unstage(staging, limit)?;
    if let Some(mounter) = mounter {
        mounter.end(staging.path(), limit.saturating_sub(start.elapsed()))?;
    }
    Ok(())
}

/// Ends the daemon of a target, and removes the directory where it mounts.
fn end_unstaged(host: &Host, mount: &OwnedPath, limit: Duration, mounter: Option<Mounter>) -> Result<()> {
    end_daemon(host, mount, limit, mounter)?;
    host.fuse().unpublish(mount)?;
    Ok(())
}

/// Why the daemon has died, as far as this process knows. The memory limit comes first: a long message is cut.
fn last_end(host: &Host, mounter: Option<Mounter>, staging: &Path) -> Option<String> {
    let exceeded = host.fuse().exceeded_memory_limit(staging);
    let killed =
        exceeded.map(|bytes| format!("its daemon was killed: over its memory limit of {bytes} bytes"));
    killed.or_else(|| mounter?.last_end(staging))
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
        let mut health = request.mount_health().await?;
        let own = owner(&request.volume_id, request.plugin());
        let mount = request.volume_publish_path.as_deref().and_then(|target| self.mount_of(target, own));
        let staging = mount.map(|mount| mount.path().to_owned());
        let staging = staging.or_else(|| request.staging_target_path.as_deref().map(Path::to_owned));
        let host = request.host().clone();
        let mounter = self.filesystems.mounter();
        let is_dead = |entry: &VolumeHealthEntry| entry.reason == "FilesystemDead";
        if let Some(staging) = staging.filter(|_| health.entries.iter().any(is_dead))
            && let Some(end) = blocking(move || Ok(last_end(&host, mounter, &staging))).await?
        {
            for entry in health.entries.iter_mut().filter(|entry| is_dead(entry)) {
                entry.message = format!("{end}; {}", entry.message);
            }
        }
        Ok(health)
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
        assert_eq!(mark("a volume", &["password=hunter2"]), "a volume 9707");
        assert!(is_of("a volume 12ab", &VolumeId::new("a volume").unwrap()));
        assert!(!is_of("a volume 12ab", &VolumeId::new("a").unwrap()));
    }
}
