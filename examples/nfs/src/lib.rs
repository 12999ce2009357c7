//! A CSI driver for NFS: whole shares, and volumes that are directories in a share.
//!
//! | what | where |
//! |---|---|
//! | the parameters of a StorageClass, and the sub-directory that they name | `parameters` |
//! | a share, and the ids that name one | `share` |
//! | work on a share, bounded if its server does not answer | `share_workers`, `locks` |
//! | volumes and snapshots on a share | `volumes`, `places`, `snapshots`, `records` |
//! | the RPCs | `controller`, `node` |
//!
//! The README says how to use it.

mod controller;
#[cfg(test)]
mod interruptions;
mod locks;
mod node;
mod parameters;
mod places;
mod records;
mod share;
mod share_workers;
mod snapshots;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use csi_core::mount::flow::shared;
use csi_core::{ControllerService, DriverArgs, Expansion, Plugin, SharedNode};

pub use parameters::{Mode, OnDelete};
pub use share_workers::Open;
use share_workers::ShareWorkers;

/// The flags of this driver, in addition to those of all drivers.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Volumes")]
pub struct VolumeArgs {
    /// The driver's name; with `nfs.csi.k8s.io` it takes over the volumes of csi-driver-nfs
    #[arg(long, env = "DRIVER_NAME", value_name = "NAME", default_value = "nfs.csi.example.org")]
    pub driver_name: String,

    /// What happens to the directory of a deleted volume, unless the StorageClass chooses it: delete,
    /// retain or archive
    #[arg(long, env = "DEFAULT_ON_DELETE", value_name = "POLICY", default_value_t)]
    pub default_on_delete: OnDelete,

    /// Permissions of new directories in octal, unless the StorageClass chooses them; 0 means 0755
    #[arg(long, env = "MOUNT_PERMISSIONS", value_name = "MODE", default_value_t)]
    pub mount_permissions: Mode,

    /// The time in seconds after which an operation fails if the server of its share does not answer
    #[arg(long, env = "SERVER_PATIENCE", value_name = "SECONDS", default_value_t = 40,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub server_patience: u64,
}

impl Default for VolumeArgs {
    fn default() -> Self {
        Self {
            driver_name: "nfs.csi.example.org".to_owned(),
            default_on_delete: OnDelete::default(),
            mount_permissions: Mode::default(),
            server_patience: 40,
        }
    }
}

/// Builds the driver, configured by its flags.
pub fn plugin(driver: &DriverArgs, volumes: &VolumeArgs) -> Plugin {
    plugin_with(driver, volumes, Arc::new(|source| Ok(shared::open(source)?)))
}

/// Builds the driver with another way to open a share's root directory. Only the controller uses it.
pub fn plugin_with(driver: &DriverArgs, volumes: &VolumeArgs, open: Open) -> Plugin {
    let workers = ShareWorkers::new(open, Duration::from_secs(volumes.server_patience));
    let controller = ControllerService::new(Arc::new(controller::Shares::new(workers, volumes.clone())))
        .create_delete_volume()
        .create_delete_snapshot()
        .clone_volume()
        .expand_volume(Expansion::Online)
        .single_node_multi_writer();
    let node = SharedNode::service(Arc::new(node::Mounts(driver.clone()))).single_node_multi_writer();
    let node = node.adopt(node::is_nfs);
    Plugin::new(&volumes.driver_name, env!("CARGO_PKG_VERSION")).controller(controller).node(node)
}
