//! Messages longer than 4 MiB.

use csi_core::client::Client;
use csi_core::proto::v1;

use super::{Load, many};

pub(super) const LOAD: Load = Load {
    name: "oversized",
    what: "{} clients that send messages of 5 MB",
    full: 4,
    run: |aim, scale| {
        Box::pin(many(scale.of(4), move || {
            let endpoint = aim.socket.display().to_string().parse();
            async move {
                let client = Client::new(&endpoint.map_err(std::io::Error::other)?);
                let volume_id = "x".repeat(5_000_000);
                let request = v1::NodeUnpublishVolumeRequest { volume_id, target_path: "/t".to_owned() };
                client.node().node_unpublish_volume(request).await.map(drop).map_err(std::io::Error::other)
            }
        }))
    },
};
