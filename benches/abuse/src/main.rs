//! Runs abusive loads against a driver's servers, one after the other, and prints a table of what a
//! well-behaved client experiences meanwhile.
//!
//! | module | holds |
//! |---|---|
//! | `loads` | the loads: a client and a row of `loads::ALL` for each |
//! | `target` | the driver: another process, started here or by the user |
//! | `meter` | the well-behaved client, and the driver's memory and descriptors |
//! | `table` | the result |

#![forbid(unsafe_code)]

mod loads;
mod meter;
mod table;
mod target;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use csi_core::node::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
use csi_core::prelude::*;
use csi_core::{Endpoint, Result};

use loads::Scale;
use target::Target;

/// Puts abusive loads on a driver's servers and measures a well-behaved client at the same time
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

#[derive(clap::Args)]
struct Options {
    /// The driver's socket, with --pid [default: a new driver of this program for each load]
    #[arg(long, value_name = "unix://PATH", requires = "pid")]
    endpoint: Option<Endpoint>,
    /// The driver's process, for its memory and descriptors
    #[arg(long)]
    pid: Option<u32>,
    /// The address of the driver's /healthz and /metrics, if it has them
    #[arg(long, value_name = "ADDRESS")]
    health: Option<SocketAddr>,
    /// Run only the loads whose name contains this text
    #[arg(long, default_value = "")]
    only: String,
    /// Run a tenth of each load, for one second
    #[arg(long)]
    quick: bool,
    /// Also write the table to this file
    #[arg(long)]
    write: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Run the driver
    Serve(csi_core::DriverArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Command::Serve(args)) = args.command {
        return serve(&args).await;
    }
    match run(&args.options).await {
        Ok(failures) => ExitCode::from(u8::from(failures > 0)),
        Err(error) => {
            eprintln!("abuse: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs the loads. Returns how many calls and probes of the well-behaved client failed.
async fn run(options: &Options) -> std::io::Result<usize> {
    let scale = if options.quick { Scale::QUICK } else { Scale::FULL };
    let mut rows = Vec::new();
    for load in loads::ALL.iter().filter(|load| load.name.contains(&options.only)) {
        eprintln!("abuse: {}", load.name);
        let target = match (&options.endpoint, options.pid) {
            (Some(endpoint), Some(pid)) => Target::given(endpoint.clone(), options.health, pid),
            _ => Target::start().await?,
        };
        rows.push(table::Row { load, scale, seen: meter::watch(&target, load, scale).await? });
        target.end().await?;
        // Lets the kernel's queues drain before the next load.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let table = table::table(&rows);
    print!("{table}");
    if let Some(path) = &options.write {
        table::write(path, &table)?;
    }
    Ok(rows.iter().map(|row| row.seen.calls.failed + row.seen.probes.failed).sum())
}

/// A driver that does nothing, so that only its servers are measured.
struct Nothing;

#[async_trait]
impl Node for Nothing {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("node-1")
    }
    async fn publish_volume(&self, _: NodePublishVolumeRequest) -> Result<()> {
        Ok(())
    }
    async fn unpublish_volume(&self, _: NodeUnpublishVolumeRequest) -> Result<()> {
        Ok(())
    }
}

async fn serve(args: &DriverArgs) -> ExitCode {
    let node = NodeService::new(Arc::new(Nothing));
    Plugin::new("abused.csi.example.org", env!("CARGO_PKG_VERSION")).node(node).run_with(args).await
}
