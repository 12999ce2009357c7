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
mod parameters;
mod plugin;
mod pools;
mod quiesce;
mod records;
mod recover;
mod store;
mod watch;

use std::process::ExitCode;

use csi_core::ServeError;

pub use args::{Args, BlockMetadataArg, When};
pub use features::Feature;
pub use kind::Kind;
pub use plugin::plugin;
pub use pools::PoolArg;

/// Serves until the process is asked to stop. The exit status is that of `Plugin::run`: 0 after a signal, 2
/// when the driver could not start.
pub async fn run(args: &Args) -> ExitCode {
    let served = async {
        csi_core::init_log(args.driver.log_format, &args.driver.log_level)?;
        let plugin = plugin(args).map_err(|error| ServeError::Plugin(error.to_string()))?;
        plugin.with_args(&args.driver).serve(&args.driver.endpoint()?).await
    };
    match served.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", args.driver_name);
            ExitCode::from(if error.is_start_up() { 2 } else { 1 })
        }
    }
}

#[cfg(test)]
mod tests;
