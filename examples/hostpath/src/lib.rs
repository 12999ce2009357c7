//! The reference driver: every capability of the spec, on the files of one directory. `README.md` says how to use it.
//!
//! | where | what |
//! |---|---|
//! | `args`, `features`, `parameters` | what it is told: by flags, and by StorageClasses |
//! | `plugin` | which traits are registered: each feature is one |
//! | `host` | what controller and node share: stores, pools, who this node is |
//! | `store/`, `records` | objects on the disk, that are there or are not |
//! | `content`, `still`, `freezer`, `recover` | making, copying and growing content; holding it still for a cut; what a start finds |
//! | `controller/`, `group`, `metadata` | the controller's traits, a capability a file |
//! | `node/` | the node's: the ready-made plugins for devices and directories, and which of them a volume wants |
//! | `damage`, `watch` | what is wrong with a volume; whether the data directory is there, for Probe |
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
mod records;
mod recover;
mod still;
mod store;
mod watch;

use std::process::ExitCode;

use csi_core::ServeError;

pub use args::{Args, BlockMetadataArg, When};
pub use features::Feature;
pub use kind::Kind;
pub use plugin::plugin;
pub use pools::PoolArg;

/// Serves until it is told to stop. The exit status is that of `Plugin::run`: 0 after a signal, 2 when it could not start.
pub async fn run(args: &Args) -> ExitCode {
    let served = async {
        csi_core::init_log(args.driver.log_format, &args.driver.log_level)?;
        let plugin = plugin(args).map_err(|error| ServeError::Plugin(error.to_string()))?;
        plugin.with_args(&args.driver).serve(&args.driver.endpoint).await
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
