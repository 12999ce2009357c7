//! PUBLISH_UNPUBLISH_VOLUME: attaching to nodes.

use std::collections::BTreeMap;

use async_trait::async_trait;
use csi_proto::v1;

use super::Controller;
use crate::admission::{Claim, Key};
use crate::call::Call;
use crate::call::request::request;
use crate::offer::Offer;
use crate::types::wire::check_map;
use crate::{Error, NodeId, Result, Rpc, Secrets, VolumeCapability, VolumeContext, VolumeId};
use v1::controller_service_capability::rpc::Type as Capability;

/// Attaching volumes to nodes and detaching them. Spec: "ControllerPublishVolume", "ControllerUnpublishVolume".
#[async_trait]
pub trait PublishUnpublishVolume: Controller {
    /// Makes the volume available on the node, usable as its capability says, and read-only where that is asked. One
    /// that is there already, and compatibly, is `Ok` again. This runs on any machine: the node is the request's.
    ///
    /// - spec: `controller-publish-volume.repeated-is-ok`
    /// - spec: `controller-publish-volume.differs-is-already-exists`
    /// - spec: `controller-publish-volume.usable-as-described`, `controller-publish-volume.readonly`
    /// - spec: `controller-publish-volume.volume-missing`, `controller-publish-volume.node-missing`
    /// - spec: `controller-publish-volume.on-another-node`, `controller-publish-volume.limit`
    /// - spec: `controller-publish-volume.runs-anywhere`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`], [`Error::NodeNotFound`] (NOT_FOUND); [`Error::Incompatible`] (ALREADY_EXISTS)
    /// when it is there in another way; [`Error::PublishedElsewhere`] (FAILED_PRECONDITION), which names the node;
    /// [`Error::LimitReached`] (RESOURCE_EXHAUSTED) when the node can't take more.
    async fn publish_volume(&self, request: ControllerPublishVolumeRequest) -> Result<Published>;

    /// Takes the volume away from the node, or from all nodes where the request names none. One that is not
    /// there is `Ok`.
    ///
    /// - spec: `controller-unpublish-volume.not-attached-is-ok`, `controller-unpublish-volume.all-nodes`
    /// - spec: `controller-unpublish-volume.missing`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`], [`Error::NodeNotFound`] (NOT_FOUND), where the driver can't be sure that it is
    /// detached.
    async fn unpublish_volume(&self, request: ControllerUnpublishVolumeRequest) -> Result<()>;
}

/// What the node needs to know to find the volume that was attached to it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Published {
    /// Handed to the node's stage and publish calls. No secrets: it is stored in the clear.
    ///
    /// - spec: `controller-publish-volume.context-without-secrets`
    pub publish_context: BTreeMap<String, String>,
}

request! {
    /// Which volume to attach where.
    ControllerPublishVolumeRequest {
        /// The volume.
        volume_id: VolumeId,
        /// The node, as its NodeGetInfo named itself.
        node_id: NodeId,
        /// How it will be used there.
        volume_capability: VolumeCapability,
        /// Attach it read-only. Never set unless the driver offers PUBLISH_READONLY.
        readonly: bool,
        /// Credentials.
        secrets: Secrets,
        /// What CreateVolume said of it.
        volume_context: VolumeContext,
    }
}

request! {
    /// Which volume to detach from where.
    ControllerUnpublishVolumeRequest {
        /// The volume.
        volume_id: VolumeId,
        /// The node; `None` is all of them.
        node_id: Option<NodeId>,
        /// Credentials.
        secrets: Secrets,
    }
}

/// One node's attachment runs beside another's; `None`, which is all of them, beside none.
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
    const RPC: Rpc = Rpc::ControllerPublishVolume;
    type Answer = Published;
    type Reply = v1::ControllerPublishVolumeResponse;

    fn subject(&self) -> &str {
        self.volume_id.as_str()
    }

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

    fn reply(answer: Published, _: &Self::Wire, _: &Offer) -> Result<Self::Reply> {
        check_map("publish_context", &answer.publish_context).map_err(Error::broken)?;
        Ok(v1::ControllerPublishVolumeResponse { publish_context: answer.publish_context })
    }
}

impl Call for ControllerUnpublishVolumeRequest {
    const RPC: Rpc = Rpc::ControllerUnpublishVolume;
    type Answer = ();
    type Reply = v1::ControllerUnpublishVolumeResponse;

    fn subject(&self) -> &str {
        self.volume_id.as_str()
    }

    fn claims(&self) -> Vec<Claim> {
        attachment_claims(&self.volume_id, self.node_id.as_ref())
    }

    fn reply((): (), _: &Self::Wire, _: &Offer) -> Result<Self::Reply> {
        Ok(v1::ControllerUnpublishVolumeResponse {})
    }
}
