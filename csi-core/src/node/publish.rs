//! What every node plugin does: put a volume at a workload's path, and take it away.

use std::path::PathBuf;

use async_trait::async_trait;
use csi_proto::v1;

use super::{NodeInfo, PublishedTargets};
use crate::admission::{Claim, Key};
use crate::call::Call;
use crate::call::request::request;
use crate::offer::{NodeCapability as Capability, Offer};
use crate::{
    AbsolutePath, Error, PublishContext, Result, Rpc, Secrets, VolumeCapability, VolumeContext, VolumeId,
};

/// What every node plugin has. Spec: "Node Service RPC".
#[async_trait]
pub trait Node: Send + Sync + 'static {
    /// Which node this is. The kubelet asks once it knows the plugin, and takes an error for a failed start.
    ///
    /// - spec: `node-get-info.id-is-unique`, `node-get-info.served`
    ///
    /// # Errors
    /// Those of any RPC.
    async fn info(&self) -> Result<NodeInfo>;

    /// Puts the volume at the target path. The path's parent exists; the path itself is the driver's to make, a
    /// directory or, for a raw block volume, a file.
    ///
    /// Called again for a volume that is there: `Ok`, when it is there as asked. What is there is for the kernel
    /// to tell, not for the driver's memory, for the driver may have been restarted since.
    ///
    /// - spec: `node-publish-volume.repeated-is-ok`, `node-publish-volume.differs-is-already-exists`
    /// - spec: `node-publish-volume.creates-target`, `node-publish-volume.directory-at-target`
    /// - spec: `node-publish-volume.device-at-target`, `node-publish-volume.usable-as-described`
    /// - spec: `node-publish-volume.readonly`, `node-publish-volume.beyond-capabilities`
    /// - spec: `node-publish-volume.missing`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] (NOT_FOUND); [`Error::Incompatible`] (ALREADY_EXISTS) when it is there otherwise
    /// than asked; [`Error::Unsupported`] (FAILED_PRECONDITION) beyond the volume's capabilities.
    async fn publish_volume(&self, request: NodePublishVolumeRequest) -> Result<()>;

    /// Where the volume of this request is published already, on this node. The framework asks before
    /// [`publish_volume`](Self::publish_volume) and refuses what the spec does: a target where something else is, and a
    /// second target of a volume whose mode allows one ([`PublishedTargets::check`]).
    ///
    /// A driver that does not say leaves the modes' difference to its `publish_volume`.
    ///
    /// - spec: `node-publish-volume.second-target`
    ///
    /// # Errors
    /// Whatever keeps the driver from knowing.
    async fn published(&self, _request: &NodePublishVolumeRequest) -> Result<PublishedTargets> {
        Ok(PublishedTargets::default())
    }

    /// Takes the volume away from the target path and deletes the path. One that is not there is `Ok`.
    ///
    /// - spec: `node-unpublish-volume.undoes`, `node-unpublish-volume.deletes-target`
    /// - spec: `node-unpublish-volume.repeated-is-ok`, `node-unpublish-volume.missing`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] (NOT_FOUND).
    async fn unpublish_volume(&self, request: NodeUnpublishVolumeRequest) -> Result<()>;
}

request! {
    /// Which volume to put where, and how.
    NodePublishVolumeRequest {
        /// The volume.
        volume_id: VolumeId,
        /// What the controller's publish said of it.
        publish_context: PublishContext,
        /// Where it is staged. Always there when the driver offers STAGE_UNSTAGE_VOLUME, but for inline volumes.
        staging_target_path: Option<AbsolutePath>,
        /// Where to put it.
        target_path: AbsolutePath,
        /// How it will be used.
        volume_capability: VolumeCapability,
        /// The workload may only read.
        readonly: bool,
        /// Credentials.
        secrets: Secrets,
        /// What CreateVolume said of it, and what the orchestrator added.
        volume_context: VolumeContext,
    }
}

request! {
    /// Which volume to take away from where.
    NodeUnpublishVolumeRequest {
        /// The volume.
        volume_id: VolumeId,
        /// Where it is.
        target_path: AbsolutePath,
    }
}

fn target_claims(volume_id: &VolumeId, target: &AbsolutePath) -> Vec<Claim> {
    vec![Claim::shared(Key::NodeVolume(volume_id.as_str().to_owned())), Claim::alone(Key::path(target))]
}

impl Call for NodePublishVolumeRequest {
    const RPC: Rpc = Rpc::NodePublishVolume;
    type Answer = ();
    type Reply = v1::NodePublishVolumeResponse;

    fn subject(&self) -> &str {
        self.volume_id.as_str()
    }

    // spec: node-publish-volume.needs-staging-path
    fn permitted(&self, offer: &Offer) -> Result<()> {
        offer.check_node_use("volume_capability", &self.volume_capability)?;
        let staged = self.staging_target_path.is_some();
        if offer.has_node(Capability::StageUnstageVolume) && !staged && !self.volume_context.is_ephemeral() {
            let text = "staging_target_path: is required, for the driver offers STAGE_UNSTAGE_VOLUME";
            return Err(Error::NotStaged(text.to_owned()));
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

    fn reply((): (), _: &Self::Wire, _: &Offer) -> Result<Self::Reply> {
        Ok(v1::NodePublishVolumeResponse {})
    }
}

impl Call for NodeUnpublishVolumeRequest {
    const RPC: Rpc = Rpc::NodeUnpublishVolume;
    type Answer = ();
    type Reply = v1::NodeUnpublishVolumeResponse;

    fn subject(&self) -> &str {
        self.volume_id.as_str()
    }

    fn paths(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("target_path", self.target_path.to_path_buf())]
    }

    fn claims(&self) -> Vec<Claim> {
        target_claims(&self.volume_id, &self.target_path)
    }

    fn reply((): (), _: &Self::Wire, _: &Offer) -> Result<Self::Reply> {
        Ok(v1::NodeUnpublishVolumeResponse {})
    }
}
