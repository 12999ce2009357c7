//! The driver as a program; `--help` lists its flags and the environment variables for them.

use clap::Parser;

/// A CSI driver for NFS: shares, and directories in them as volumes, with snapshots and clones
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    volumes: nfs::VolumeArgs,

    #[command(flatten)]
    driver: csi_core::DriverArgs,
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let args = Args::parse();
    nfs::plugin(&args.driver, &args.volumes).run_with(&args.driver).await
}
