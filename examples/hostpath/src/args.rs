//! The driver's flags.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use csi_core::kubernetes::Quantity;
use csi_core::snapshot_metadata::BlockMetadataType;
use csi_core::types::NodeId;
use csi_core::{DriverArgs, Error, Result};

use crate::Feature;
use crate::kind::Kind;
use crate::pools::PoolArg;

const EXAMPLES: &str = "\
Examples:
  hostpath --endpoint unix:///run/csi/csi.sock --data /var/lib/hostpath
      All features; the disk limits the size of volumes.
  hostpath --endpoint /run/csi/csi.sock --data /srv --pool fast=10Gi --pool slow=1Ti,zone=b
      Two pools, chosen by the StorageClass's parameter `pool` or by the requested topology.
  hostpath --endpoint /run/csi/csi.sock --data /srv --kind directory --without attach,stage
      Volumes are directories, without attaching and staging.

Parameters of a StorageClass: kind (image or directory), pool. Mutable parameters, also of a
VolumeAttributesClass: provisioning (thin or thick), description. Inline volumes: kind and size, as volume
attributes.";

/// The reference CSI driver: every capability of the spec, on the files of one directory
///
/// Volumes are image files on loop devices, or directories, below one directory of this machine. The driver
/// is for trials, tests and reading, not for data that must outlive the machine.
#[derive(Debug, Clone, Parser)]
#[command(name = "hostpath", version, after_help = EXAMPLES)]
#[non_exhaustive]
pub struct Args {
    /// The directory for volumes and snapshots
    #[arg(long, env = "DATA_DIR", value_name = "DIR")]
    pub data: PathBuf,

    /// The kind of volumes, unless the StorageClass chooses it
    #[arg(long, env = "VOLUME_KIND", value_name = "KIND", default_value = "image")]
    pub kind: Kind,

    /// A pool with its name, its size and its topology: fast=10Gi or fast=10Gi,zone=a [default: one pool with
    /// the size of the disk]
    #[arg(long = "pool", env = "POOLS", value_name = "NAME=SIZE[,KEY=VALUE]", value_delimiter = ' ')]
    pub pools: Vec<PoolArg>,

    /// The topology of this node, in addition to its own id: zone=a. Once for each key
    #[arg(long, env = "TOPOLOGY", value_name = "KEY=VALUE", value_delimiter = ',', value_parser = pair)]
    pub topology: Vec<(String, String)>,

    /// The id of another node with the same data directory and the same volumes
    #[arg(long = "peer", env = "PEERS", value_name = "NODE", value_delimiter = ',', value_parser = node_id)]
    pub peers: Vec<NodeId>,

    /// The largest number of volumes attached to a node; 0 is any number [default: any number]
    #[arg(long, env = "ATTACH_LIMIT", value_name = "COUNT")]
    pub attach_limit: Option<u32>,

    /// Whether a volume can grow while it is in use
    #[arg(long, env = "EXPANSION", value_name = "WHEN", default_value = "online")]
    pub expansion: When,

    /// How a snapshot's ranges are reported: with variable length, or as blocks of 4 KiB
    #[arg(long, env = "BLOCK_METADATA", value_name = "KIND", default_value = "variable")]
    pub block_metadata: BlockMetadataArg,

    /// The largest size of a volume, also after expansion [default: the size of its pool]
    #[arg(long, env = "MAX_VOLUME_SIZE", value_name = "SIZE")]
    pub max_volume_size: Option<Quantity>,

    /// The largest size to which the node expands a volume, to test callers that must recover [default: the
    /// controller's limit]
    #[arg(long, env = "MAX_VOLUME_SIZE_NODE", value_name = "SIZE")]
    pub max_volume_size_node: Option<Quantity>,

    /// Additional mutable parameters that are accepted; they are stored and have no effect
    #[arg(long, env = "ACCEPTED_MUTABLE_PARAMETER_NAMES", value_name = "NAME", value_delimiter = ',')]
    pub accepted_mutable_parameter_names: Vec<String>,

    /// Features to switch off, to test callers without them
    #[arg(long, env = "WITHOUT", value_name = "FEATURE", value_delimiter = ',', hide_env = false)]
    pub without: Vec<Feature>,

    /// The driver's name, which is also the prefix of topology keys
    #[arg(long, env = "DRIVER_NAME", value_name = "NAME", default_value = "hostpath.csi.example.org")]
    pub driver_name: String,

