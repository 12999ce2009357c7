//! The driver as a program; `--help` lists its flags and the environment variables for them.

use clap::Parser;

/// A CSI driver for CephFS: subvolumes as volumes, with snapshots and clones
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    driver: csi_core::DriverArgs,
    #[command(flatten)]
    ceph: ceph::CephArgs,
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let args = Args::parse();
    ceph::plugin(&args.driver, &args.ceph).run_with(&args.driver).await
}
