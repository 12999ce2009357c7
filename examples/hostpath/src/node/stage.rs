//! STAGE_UNSTAGE_VOLUME. A directory needs no staging: it is bind-mounted at publish.

use csi_core::{
    AccessMode, Error, NodeStageVolumeRequest, NodeUnstageVolumeRequest, Result, StageUnstageVolume,
    async_trait,
};

use super::{HostNode, READONLY, check_use};
use crate::damage;
use crate::kind::Kind;

#[async_trait]
impl StageUnstageVolume for HostNode {
    async fn stage_volume(&self, mut request: NodeStageVolumeRequest) -> Result<()> {
        let (volumes, record) = self.find(&request.volume_id).await?;
        check_use(&record, &request.volume_capability)?;
        match record.kind {
            Kind::Directory => match damage::of_content(&volumes.place(&request.volume_id)?, &record) {
                Some(entry) => Err(Error::Unavailable(entry.message.into())),
                None => Ok(()),
            },
            Kind::Image => {
                if request.publish_context.get(READONLY).is_some() && request.volume_capability.is_mount() {
                    // A read-only device is staged as for a reader.
                    request.volume_capability.access_mode = AccessMode::SingleNodeReaderOnly;
                }
                volumes.devices.stage_volume(request).await
            }
        }
    }

    /// Works for a deleted volume too: what is left of it on this node is removed.
    async fn unstage_volume(&self, request: NodeUnstageVolumeRequest) -> Result<()> {
        match self.find(&request.volume_id).await {
            Ok((_, record)) if record.kind == Kind::Directory => Ok(()),
            _ => self.volumes.devices.unstage_volume(request).await,
        }
    }
}
