//! A driver whose calls open files, and hang for the volume `stuck`.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use csi_core::*;

/// The number of files that a call has open.
const FILES: usize = 24;

#[derive(Parser)]
pub(crate) struct Args {
    #[command(flatten)]
    driver: DriverArgs,
}

struct Files;

#[async_trait]
impl Node for Files {
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

#[async_trait]
impl StageUnstageVolume for Files {
    async fn stage_volume(&self, request: NodeStageVolumeRequest) -> Result<()> {
        blocking(move || {
            // Like a system call on a frozen filesystem.
            while request.volume_id.as_str() == "stuck" {
                std::thread::park();
            }
            let files = (0..FILES).map(|_| std::fs::File::open("/")).collect::<std::io::Result<Vec<_>>>();
            drop(files?);
            Ok(())
        })
        .await
    }
    async fn unstage_volume(&self, _: NodeUnstageVolumeRequest) -> Result<()> {
        Ok(())
    }
}

pub(crate) async fn run(args: Args) -> ExitCode {
    Plugin::new("files.csi.example.org", "1")
        .node(NodeService::new(Arc::new(Files)).stage_unstage_volume())
        .run_with(&args.driver)
        .await
}
