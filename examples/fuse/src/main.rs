//! The driver as a program; `--help` lists its flags and the environment variables for them.

use std::path::PathBuf;

use clap::Parser;
use csi_core::mount::{MountOptions, flow::fuse::FuseDaemon};

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

    /// The socket of `daemon-pod serve`, which then starts the program, in its pod: docs/fuse.md
    #[arg(long, env = "FLAT_DAEMON_POD", value_name = "SOCKET", conflicts_with = "launcher")]
    daemon_pod: Option<PathBuf>,

    #[command(flatten)]
    driver: csi_core::DriverArgs,
}

impl Args {
    /// The program, and the options of the mounts that this process makes itself.
    fn daemon(&self) -> (FuseDaemon, Option<MountOptions>) {
        let beside = |name| std::env::current_exe().unwrap_or_default().with_file_name(name);
        let daemon = FuseDaemon::new(self.flatfs.clone().unwrap_or_else(|| beside("flatfs")));
        let Some(socket) = &self.daemon_pod else { return (daemon.launcher(self.launcher.clone()), None) };
        let launcher = [beside("daemon-pod"), "start".into(), socket.clone()];
        let options = MountOptions::parse(["allow_other", "default_permissions"]);
        (daemon.launcher(launcher), Some(options.expect("options of every kernel")))
    }
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let args = Args::parse();
    let (daemon, device) = args.daemon();
    fuse::plugin(args.root, daemon, device, &args.driver).run_with(&args.driver).await
}
