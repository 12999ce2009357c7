//! The driver as a program; `--help` lists its flags and the environment variables for them.

use std::path::PathBuf;

use clap::Parser;
use csi_core::mount::flow::fuse::FuseDaemon;

/// A CSI driver whose volumes are served by flatfs, a FUSE program
#[derive(Parser)]
struct Args {
    /// The directory for volumes
    #[arg(long, env = "FLAT_ROOT", value_name = "PATH", default_value = "/var/lib/flat")]
    root: PathBuf,

    /// The program that serves a volume [default: flatfs in the directory of this program]
    #[arg(long, env = "FLATFS", value_name = "PATH")]
    flatfs: Option<PathBuf>,

    /// The command that starts the program outside of this container, separated by spaces: docs/container.md
    #[arg(long, env = "FLAT_LAUNCHER", value_name = "COMMAND", value_delimiter = ' ')]
    launcher: Vec<String>,

    #[command(flatten)]
    driver: csi_core::DriverArgs,
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let args = Args::parse();
    let beside = || std::env::current_exe().unwrap_or_default().with_file_name("flatfs");
    let daemon = FuseDaemon::new(args.flatfs.unwrap_or_else(beside)).launcher(args.launcher);
    fuse::plugin(args.root, daemon, args.driver.mounter(), &args.driver).run_with(&args.driver).await
}
