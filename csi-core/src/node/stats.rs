//! GET_VOLUME_STATS.

use std::sync::Arc;

use std::path::PathBuf;

use async_trait::async_trait;
use csi_proto::v1;

use super::{NodeGetVolumeHealth, NodeGetVolumeHealthRequest};
use crate::call::request::request;
use crate::call::{Call, Reply};
use crate::error::{Error, Result};
use crate::offer::Offer;
use crate::types::health::condition;
use crate::types::{VolumeId, VolumeStats, fields};

/// Reports a volume's usage. Spec: "NodeGetVolumeStats".
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `NodeGetVolumeStats`",
    label = "needs `impl NodeGetVolumeStats for {Self}`",
    note = "write `#[async_trait]` before the `impl`, and the methods that the trait's documentation lists"
)]
pub trait NodeGetVolumeStats: Send + Sync + 'static {
    /// Returns the usage of the volume that is published or staged at the path. The kubelet asks every
    /// minute for every volume, so the method must be cheap and must not hang.
    ///
    /// - spec: `node-get-volume-stats.usage`, `node-get-volume-stats.missing`
    ///
    /// # Errors
    /// [`Error::VolumeNotFound`] (NOT_FOUND) when the volume does not exist, or is not at that path.
    async fn volume_stats(&self, request: NodeGetVolumeStatsRequest) -> Result<VolumeStats>;
}

request! {
    /// Which volume, and where it is.
    NodeGetVolumeStatsRequest about volume_id {
        /// The volume.
        volume_id: VolumeId,
        /// Where the caller believes the volume to be. A path without the volume is NOT_FOUND; so is a
        /// relative path.
        volume_path: PathBuf = fields::volume_path,
        /// The path at which the volume is staged. The kubelet does not set it.
        staging_target_path: Option<PathBuf>,
    }
}

/// A volume's usage, with its condition if callers of spec v1.12.0 are served.
#[allow(deprecated, reason = "the condition is that of v1.12.0")]
pub(crate) struct StatsAndCondition {
    stats: VolumeStats,
    condition: Option<v1::VolumeCondition>,
}

impl NodeGetVolumeStatsRequest {
    /// Asks the driver for the volume's usage, and `health` for its health.
    // spec: node-get-volume-stats.condition
    pub(crate) async fn answer(
        self,
        driver: &dyn NodeGetVolumeStats,
        health: Option<Arc<dyn NodeGetVolumeHealth>>,
    ) -> Result<StatsAndCondition> {
        let wire = v1::NodeGetVolumeHealthRequest {
            volume_id: self.volume_id.to_string(),
            volume_publish_path: self.raw.volume_path.clone(),
            staging_target_path: self.raw.staging_target_path.clone(),
        };
        let plugin = self.plugin().cloned();
        let stats = driver.volume_stats(self).await?;
        let condition = match health {
            Some(health) => condition(match NodeGetVolumeHealthRequest::of_plugin(wire, plugin) {
                Ok(request) => health.volume_health(request).await,
                Err(error) => Err(error),
            }),
            None => None,
        };
        Ok(StatsAndCondition { stats, condition })
    }
}

impl Call for NodeGetVolumeStatsRequest {
    type Answer = StatsAndCondition;

    fn paths(&self) -> Vec<(&'static str, PathBuf)> {
        let staging = self.staging_target_path.iter().map(|path| ("staging_target_path", path.to_path_buf()));
        staging.chain([("volume_path", self.volume_path.to_path_buf())]).collect()
    }

    #[allow(deprecated, reason = "the condition is answered for callers of spec v1.12.0")]
    fn reply(answer: StatsAndCondition, _: &Self::Wire, _: &Offer) -> Result<Reply<Self>> {
        let usage = answer.stats.answer()?;
        if usage.is_empty() {
            return Err(Error::broken("usage: has neither bytes nor inodes"));
        }
        Ok(v1::NodeGetVolumeStatsResponse { usage, volume_condition: answer.condition })
    }
}
