//! `flat-store`: the volumes of many nodes, for the driver and for flatfs.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use fuse::flatfs;

/// Serves volumes, as directories below one directory, to the driver and to flatfs.
///
/// It has no passwords and no encryption: let only the driver and its programs connect to it.
#[derive(Parser)]
struct Args {
    /// The directory of the volumes, which is created
    #[arg(long, value_name = "PATH", default_value = "/var/lib/flat")]
    root: PathBuf,
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:9700")]
    listen: String,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let serve = || {
        std::fs::create_dir_all(&args.root)?;
        let listener = TcpListener::bind(&args.listen)?;
        writeln!(std::io::stdout(), "listening on {}", listener.local_addr()?)?;
        flatfs::serve(&listener, &args.root)
    };
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flat-store: {} on {}: {error}", args.root.display(), args.listen);
            ExitCode::FAILURE
        }
    }
}