    /// The version in GetPluginInfo
    #[arg(long, env = "VENDOR_VERSION", value_name = "VERSION", default_value = env!("CARGO_PKG_VERSION"))]
    pub vendor_version: String,

    /// Write events of this node in Kubernetes: a volume that stays in use, an inline volume whose pod's directory is
    /// gone, an end with an error. The node's id must be its name
    #[cfg(feature = "controllers")]
    #[arg(long, env = "NODE_EVENTS")]
    pub node_events: bool,

    #[allow(missing_docs, reason = "its own documentation is the help's text")]
    #[command(flatten)]
    pub driver: DriverArgs,

    #[cfg(feature = "controllers")]
    #[allow(missing_docs, reason = "its own documentation is the help's text")]
    #[command(flatten)]
    pub controllers: csi_controllers::ControllerArgs,
}

/// When a volume can grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// Also while it is in use
    Online,
    /// Only while it is not in use
    Offline,
}

/// How the ranges of a snapshot's metadata are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BlockMetadataArg {
    /// Ranges of any length
    Variable,
    /// Blocks of 4 KiB
    Fixed,
}

impl From<BlockMetadataArg> for BlockMetadataType {
    fn from(arg: BlockMetadataArg) -> Self {
        match arg {
            BlockMetadataArg::Variable => Self::VariableLength,
            BlockMetadataArg::Fixed => Self::FixedLength,
        }
    }
}

/// The largest size of a volume, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) most: u64,
    /// The largest size that the node expands a volume to.
    most_on_node: u64,
}

impl Args {
    pub(crate) fn sizes(&self) -> Sizes {
        let bytes = |size: Option<Quantity>| size.map_or(u64::MAX, Quantity::bytes);
        Sizes { most: bytes(self.max_volume_size), most_on_node: bytes(self.max_volume_size_node) }
    }
}

impl Sizes {
    /// Checks a size in bytes against the controller's limit.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a larger size.
    pub(crate) fn check(self, bytes: u64) -> Result<()> {
        within("--max-volume-size", self.most, bytes)
    }

    /// Checks a size in bytes against the node's limit.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a larger size.
    pub(crate) fn check_on_node(self, bytes: u64) -> Result<()> {
        within("--max-volume-size-node", self.most_on_node, bytes)
    }
}

fn within(flag: &str, most: u64, bytes: u64) -> Result<()> {
    if bytes <= most {
        Ok(())
    } else {
        Err(Error::OutOfRange(format!("{bytes} bytes are more than the limit of {flag}, {most}").into()))
    }
}

/// `KEY=VALUE`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = pair.ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

fn node_id(text: &str) -> Result<NodeId> {
    NodeId::new(text)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    // spec: environment.prefix
    #[test]
    fn the_flags_hold_together_and_leave_the_spec_its_prefix() {
        let command = Args::command();
        command.clone().debug_assert();
        for arg in command.get_arguments().filter(|arg| arg.get_id() != "help" && arg.get_id() != "version") {
            let variable = arg.get_env().expect("every flag has a variable").to_str().unwrap();
            assert_eq!(variable.starts_with("CSI_"), variable == "CSI_ENDPOINT", "{variable}");
        }
    }

    #[test]
    fn pools_places_and_features_are_read() {
        let args = Args::parse_from([
            "hostpath",
            "--endpoint=/csi.sock",
            "--data=/srv",
            "--pool=fast=10Gi",
            "--pool=slow=1Ti,zone=b,rack=r1",
            "--topology=zone=a",
            "--without=attach,snapshot-metadata",
            "--max-volume-size=1Gi",
            "--accepted-mutable-parameter-names=one,two",
        ]);
        assert_eq!((args.sizes().most, args.accepted_mutable_parameter_names.len()), (1 << 30, 2));
        assert!(args.sizes().check(1 << 30).is_ok() && args.sizes().check((1 << 30) + 1).is_err());
        assert_eq!(args.pools.len(), 2);
        assert_eq!(args.pools[1].topology.len(), 2);
        assert_eq!(args.without, [Feature::Attach, Feature::SnapshotMetadata]);
        for bad in [
            "--pool=fast",
            "--pool==1Gi",
            "--pool=fast=10Xi",
            "--topology=zone",
            "--without=everything",
            "--kind=tape",
        ] {
            let args = ["hostpath", "--endpoint=/csi.sock", "--data=/srv", bad];
            assert!(Args::try_parse_from(args).is_err(), "{bad}");
        }
    }
}
