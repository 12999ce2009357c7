//! The driver as a program; `--help` lists its flags and the environment variables for them.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use csi_core::mount::remote::NvmeHost;

/// A CSI driver for block volumes that the kernel's own NVMe target serves
#[derive(Parser)]
struct Args {
    /// The directory for images and records
    #[arg(long, env = "NVME_POOL", value_name = "PATH", default_value = "/var/lib/nvme-tcp")]
    pool: PathBuf,

    /// The address at which the target serves the images
    #[arg(long, env = "NVME_PORTAL", value_name = "ADDRESS", default_value = "127.0.0.1:4420")]
    portal: SocketAddr,

    #[command(flatten)]
    driver: csi_core::DriverArgs,
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let args = Args::parse();
    let host = NvmeHost::of_node().map_err(csi_core::Error::from);
    match host.and_then(|host| nvme_tcp::plugin(args.pool, args.portal, host)) {
        Ok(plugin) => plugin.run_with(&args.driver).await,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}
