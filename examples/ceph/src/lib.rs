//! A CSI driver for CephFS. A volume is a subvolume of a CephFS filesystem, its size is a quota. docs/ceph.md says
//! how to use it.
//!
//! The user and the key come with each call, from a Secret. Programs get the key as standard input, and the kernel
//! as a mount option.

mod cluster;
mod controller;
mod node;

use std::net::SocketAddr;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use csi_core::{ControllerService, DriverArgs, Expansion, FuseNode, Plugin, SharedNode};

/// The driver's name.
pub const NAME: &str = "cephfs.csi.example.org";

/// The cluster, and the client that mounts its filesystem.
#[derive(Debug, Clone, Args)]
pub struct CephArgs {
    /// Addresses of the monitors, separated by commas
    #[arg(long, env = "CEPH_MONITORS", value_delimiter = ',', required = true)]
    pub monitors: Vec<SocketAddr>,
    /// The filesystem's name in the cluster
    #[arg(long, env = "CEPH_FILESYSTEM", default_value = "cephfs")]
    pub filesystem: String,
    /// The client on the node
    #[arg(long, env = "CEPH_CLIENT", value_enum, default_value = "fuse")]
    pub client: CephClient,
}

/// The program that mounts CephFS on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CephClient {
    /// A process of `ceph-fuse` for each volume
    Fuse,
    /// The kernel's client
    Kernel,
}

struct CephFs {
    driver: DriverArgs,
    ceph: CephArgs,
}

/// Returns the driver, configured by its flags.
pub fn plugin(driver: &DriverArgs, ceph: &CephArgs) -> Plugin {
    let cephfs = Arc::new(CephFs { driver: driver.clone(), ceph: ceph.clone() });
    let controller = ControllerService::new(cephfs.clone())
        .create_delete_volume()
        .expand_volume(Expansion::Online)
        .create_delete_snapshot()
        .clone_volume()
        .single_node_multi_writer();
    let plugin = Plugin::new(NAME, env!("CARGO_PKG_VERSION")).controller(controller);
    match ceph.client {
        CephClient::Kernel => plugin.node(SharedNode::service(cephfs).single_node_multi_writer()),
        CephClient::Fuse => plugin.node(FuseNode::service(cephfs).single_node_multi_writer()),
    }
}
