//! A driver that does nothing, so that only its servers are measured.

use std::process::ExitCode;
use std::sync::Arc;

use csi_core::{Result, prelude::*};

struct Nothing;

#[async_trait]
impl Node for Nothing {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("node-1")
    }
    async fn publish_volume(&self, _: NodePublishVolumeRequest) -> Result<()> {
        Ok(())
    }
    async fn unpublish_volume(&self, _: NodeUnpublishVolumeRequest) -> Result<()> {
        Ok(())
    }
}

pub(crate) async fn run(args: &DriverArgs) -> ExitCode {
    let node = NodeService::new(Arc::new(Nothing));
    Plugin::new("abused.csi.example.org", env!("CARGO_PKG_VERSION")).node(node).run_with(args).await
}
