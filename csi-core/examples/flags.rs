//! A driver with its own flag in addition to those of every driver. Its volumes are names in memory.
//!
//! `cargo run --example flags -- --endpoint /tmp/csi.sock --metrics-address :9808 --log-level debug`

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use clap::Parser;
use csi_core::node::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
use csi_core::{Result, prelude::*};

#[derive(Parser)]
pub(crate) struct Args {
    /// How many volumes a node takes
    #[arg(long, env = "VOLUMES_PER_NODE", default_value_t = 16)]
    volumes_per_node: u64,
    #[command(flatten)]
    driver: DriverArgs,
}

struct Driver {
    node: NodeInfo,
    volumes: Mutex<BTreeSet<VolumeId>>,
}

#[async_trait]
impl Controller for Driver {
    async fn lookup(&self, id: &VolumeId) -> Result<Option<Volume>> {
        Ok(self.volumes.lock().unwrap().contains(id).then(|| Volume::new(id.clone(), 0)))
    }
    fn supports(&self, capability: &VolumeCapability) -> bool {
        capability.is_mount()
    }
}

#[async_trait]
impl CreateDeleteVolume for Driver {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        let id = VolumeId::from_name(&request.name)?;
        self.volumes.lock().unwrap().insert(id.clone());
        Ok(Volume::new(id, 0))
    }
    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<()> {
        self.volumes.lock().unwrap().remove(&request.volume_id);
        Ok(())
    }
}

#[async_trait]
impl Node for Driver {
    async fn info(&self) -> Result<NodeInfo> {
        Ok(self.node.clone())
    }
    async fn publish_volume(&self, request: NodePublishVolumeRequest) -> Result<()> {
        // A real driver mounts the volume at the target.
        if self.volumes.lock().unwrap().contains(&request.volume_id) {
            Ok(())
        } else {
            Err(Error::VolumeNotFound(request.volume_id))
        }
    }
    async fn unpublish_volume(&self, _: NodeUnpublishVolumeRequest) -> Result<()> {
        Ok(())
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    run(Args::parse()).await
}

pub(crate) async fn run(args: Args) -> ExitCode {
    let node = match args.driver.node_info() {
        Ok(node) => node.max_volumes(args.volumes_per_node),
        Err(error) => {
            eprintln!("this node: {error}");
            return ExitCode::from(2);
        }
    };
    let driver = Arc::new(Driver { node, volumes: Mutex::default() });
    Plugin::new("flags.csi.example.org", env!("CARGO_PKG_VERSION"))
        .controller(ControllerService::new(driver.clone()).create_delete_volume())
        .node(NodeService::new(driver))
        .run_with(&args.driver)
        .await
}
