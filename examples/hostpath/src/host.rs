//! The state that controller and node share.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csi_core::controller::AttachLimit;
use csi_core::records::DirectoryLock;
use csi_core::snapshot_metadata::BlockMetadataType;
use csi_core::types::{NodeId, Topology};
use csi_core::{Error, IoContext as _, Mode, NodeInfo, Result, blocking};
use tokio::sync::Semaphore;

use crate::args::{Sizes, When};
use crate::freezer::Freezer;
use crate::kind::Kind;
use crate::pools::{Pool, Pools, places_of, topology};
use crate::records::{GroupRecord, SnapshotRecord, VolumeRecord};
use crate::store::{Record, Store};
use crate::watch::DataWatch;
use crate::{Args, Feature, features::Features, metadata, recover};

/// The driver, a handle that the controller and node services share.
#[derive(Debug, Clone)]
pub(crate) struct Driver(Arc<Host>);

/// The driver's state.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) data: PathBuf,
    pub(crate) watch: DataWatch,
    pub(crate) features: Features,
    pub(crate) default_kind: Kind,
    pub(crate) expansion: When,
    pub(crate) block_metadata: BlockMetadataType,
    pub(crate) node: NodeInfo,
    /// All nodes that have this data directory.
    pub(crate) nodes: BTreeSet<NodeId>,
    pub(crate) volumes: Store<VolumeRecord>,
    pub(crate) snapshots: Store<SnapshotRecord>,
    pub(crate) groups: Store<GroupRecord>,
    pub(crate) pools: Pools,
    pub(crate) attach_limit: AttachLimit,
    pub(crate) freezer: Freezer,
    /// Limits the metadata streams that run at the same time.
    pub(crate) streams: Arc<Semaphore>,
    pub(crate) sizes: Sizes,
    /// Names of mutable parameters that are accepted and stored, and have no effect.
    pub(crate) accepted_parameters: Vec<String>,
    pub(crate) serves_node: bool,
    /// Held by the controller, the one process that creates and deletes volumes.
    _lock: Option<DirectoryLock>,
}

impl Deref for Driver {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.0
    }
}

impl Driver {
    /// Opens the data directory, and repairs what the last process left unfinished.
    ///
    /// # Errors
    /// When another controller holds the directory, or the disk fails.
    pub(crate) fn open(args: &Args) -> Result<Self> {
        fs::create_dir_all(&args.data).at("create", &args.data)?;
        let data = args.data.canonicalize().at("resolve", &args.data)?;
        let features = Features::without(&args.without);
        let node = node_info(args, &features)?;
        let serves_controller = args.driver.mode != Mode::Node;
        // A controller also keeps state in memory, so there is one at a time.
        let lock = serves_controller.then(|| DirectoryLock::acquire(&data)).transpose()?;
        let host = Host {
            pools: pools(args, &features, &data)?,
            volumes: store(&data, "volumes", serves_controller)?,
            snapshots: store(&data, "snapshots", serves_controller)?,
            groups: store(&data, "groups", serves_controller)?,
            attach_limit: AttachLimit::new(args.attach_limit.unwrap_or(0).into()),
            freezer: Freezer::default(),
            streams: Arc::new(Semaphore::new(metadata::STREAMS)),
            sizes: args.sizes(),
            accepted_parameters: args.accepted_mutable_parameter_names.clone(),
            nodes: args.peers.iter().cloned().chain([node.node_id.clone()]).collect(),
            default_kind: if features.has(Feature::Stage) { args.kind } else { Kind::Directory },
            expansion: args.expansion,
            block_metadata: args.block_metadata.into(),
            features,
            node,
            watch: DataWatch::start(&data),
            data,
            serves_node: args.driver.mode != Mode::Controller,
            _lock: lock,
        };
        if serves_controller {
            recover::recover(&host)?;
        }
        Ok(Self(Arc::new(host)))
    }

    /// Runs `work` on a thread that is allowed to block.
    pub(crate) async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let this = self.clone();
        blocking(move || work(&this)).await
    }
}

impl Host {
    /// The free space below the data directory in bytes. Promised but unwritten space counts as free.
    pub(crate) fn free_bytes(&self) -> Result<u64> {
        let disk = self.disk()?;
        Ok(disk.f_bavail * disk.f_frsize)
    }

    /// Whether the data directory is read-only while the filesystem is healthy, as after a remount.
    pub(crate) fn is_read_only(&self) -> Result<bool> {
        Ok(self.disk()?.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
    }

    fn disk(&self) -> Result<rustix::fs::StatVfs> {
        rustix::fs::statvfs(&self.data).at("ask for the room of", &self.data)
    }
}

fn store<T: Record>(data: &Path, name: &str, is_ours: bool) -> Result<Store<T>> {
    let root = data.join(name);
    if is_ours { Store::open(root) } else { Ok(Store::of_another_process(root)) }
}

/// This node's info. With topology it has the node's own segment, and the segments from the flags.
fn node_info(args: &Args, features: &Features) -> Result<NodeInfo> {
    let mut info = args.driver.node_info()?;
    if features.has(Feature::Topology) {
        let here = topology(&args.topology, &args.driver_name);
        here.check("--topology")?;
        let own = topology_of(&info.node_id, &args.driver_name);
        own.check("--node-id")?;
        let place = own.iter().fold(here, |place, (key, value)| place.and(key, value));
        info = info.at(place);
    }
    Ok(match args.attach_limit {
        Some(most) => info.max_volumes(most.into()),
        None => info,
    })
}

/// The topology of a node that has no other segments.
fn topology_of(node: &NodeId, prefix: &str) -> Topology {
    Topology::new(format!("{prefix}/node"), node.as_str())
}

fn pools(args: &Args, features: &Features, data: &Path) -> Result<Pools> {
    let disk = rustix::fs::statvfs(data).at("ask for the room of", data)?;
    let nodes: Vec<Topology> = if features.has(Feature::Topology) {
        for peer in &args.peers {
            topology_of(peer, &args.driver_name).check("--peer")?;
        }
        for pool in &args.pools {
            topology(&pool.topology, &args.driver_name).check("--pool")?;
        }
        [args.driver.node_info()?.node_id]
            .iter()
            .chain(&args.peers)
            .map(|node| topology_of(node, &args.driver_name))
            .collect()
    } else {
        Vec::new()
    };
    let whole_disk =
        Pool { name: "default".to_owned(), bytes: disk.f_blocks * disk.f_frsize, places: nodes.clone() };
    let mut names = BTreeSet::new();
    if let Some(pool) = args.pools.iter().find(|pool| !names.insert(&pool.name)) {
        return Err(Error::invalid("--pool", format!("{} is the name of two pools", pool.name)));
    }
    if args.pools.is_empty() {
        return Ok(Pools::new(vec![whole_disk]));
    }
    let pool = |arg: &crate::PoolArg| Pool {
        name: arg.name.clone(),
        bytes: arg.bytes,
        places: if features.has(Feature::Topology) {
            places_of(&arg.topology, &nodes, &args.driver_name)
        } else {
            Vec::new()
        },
    };
    Ok(Pools::new(args.pools.iter().map(pool).collect()))
}
