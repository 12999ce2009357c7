//! The driver as a program; `--help` lists its flags and the environment variables for them.

use clap::Parser;
use csi_core::deploy::Lifecycle;

/// A CSI driver for inline volumes that contain a new token and the name of their pod
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    driver: csi_core::DriverArgs,
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let args = Args::parse();
    let plugin = secrets::plugin(&args.driver).declare(|options| {
        options.lifecycle = Lifecycle::Ephemeral;
        options.pod_info = true;
        options.requires_republish = true;
    });
    plugin.run_with(&args.driver).await
}
