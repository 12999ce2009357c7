//! GET_VOLUME_STATS.

use async_trait::async_trait;
use csi_proto::v1;

use super::Node;
use crate::call::Call;
use crate::capabilities::Offer;
use crate::request::request;
use crate::{AbsolutePath, Error, Result, Rpc, VolumeId, VolumePath, VolumeStats};

/// How full a volume is. Spec: "NodeGetVolumeStats".
#[async_trait]
pub trait GetVolumeStats: Node {
    /// How full the volume is that is published or staged at the path. The kubelet asks every minute for every
    /// volume, so it must be cheap and must not hang.
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] (NOT_FOUND) when there is no such volume, or it is not at that path.
    async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats>;
}

request! {
    /// Which volume, where.
    NodeGetVolumeStatsRequest {
        /// The volume.
        volume_id: VolumeId,
        /// Where the caller believes it to be. A path where it is not is NOT_FOUND, a relative one too.
        volume_path: VolumePath,
        /// Where it is staged. The kubelet does not say.
        staging_target_path: Option<AbsolutePath>,
    }
}

impl Call for NodeGetVolumeStatsRequest {
    const RPC: Rpc = Rpc::NodeGetVolumeStats;
    type Answer = VolumeStats;
    type Reply = v1::NodeGetVolumeStatsResponse;

    fn subject(&self) -> &str {
        self.volume_id.as_str()
    }

    #[allow(
        deprecated,
        reason = "the field is answered for callers of spec v1.12.0, once a driver tells its health"
    )]
    fn reply(answer: VolumeStats, _: &Self::Wire, _: &Offer) -> Result<Self::Reply> {
        let usage = answer.answer()?;
        if usage.is_empty() {
            return Err(Error::broken("usage: neither bytes nor inodes are told"));
        }
        Ok(v1::NodeGetVolumeStatsResponse { usage, volume_condition: None })
    }
}
