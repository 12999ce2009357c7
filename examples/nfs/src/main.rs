//! The driver as a program; `--help` lists its flags and the environment variables for them.

use clap::Parser;

/// A CSI driver for NFS: shares, and directories in them as volumes, with snapshots and clones
///
/// `nfs --try`, without other flags, starts an NFS server and the driver in this process and runs the life
/// cycle of a volume on them. It needs root and a kernel with an NFS client, and leaves nothing behind.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    volumes: nfs::VolumeArgs,

    #[command(flatten)]
    driver: csi_core::DriverArgs,
}

fn main() -> std::process::ExitCode {
    #[cfg(feature = "try")]
    if std::env::args_os().skip(1).eq(["--try"]) {
        return nfs::try_out::try_out();
    }
    let args = Args::parse();
    run(&args)
}

#[tokio::main]
async fn run(args: &Args) -> std::process::ExitCode {
    nfs::plugin(&args.driver, &args.volumes).run_with(&args.driver).await
}
