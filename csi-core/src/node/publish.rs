//! What every node plugin does: publish a volume at a workload's path, and unpublish it.

use std::path::{Path, PathBuf};

use async_trait::async_trait;

use super::NodeInfo;
use super::matrix::{OneAtATime, PublishedTargets, SingleNodeWriter};
use crate::admission::{Claim, Key};
use crate::call::request::request;
use crate::call::{Call, answers_nothing};
use crate::error::{Error, Result};
use crate::offer::{NodeCapability as Capability, Offer};
use crate::types::{PublishContext, Secrets, VolumeCapability, VolumeContext, VolumeId};

/// What every node plugin implements. Spec: "Node Service RPC".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `Node`",
    label = "needs `impl Node for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait Node: Send + Sync + 'static {
    /// Returns the node's id and topology. The kubelet asks when it registers the plugin, and treats an
    /// error as a failed registration.
    ///
    /// - spec: `node-get-info.id-is-unique`, `node-get-info.served`
    ///
    /// # Errors
    /// Those of any RPC.
    async fn info(&self) -> Result<NodeInfo>;

    /// Publishes the volume at the target path. The path's parent exists. The driver creates the path
    /// itself: a directory or, for a raw block volume, a file.
    ///
    /// A repeated call for a volume that is already published as requested is `Ok`. The driver must read
    /// the state from the kernel, not from its memory, because it can have been restarted since.
    ///
    /// - spec: `node-publish-volume.repeated-is-ok`, `node-publish-volume.differs-is-already-exists`
    /// - spec: `node-publish-volume.creates-target`, `node-publish-volume.directory-at-target`
    /// - spec: `node-publish-volume.device-at-target`, `node-publish-volume.usable-as-described`
    /// - spec: `node-publish-volume.readonly`, `node-publish-volume.beyond-capabilities`
    /// - spec: `node-publish-volume.missing`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] (NOT_FOUND); [`Error::Incompatible`] (ALREADY_EXISTS) when the volume is
    /// published there in another way than requested; [`Error::Unsupported`] (FAILED_PRECONDITION) when the
    /// request exceeds the volume's capabilities.
    async fn publish_volume(&self, request: NodePublishVolumeRequest) -> Result<()>;

    /// Returns where the request's volume is already published on this node. The framework asks before
    /// [`publish_volume`](Self::publish_volume) and refuses what the spec refuses: a target that holds
    /// something else, and a second target of a volume whose mode allows one.
    ///
    /// A driver that keeps the default implementation must enforce the modes in its `publish_volume`.
    ///
    /// - spec: `node-publish-volume.second-target`
    ///
    /// # Errors
    /// Any failure that prevents an answer.
    async fn published(&self, _request: &NodePublishVolumeRequest) -> Result<PublishedTargets> {
        Ok(PublishedTargets::default())
    }

    /// Removes the volume from the target path and deletes the path. A volume that is not published there
    /// is `Ok`.
    ///
    /// - spec: `node-unpublish-volume.undoes`, `node-unpublish-volume.deletes-target`
    /// - spec: `node-unpublish-volume.repeated-is-ok`, `node-unpublish-volume.missing`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] (NOT_FOUND).
    async fn unpublish_volume(&self, request: NodeUnpublishVolumeRequest) -> Result<()>;
}

request! {
    /// Which volume to publish, where and how.
    NodePublishVolumeRequest about volume_id {
        /// The volume.
        volume_id: VolumeId,
        /// The context that ControllerPublishVolume returned.
        publish_context: PublishContext,
        /// The path at which the volume is staged. Always set when the driver offers STAGE_UNSTAGE_VOLUME,
        /// except for inline volumes.
        staging_target_path: Option<PathBuf>,
        /// The path at which to publish the volume.
        target_path: PathBuf,
        /// How it will be used.
        volume_capability: VolumeCapability,
        /// The workload is only allowed to read.
        readonly: bool,
        /// Credentials.
        secrets: Secrets,
        /// The context that CreateVolume returned, with the orchestrator's additions.
        volume_context: VolumeContext,
    }
}

request! {
    /// Which volume to unpublish, and from where.
    NodeUnpublishVolumeRequest about volume_id {
        /// The volume.
        volume_id: VolumeId,
        /// The path at which the volume is published.
        target_path: PathBuf,
    }
}

fn target_claims(volume_id: &VolumeId, target: &Path) -> Vec<Claim> {
    vec![Claim::shared(Key::NodeVolume(volume_id.as_str().to_owned())), Claim::alone(Key::path(target))]
}

impl Call for NodePublishVolumeRequest {
    answers_nothing!();

    // spec: node-publish-volume.needs-staging-path
    fn permitted(&self, offer: &Offer) -> Result<()> {
        offer.check_node_use("volume_capability", &self.volume_capability)?;
        let staged = self.staging_target_path.is_some();
        if offer.has_node(Capability::StageUnstageVolume) && !staged && !self.volume_context.is_ephemeral() {
            let text = "staging_target_path: is required, for the driver offers STAGE_UNSTAGE_VOLUME";
            return Err(Error::NotStaged(text.to_owned().into()));
        }
        Ok(())
    }

    fn paths(&self) -> Vec<(&'static str, PathBuf)> {
        let staging = self.staging_target_path.iter().map(|path| ("staging_target_path", path.to_path_buf()));
        staging.chain([("target_path", self.target_path.to_path_buf())]).collect()
    }

    fn claims(&self) -> Vec<Claim> {
        let mut claims = target_claims(&self.volume_id, &self.target_path);
        claims.extend(self.staging_target_path.iter().map(|path| Claim::shared(Key::path(path))));
        claims
    }
}

impl Call for NodeUnpublishVolumeRequest {
    answers_nothing!();

    fn paths(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("target_path", self.target_path.to_path_buf())]
    }

    fn claims(&self) -> Vec<Claim> {
        target_claims(&self.volume_id, &self.target_path)
    }
}

impl NodePublishVolumeRequest {
    /// Publishes the volume, unless an existing publish forbids it.
    pub(crate) async fn answer(
        self,
        driver: &dyn Node,
        single_node_writer: SingleNodeWriter,
        one_at_a_time: &OneAtATime,
    ) -> Result<()> {
        let mode = self.volume_capability.access_mode;
        let _entered = if mode.allows_many_targets(single_node_writer) {
            None
        } else {
            Some(one_at_a_time.enter(&self.volume_id)?)
        };
        driver.published(&self).await?.check(mode, single_node_writer)?;
        driver.publish_volume(self).await
    }
}
