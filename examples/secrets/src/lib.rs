//! A complete CSI driver for inline volumes with generated files in memory: a token, new for each publish,
//! and the pod's name. When the kubelet publishes again, all files are replaced in one atomic step.
//!
//! Its CSIDriver has `volumeLifecycleModes: [Ephemeral]`, `podInfoOnMount: true`, `requiresRepublish: true`.
use csi_core::mount::flow::ephemeral::Content;
use csi_core::node::NodePublishVolumeRequest;
use csi_core::{Result, prelude::*};
use std::{fmt::Write, sync::Arc};
use tokio::{fs::File, io::AsyncReadExt};

const RANDOM: &str = "/dev/urandom";

struct Tokens(DriverArgs);

#[async_trait]
impl EphemeralContent for Tokens {
    async fn info(&self) -> Result<NodeInfo> {
        self.0.node_info()
    }

    async fn content(&self, request: &NodePublishVolumeRequest) -> Result<Content> {
        request.volume_context.check_keys(&[])?;
        let said = |key| request.volume_context.pod(key).unwrap_or("unknown");
        let pod = format!("{}/{}\n", said("pod.namespace"), said("pod.name"));
        let mut random = [0; 16];
        let mut source = File::open(RANDOM).await.at("open", RANDOM)?;
        source.read_exact(&mut random).await.at("read", RANDOM)?;
        let token = random.iter().fold(String::new(), |mut token, byte| {
            let _ = write!(token, "{byte:02x}");
            token
        });
        Ok(Content::new().file("pod", pod)?.file_with_mode("token", token, 0o440)?)
    }
}

/// Returns the driver, configured by its flags.
pub fn plugin(args: &DriverArgs) -> Plugin {
    Plugin::new("secrets.csi.example.org", env!("CARGO_PKG_VERSION"))
        .node(EphemeralNode::service(Arc::new(Tokens(args.clone()))))
}
