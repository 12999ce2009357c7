//! A CSI driver for Ceph. A volume is a subvolume of a CephFS filesystem, whose size is a quota, or an image (RBD).
//! docs/ceph.md says how to use it.
//!
//! The user and the key come with each call, from a Secret. Programs get the key as standard input, and the kernel
//! as a mount option or in a keyring.
//!
//! | file | has |
//! |---|---|
//! | `controller.rs` | the controller, with a record of each volume and snapshot |
//! | `subvolumes.rs`, `images.rs` | what the cluster makes them of; `images.rs` also has the node's side |
//! | `node.rs` | the node's side of CephFS |
//! | `cluster.rs` | commands of the cluster, and the records in it |

mod cluster;
mod controller;
mod images;
mod node;
mod subvolumes;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use csi_core::node_plugins::RemoteDisks;
use csi_core::{BlockNode, ControllerService, DriverArgs, Expansion, FuseNode, Plugin, SharedNode};

use controller::Store;
use images::Images;
use subvolumes::Subvolumes;

/// The driver's name, with volumes in a filesystem.
pub const NAME: &str = "cephfs.csi.example.org";

/// The driver's name, with images as volumes.
pub const RBD_NAME: &str = "rbd.csi.example.org";

/// The cluster, and the client that mounts its filesystem.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Ceph")]
pub struct CephArgs {
    /// Addresses of the monitors, separated by commas
    #[arg(long, env = "CEPH_MONITORS", value_name = "IP:PORT", value_delimiter = ',', required = true)]
    pub monitors: Vec<SocketAddr>,
    /// The filesystem's name in the cluster
    #[arg(long, env = "CEPH_FILESYSTEM", value_name = "NAME", default_value = "cephfs")]
    pub filesystem: String,
    /// The client on the node
    #[arg(long, env = "CEPH_CLIENT", value_enum, default_value = "fuse")]
    pub client: CephClient,
    /// The pool of images, with --client rbd
    #[arg(long, env = "CEPH_POOL", value_name = "NAME", default_value = "rbd")]
    pub pool: String,
    /// The directory for the records of mapped images, with --client rbd; on the node's disk
    #[arg(
        long,
        env = "CEPH_ATTACHED",
        value_name = "PATH",
        default_value = "/var/lib/kubelet/plugins/rbd.csi.example.org/attached"
    )]
    pub attached: PathBuf,
}

/// What a volume is, and the client that brings it to the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CephClient {
    /// CephFS, with a process of ceph-fuse for each volume
    Fuse,
    /// CephFS, with the kernel's client
    Kernel,
    /// Images, with the kernel's client
    Rbd,
}

struct Ceph {
    driver: DriverArgs,
    args: CephArgs,
    store: Box<dyn Store>,
    disks: RemoteDisks,
}

/// Returns the driver, configured by its flags.
pub fn plugin(driver: &DriverArgs, ceph: &CephArgs) -> Plugin {
    let (name, store): (_, Box<dyn Store>) = match ceph.client {
        CephClient::Fuse | CephClient::Kernel => {
            (NAME, Box::new(Subvolumes { filesystem: ceph.filesystem.clone() }))
        }
        CephClient::Rbd => (RBD_NAME, Box::new(Images { pool: ceph.pool.clone() })),
    };
    let disks = RemoteDisks::new(&ceph.attached);
    let volumes = Arc::new(Ceph { driver: driver.clone(), args: ceph.clone(), store, disks });
    let controller = ControllerService::new(volumes.clone())
        .create_delete_volume()
        .expand_volume(Expansion::Online)
        .create_delete_snapshot()
        .clone_volume()
        .single_node_multi_writer();
    let plugin = Plugin::new(name, env!("CARGO_PKG_VERSION")).controller(controller);
    match ceph.client {
        CephClient::Kernel => plugin.node(SharedNode::service(volumes).single_node_multi_writer()),
        CephClient::Fuse => plugin.node(FuseNode::service(volumes).single_node_multi_writer()),
        CephClient::Rbd => plugin.node(BlockNode::service(volumes).single_node_multi_writer()),
    }
}
