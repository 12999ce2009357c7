//! PUBLISH_UNPUBLISH_VOLUME: attaching volumes to nodes.

use std::collections::BTreeMap;

use async_trait::async_trait;
use csi_proto::v1;

use super::Controller;
use crate::admission::{Claim, Key};
use crate::call::request::request;
use crate::call::{Call, Reply, answers_nothing};
use crate::error::{Error, Result};
use crate::offer::Offer;
use crate::types::wire::check_map;
use crate::types::{NodeId, Secrets, VolumeCapability, VolumeContext, VolumeId};
use v1::controller_service_capability::rpc::Type as Capability;

/// Attaches volumes to nodes and detaches them. Spec: "ControllerPublishVolume",
/// "ControllerUnpublishVolume".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `PublishUnpublishVolume`",
    label = "needs `impl PublishUnpublishVolume for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait PublishUnpublishVolume: Controller {
    /// Makes the volume available on the node, usable as its capability says, and read-only if requested. A
    /// volume that is already attached there compatibly is `Ok`. The method can run on any machine; the
    /// request names the node.
    ///
    /// - spec: `controller-publish-volume.repeated-is-ok`
    /// - spec: `controller-publish-volume.differs-is-already-exists`
    /// - spec: `controller-publish-volume.usable-as-described`, `controller-publish-volume.readonly`
    /// - spec: `controller-publish-volume.volume-missing`, `controller-publish-volume.node-missing`
    /// - spec: `controller-publish-volume.on-another-node`, `controller-publish-volume.limit`
    /// - spec: `controller-publish-volume.runs-anywhere`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`], [`Error::NodeNotFound`] (NOT_FOUND); [`Error::Incompatible`]
    /// (ALREADY_EXISTS) when the volume is attached to the node in another way;
    /// [`Error::PublishedElsewhere`] (FAILED_PRECONDITION), which names the node; [`Error::LimitReached`]
    /// (RESOURCE_EXHAUSTED) when the node can't take more volumes.
    async fn publish_volume(&self, request: ControllerPublishVolumeRequest) -> Result<Published>;

    /// Detaches the volume from the node, or from all nodes if the request names none. A volume that is not
    /// attached is `Ok`.
    ///
    /// - spec: `controller-unpublish-volume.not-attached-is-ok`, `controller-unpublish-volume.all-nodes`
    /// - spec: `controller-unpublish-volume.missing`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`], [`Error::NodeNotFound`] (NOT_FOUND), if the driver can't be sure that the
    /// volume is detached.
    async fn unpublish_volume(&self, request: ControllerUnpublishVolumeRequest) -> Result<()>;
}

/// What the node needs to find the volume that was attached to it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Published {
    /// Passed to the node's stage and publish calls. It must contain no secrets: it is stored in clear
    /// text.
    ///
    /// - spec: `controller-publish-volume.context-without-secrets`
    pub publish_context: BTreeMap<String, String>,
}

impl Published {
    /// Creates the answer with this publish context.
    pub fn new(publish_context: BTreeMap<String, String>) -> Self {
        Self { publish_context }
    }
}

request! {
    /// Which volume to attach, and where.
    ControllerPublishVolumeRequest about volume_id {
        /// The volume.
        volume_id: VolumeId,
        /// The node, by the id that its NodeGetInfo returned.
        node_id: NodeId,
        /// How the volume will be used there.
        volume_capability: VolumeCapability,
        /// Attach the volume read-only. Never set unless the driver offers PUBLISH_READONLY.
        readonly: bool,
        /// Credentials.
        secrets: Secrets,
        /// The context that CreateVolume returned.
        volume_context: VolumeContext,
    }
}

request! {
    /// Which volume to detach, and from where.
    ControllerUnpublishVolumeRequest about volume_id {
        /// The volume.
        volume_id: VolumeId,
        /// The node; `None` means all nodes.
        node_id: Option<NodeId>,
        /// Credentials.
        secrets: Secrets,
    }
}

/// Attachments to different nodes run in parallel; `None` (all nodes) runs alone.
// spec: controller-unpublish-volume.all-nodes
fn attachment_claims(volume_id: &VolumeId, node_id: Option<&NodeId>) -> Vec<Claim> {
    let volume = volume_id.to_string();
    let shared = Claim::shared(Key::Volume(volume.clone()));
    match node_id {
        Some(node) => {
            let attachment = Key::Attachment(volume.clone(), node.to_string());
            vec![shared, Claim::shared(Key::Attachments(volume)), Claim::alone(attachment)]
        }
        None => vec![shared, Claim::alone(Key::Attachments(volume))],
    }
}

impl Call for ControllerPublishVolumeRequest {
    type Answer = Published;

    // spec: controller-publish-volume.readonly-needs-capability
    fn permitted(&self, offer: &Offer) -> Result<()> {
        offer.check_controller_use("volume_capability", &self.volume_capability)?;
        if self.readonly && !offer.has_controller(Capability::PublishReadonly) {
            return Err(Error::invalid("readonly", "must be false: the driver has no PUBLISH_READONLY"));
        }
        Ok(())
    }

    fn claims(&self) -> Vec<Claim> {
        attachment_claims(&self.volume_id, Some(&self.node_id))
    }

    fn reply(answer: Published, _: &Self::Wire, _: &Offer) -> Result<Reply<Self>> {
        check_map("publish_context", &answer.publish_context).map_err(Error::broken)?;
        Ok(v1::ControllerPublishVolumeResponse { publish_context: answer.publish_context })
    }
}

impl Call for ControllerUnpublishVolumeRequest {
    answers_nothing!();

    fn claims(&self) -> Vec<Claim> {
        attachment_claims(&self.volume_id, self.node_id.as_ref())
    }
}
