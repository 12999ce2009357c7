//! The spec's values as types: checked once when they are made, valid from then on.
//!
//! [`VolumeCapability`], [`Volume`] and the ids are the central ones; `wire.rs` has the trait by which
//! `fields.rs` reads each kind of field. Helpers for drivers lie next to the values: [`IdCodec`] for ids, [`Place`] for
//! topology.
//!
//! It imports errors, ids, and the sets of offered capabilities, against which answers are checked.

pub(crate) mod capability;
mod capacity;
pub(crate) mod fields;
pub(crate) mod health;
pub(crate) mod id;
mod id_codec;
mod map;
mod offered;
pub(crate) mod percent;
pub(crate) mod place;
mod snapshot;
mod topology;
mod usage;
mod values;
pub(crate) mod volume;
pub(crate) mod wire;

pub use capability::{AccessMode, AccessType, MountFlags, VolumeCapability};
pub use capacity::CapacityRange;
pub use health::{
    StorageHealthEntry, StorageHealthStatus, VolumeHealth, VolumeHealthEntry, VolumeHealthStatus,
};
pub use id::{GroupSnapshotId, Name, NodeId, SnapshotId, Token, VolumeId};
pub use id_codec::{IdCodec, IdFields};
pub use map::{Parameters, PublishContext, Secrets, StringMap, VolumeContext};
pub use place::Place;
pub use snapshot::{Snapshot, VolumeGroupSnapshot};
pub use topology::{Topology, TopologyRequirement};
pub use usage::{Usage, VolumeStats};
pub use volume::{ContentSource, Volume};
