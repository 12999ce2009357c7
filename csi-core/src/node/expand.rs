//! EXPAND_VOLUME on the node.

use std::path::PathBuf;

use async_trait::async_trait;
use csi_proto::v1;

use crate::admission::{Claim, Key};
use crate::call::request::request;
use crate::call::{Call, Reply};
use crate::error::Result;
use crate::offer::Offer;
use crate::types::volume::signed;
use crate::types::{CapacityRange, Secrets, VolumeCapability, VolumeId, fields};

/// Grows the content of a volume to the size of the volume, or a volume whose size the node sets, such as a quota.
/// Spec: "NodeExpandVolume".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `NodeExpandVolume`",
    label = "needs `impl NodeExpandVolume for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait NodeExpandVolume: Send + Sync + 'static {
    /// Grows the filesystem or device at the path to fill the volume, and returns the size in bytes; 0 if the size is
    /// unknown. If the node alone sets the size of volumes, it grows this one to `capacity_range`. A volume that is
    /// already large enough is `Ok`. The framework compares the size with the requested range: a larger one is
    /// OUT_OF_RANGE, and a smaller one is UNAVAILABLE, because the storage can still grow.
    ///
    /// - spec: `node-expand-volume.grows`, `node-expand-volume.large-enough-is-ok`
    /// - spec: `node-expand-volume.missing`, `node-expand-volume.in-use`, `node-expand-volume.out-of-range`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`](crate::Error::VolumeNotFound) (NOT_FOUND), also when the volume is not at
    /// that path; [`Error::InUse`](crate::Error::InUse) (FAILED_PRECONDITION) when it can't grow while
    /// mounted; [`Error::OutOfRange`](crate::Error::OutOfRange) (OUT_OF_RANGE);
    /// [`Error::Unsupported`](crate::Error::Unsupported) (INVALID_ARGUMENT) for a capability that the
    /// volume does not support.
    async fn expand_volume(&self, request: NodeExpandVolumeRequest) -> Result<u64>;
}

request! {
    /// Which volume to grow, and where it is.
    NodeExpandVolumeRequest about volume_id {
        /// The volume.
        volume_id: VolumeId,
        /// The path at which the volume is published or staged.
        volume_path: PathBuf = fields::volume_path,
        /// The accepted sizes; any size if the caller gave none.
        capacity_range: CapacityRange,
        /// The path at which the volume is staged, if the caller said so.
        staging_target_path: Option<PathBuf>,
        /// How the volume is used, if the caller said so.
        volume_capability: Option<VolumeCapability>,
        /// Credentials. Alpha.
        secrets: Secrets,
    }
}

impl Call for NodeExpandVolumeRequest {
    type Answer = u64;

    // spec: node-expand-volume.beyond-capabilities
    fn permitted(&self, offer: &Offer) -> Result<()> {
        let capability = self.volume_capability.as_ref();
        capability.map_or(Ok(()), |capability| offer.check_node_use("volume_capability", capability))
    }

    fn paths(&self) -> Vec<(&'static str, PathBuf)> {
        let staging = self.staging_target_path.iter().map(|path| ("staging_target_path", path.to_path_buf()));
        staging.chain([("volume_path", self.volume_path.to_path_buf())]).collect()
    }

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::alone(Key::NodeVolume(self.volume_id.as_str().to_owned()))]
    }

    // spec: node-expand-volume.grows, node-expand-volume.out-of-range
    fn reply(capacity: u64, request: &Self::Wire, _: &Offer) -> Result<Reply<Self>> {
        let capacity_bytes = signed("capacity_bytes", capacity)?;
        CapacityRange::asked(request.capacity_range.as_ref())?.check_expanded(capacity)?;
        Ok(v1::NodeExpandVolumeResponse { capacity_bytes })
    }
}
