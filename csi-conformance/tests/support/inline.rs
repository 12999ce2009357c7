//! A driver of inline volumes that does everything right: one file, with what it was asked for.

use std::sync::Arc;

use csi_core::mount::flow::ephemeral::Content;
use csi_core::*;

struct Greeting;

#[async_trait]
impl EphemeralContent for Greeting {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("node-1")
    }

    async fn content(&self, request: &NodePublishVolumeRequest) -> Result<Content> {
        let pod = request.volume_context.pod("pod.name").unwrap_or("whoever you are");
        Ok(Content::new().file("greeting", format!("Hello, {pod}"))?)
    }
}

pub(crate) fn plugin() -> Plugin {
    Plugin::new("inline.csi.example.org", "1").node(EphemeralNode::service(Arc::new(Greeting)))
}
