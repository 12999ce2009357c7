//! STAGE_UNSTAGE_VOLUME: one path on the node from which a volume is published.

use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::admission::{Claim, Key};
use crate::call::request::request;
use crate::call::{Call, answers_nothing};
use crate::error::Result;
use crate::offer::Offer;
use crate::types::{PublishContext, Secrets, VolumeCapability, VolumeContext, VolumeId};

/// Prepares a volume on a node, once for all workloads. Spec: "NodeStageVolume", "NodeUnstageVolume".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `StageUnstageVolume`",
    label = "needs `impl StageUnstageVolume for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait StageUnstageVolume: Send + Sync + 'static {
    /// Prepares the volume at the staging path, which is an existing directory. A volume that is already
    /// staged there as requested is `Ok`.
    ///
    /// - spec: `node.mount-group`, `node-stage-volume.repeated-is-ok`
    /// - spec: `node-stage-volume.differs-is-already-exists`, `node-stage-volume.usable-as-described`
    /// - spec: `node-stage-volume.missing`, `node-stage-volume.beyond-capabilities`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`](crate::Error::VolumeNotFound) (NOT_FOUND);
    /// [`Error::Incompatible`](crate::Error::Incompatible) (ALREADY_EXISTS) when the volume is staged in
    /// another way; [`Error::Unsupported`](crate::Error::Unsupported) (FAILED_PRECONDITION) when the
    /// request exceeds the volume's capabilities.
    async fn stage_volume(&self, request: NodeStageVolumeRequest) -> Result<()>;

    /// Undoes the stage. A volume that is not staged is `Ok`. The path stays: the caller created it.
    ///
    /// - spec: `node-unstage-volume.undoes`, `node-unstage-volume.not-staged-is-ok`
    /// - spec: `node-unstage-volume.missing`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`](crate::Error::VolumeNotFound) (NOT_FOUND); any error while this node still
    /// uses the volume, because the orchestrator detaches the device next.
    async fn unstage_volume(&self, request: NodeUnstageVolumeRequest) -> Result<()>;
}

request! {
    /// Which volume to stage, and where.
    NodeStageVolumeRequest about volume_id {
        /// The volume.
        volume_id: VolumeId,
        /// The context that ControllerPublishVolume returned.
        publish_context: PublishContext,
        /// The staging path: an existing directory for this volume on this node.
        staging_target_path: PathBuf,
        /// How it will be used.
        volume_capability: VolumeCapability,
        /// Credentials.
        secrets: Secrets,
        /// The context that CreateVolume returned.
        volume_context: VolumeContext,
    }
}

request! {
    /// Which volume to unstage, and from where.
    NodeUnstageVolumeRequest about volume_id {
        /// The volume.
        volume_id: VolumeId,
        /// The path at which the volume is staged.
        staging_target_path: PathBuf,
    }
}

// spec: concurrency.simultaneous-calls
fn staging_claims(volume_id: &VolumeId, staging: &Path) -> Vec<Claim> {
    vec![Claim::alone(Key::NodeVolume(volume_id.as_str().to_owned())), Claim::alone(Key::path(staging))]
}

impl Call for NodeStageVolumeRequest {
    answers_nothing!();

    fn permitted(&self, offer: &Offer) -> Result<()> {
        offer.check_node_use("volume_capability", &self.volume_capability)
    }

    fn paths(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("staging_target_path", self.staging_target_path.to_path_buf())]
    }

    fn claims(&self) -> Vec<Claim> {
        staging_claims(&self.volume_id, &self.staging_target_path)
    }
}

impl Call for NodeUnstageVolumeRequest {
    answers_nothing!();

    fn paths(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("staging_target_path", self.staging_target_path.to_path_buf())]
    }

    fn claims(&self) -> Vec<Claim> {
        staging_claims(&self.volume_id, &self.staging_target_path)
    }
}
