//! The reference driver: every capability of the spec, on the files of one directory. `README.md` says how to
//! use it.
//!
//! | where | what |
//! |---|---|
//! | `args`, `features`, `parameters` | the settings: flags, and the parameters of StorageClasses |
//! | `plugin` | which traits are registered, one for each feature |
//! | `host` | what controller and node share: stores, pools, this node's info |
//! | `store/`, `records` | objects on the disk that exist completely or not at all |
//! | `content`, `quiesce`, `freezer`, `recover` | creating, copying and growing content; freezing it for a copy; repair at a start |
//! | `controller/`, `group`, `metadata` | the controller's traits, one capability per file |
//! | `node/` | the node's traits: the ready-made plugins for devices and directories, and the choice between them |
//! | `node_events` | events of the node in Kubernetes, with the feature `controllers` |
//! | `damage`, `watch` | the damage of a volume; whether the data directory exists, for Probe |
#![cfg(target_os = "linux")]

mod args;
mod content;
mod controller;
mod damage;
mod features;
mod freezer;
mod group;
mod host;
mod in_use;
mod kind;
mod metadata;
mod node;
#[cfg(feature = "controllers")]
mod node_events;
mod parameters;
mod plugin;
mod pools;
mod quiesce;
mod records;
mod recover;
mod store;
mod watch;

use std::process::ExitCode;

pub use args::{Args, BlockMetadataArg, When};
pub use features::Feature;
pub use kind::Kind;
pub use plugin::plugin;
pub use pools::PoolArg;

/// Does what the flags say, as [`Plugin::run_with`](csi_core::Plugin::run_with): serves until the process is asked to
/// stop, or makes the driver's manifests. The exit status is 2 when the driver could not start.
pub async fn run(args: &Args) -> ExitCode {
    // Before the data directory is opened, which logs what it repairs.
    let log = csi_core::init_log(args.driver.log_format, &args.driver.log_level);
    let served = match log {
        Ok(()) => serve(args).await,
        Err(error) => Err(error.to_string()),
    };
    served.unwrap_or_else(|error| {
        eprintln!("{}: {error}", args.driver_name);
        ExitCode::from(2)
    })
}

#[cfg(feature = "controllers")]
async fn serve(args: &Args) -> Result<ExitCode, String> {
    let (plugin, left) = plugin::open(args).map_err(|error| error.to_string())?;
    let plugin = node_events::watch(plugin, &left, args).await?;
    Ok(csi_controllers::run(plugin, &args.driver, &args.controllers).await)
}

#[cfg(not(feature = "controllers"))]
async fn serve(args: &Args) -> Result<ExitCode, String> {
    let plugin = plugin(args).map_err(|error| error.to_string())?;
    Ok(plugin.run_with(&args.driver).await)
}

#[cfg(test)]
mod tests;
