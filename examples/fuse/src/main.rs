//! The driver as a program; `--help` lists its flags and the environment variables for them.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use csi_core::Mode;
use csi_core::mount::flow::fuse::{FuseDaemon, Mounter};
use csi_kube::{Client, FusePods};
use fuse::Volumes;

/// A CSI driver whose volumes are served by flatfs, a FUSE program
#[derive(Parser)]
struct Args {
    /// The directory for volumes
    #[arg(long, env = "FLAT_ROOT", value_name = "PATH", default_value = "/var/lib/flat")]
    root: PathBuf,

    /// The server of the volumes, flat-store, in place of a directory: programs in pods can reach it
    #[arg(long, env = "FLAT_STORE", value_name = "HOST:PORT", conflicts_with = "root")]
    store: Option<String>,

    /// The program that serves a volume [default: flatfs in the directory of this program]
    #[arg(long, env = "FLATFS", value_name = "PATH")]
    flatfs: Option<PathBuf>,

    /// The command that starts the program outside of this container, separated by spaces: docs/fuse.md
    #[arg(long, env = "FLAT_LAUNCHER", value_name = "COMMAND", value_delimiter = ' ')]
    launcher: Vec<String>,

    #[command(flatten)]
    driver: csi_core::DriverArgs,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let beside = || std::env::current_exe().unwrap_or_default().with_file_name("flatfs");
    let pods = match pods(&args).await {
        Ok(pods) => pods,
        Err(error) => {
            eprintln!("{}: the API server can't be called: {error}", fuse::NAME);
            return ExitCode::from(2);
        }
    };
    if let Some(pods) = pods.clone() {
        tokio::spawn(async move { pods.run().await });
    }
    let daemon = FuseDaemon::new(args.flatfs.unwrap_or_else(beside)).launcher(args.launcher);
    let volumes = args.store.map_or(Volumes::Directory(args.root), Volumes::Server);
    fuse::plugin(volumes, daemon, pods, &args.driver).run_with(&args.driver).await
}

/// The pods of the volumes, for a process that serves the controller. Another one needs no API server.
async fn pods(args: &Args) -> Result<Option<FusePods>, Box<dyn Error>> {
    let is_controller = args.driver.mode != Mode::Node && !args.driver.serves_nothing();
    let mounter = args.driver.mounter().filter(|_| is_controller);
    let Some(namespace) = mounter.as_ref().and_then(Mounter::namespace_of_volumes) else { return Ok(None) };
    Ok(Some(FusePods::new(Client::try_default().await?, fuse::NAME, namespace)))
}
