//! The driver as a program; `--help` lists its flags and the environment variables for them.

use clap::Parser;

/// A CSI driver for SMB: shares, and directories in them as volumes
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    driver: csi_core::DriverArgs,
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let args = Args::parse();
    smb::plugin(&args.driver).run_with(&args.driver).await
}
