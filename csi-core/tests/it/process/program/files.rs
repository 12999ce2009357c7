//! A driver whose calls open files, and hang for the volume `stuck`.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use csi_core::*;

use crate::driver::TestDriver;

/// The line in the log when the call for `stuck` hangs.
pub(crate) const HANGS: &str = "the stage of the volume stuck hangs";
/// The number of files that a call has open.
const FILES: usize = 24;

#[derive(Parser)]
pub(crate) struct Args {
    #[command(flatten)]
    driver: DriverArgs,
}

pub(crate) async fn run(args: Args) -> ExitCode {
    let driver = Arc::new(TestDriver::default());
    driver.node_stage_volume.runs(|request| {
        blocking(move || {
            if request.volume_id.as_str() == "stuck" {
                eprintln!("{HANGS}");
                // Like a system call on a frozen filesystem.
                loop {
                    std::thread::park();
                }
            }
            let files = (0..FILES).map(|_| std::fs::File::open("/")).collect::<std::io::Result<Vec<_>>>();
            drop(files?);
            Ok(())
        })
    });
    Plugin::new("files.csi.example.org", "1")
        .node(NodeService::new(driver).stage_unstage_volume())
        .run_with(&args.driver)
        .await
}
