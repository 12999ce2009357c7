//! The driver as a program; `--help` lists its flags and the environment variables for them.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;

/// A CSI driver for block volumes that the kernel's own iSCSI target serves
#[derive(Parser)]
struct Args {
    /// The directory for images and records
    #[arg(long, env = "ISCSI_POOL", value_name = "PATH", default_value = "/var/lib/iscsi-csi")]
    pool: PathBuf,

    /// The address at which the target serves the images
    #[arg(long, env = "ISCSI_PORTAL", value_name = "ADDRESS", default_value = "127.0.0.1:3260")]
    portal: SocketAddr,

    #[command(flatten)]
    driver: csi_core::DriverArgs,
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let args = Args::parse();
    match iscsi::plugin(args.pool, args.portal) {
        Ok(plugin) => plugin.run_with(&args.driver).await,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}
