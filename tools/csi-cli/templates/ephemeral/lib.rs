//! The CSI driver {{driver}}: a volume is a few files in memory, made for one pod.
use std::sync::Arc;

use csi_core::mount::flow::ephemeral::Content;
use csi_core::node::NodePublishVolumeRequest;
use csi_core::{Result, prelude::*};
use tokio::{fs::File, io::AsyncReadExt as _};

const NAME: &str = "{{driver}}";
const RANDOM: &str = "/dev/urandom";

#[derive(clap::Parser, Clone)]
#[command(about = "The CSI driver {{driver}}")]
pub struct Args {
    #[command(flatten)]
    pub driver: DriverArgs,
}

struct Driver(Args);

#[async_trait]
impl EphemeralContent for Driver {
    async fn info(&self) -> Result<NodeInfo> {
        self.0.driver.node_info()
    }

    async fn content(&self, request: &NodePublishVolumeRequest) -> Result<Content> {
        // The attributes that a pod's author can write: none yet.
        request.volume_context.check_keys(&[])?;
        let pod = request.volume_context.pod("pod.name").unwrap_or("unknown");
        let mut random = [0; 16];
        File::open(RANDOM).await.at("open", RANDOM)?.read_exact(&mut random).await.at("read", RANDOM)?;
        let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Content::new().file("pod", format!("{pod}\n"))?.file_with_mode("token", token, 0o440)?)
    }
}

/// Returns the driver, configured by its flags.
pub fn plugin(args: &Args) -> Plugin {
    let node = EphemeralNode::service(Arc::new(Driver(args.clone())));
    let plugin = Plugin::new(NAME, env!("CARGO_PKG_VERSION")).node(node);
    #[cfg(feature = "manifests")]
    let plugin = plugin.declare(|options| {
        options.lifecycle = csi_core::deploy::Lifecycle::Ephemeral;
        options.pod_info = true;
{% if renew %}
        options.requires_republish = true;
{% endif %}
    });
    plugin
}
