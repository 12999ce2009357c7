//! Each kind of field of a typed request, read from the wire.

use std::num::NonZeroU32;

use csi_proto::v1;

use super::wire::{Field, Map, check_map};
use super::{
    AbsolutePath, CapacityRange, ContentSource, GroupSnapshotId, GroupSnapshotName, MutableParameters,
    NodeId, Parameters, PublishContext, RequiredCapacity, Secrets, SnapshotId, SnapshotName, Token, Topology,
    TopologyRequirement, VolumeCapabilities, VolumeCapability, VolumeContext, VolumeId, VolumeName,
    VolumePath, capability,
};
use crate::error::{Error, Result};

macro_rules! required_text {
    ($($type:ident),+) => { $(
        impl Field<String> for $type {
            fn read(field: &str, wire: &String) -> Result<Self> {
                Self::read(field, wire.clone())
            }
        }
    )+ };
}

macro_rules! optional_text {
    ($($type:ident),+) => { $(
        impl Field<String> for Option<$type> {
            fn read(field: &str, wire: &String) -> Result<Self> {
                if wire.is_empty() { Ok(None) } else { $type::read(field, wire.clone()).map(Some) }
            }
        }
    )+ };
}

required_text!(
    VolumeId,
    NodeId,
    SnapshotId,
    GroupSnapshotId,
    VolumeName,
    SnapshotName,
    GroupSnapshotName,
    AbsolutePath,
    VolumePath
);
optional_text!(VolumeId, NodeId, SnapshotId, Token, AbsolutePath);

macro_rules! map {
    ($($type:ident),+) => { $(
        impl Field<Map> for $type {
            fn read(field: &str, wire: &Map) -> Result<Self> {
                check_map(field, wire)?;
                Self::read(field, wire)
            }
        }
    )+ };
}

map!(Secrets, Parameters, MutableParameters, VolumeContext, PublishContext);

macro_rules! message {
    ($($type:ident),+) => { $(
        impl Field<Option<v1::$type>> for Option<$type> {
            fn read(field: &str, wire: &Option<v1::$type>) -> Result<Self> {
                wire.as_ref().map(|wire| $type::read(field, wire)).transpose()
            }
        }

        impl Field<Option<v1::$type>> for $type {
            fn read(field: &str, wire: &Option<v1::$type>) -> Result<Self> {
                match wire {
                    Some(wire) => $type::read(field, wire),
                    None => Err(Error::invalid(field, "is required")),
                }
            }
        }
    )+ };
}

message!(VolumeCapability, Topology, TopologyRequirement);

impl Field<Option<v1::VolumeContentSource>> for Option<ContentSource> {
    fn read(field: &str, wire: &Option<v1::VolumeContentSource>) -> Result<Self> {
        wire.as_ref().map(|wire| ContentSource::read(field, wire)).transpose()
    }
}

/// An absent range accepts every size.
impl Field<Option<v1::CapacityRange>> for CapacityRange {
    fn read(field: &str, wire: &Option<v1::CapacityRange>) -> Result<Self> {
        wire.as_ref().map_or_else(|| Ok(Self::default()), |wire| Self::read(field, wire))
    }
}

impl Field<Option<v1::CapacityRange>> for RequiredCapacity {
    fn read(field: &str, wire: &Option<v1::CapacityRange>) -> Result<Self> {
        match wire {
            Some(wire) => CapacityRange::read(field, wire).map(Self),
            None => Err(Error::invalid(field, "is required")),
        }
    }
}

impl Field<Vec<v1::VolumeCapability>> for VolumeCapabilities {
    fn read(field: &str, wire: &Vec<v1::VolumeCapability>) -> Result<Self> {
        VolumeCapabilities::read(field, wire)
    }
}

impl Field<Vec<v1::VolumeCapability>> for Vec<VolumeCapability> {
    fn read(field: &str, wire: &Vec<v1::VolumeCapability>) -> Result<Self> {
        capability::read_all(field, wire)
    }
}

macro_rules! required_ids {
    ($($type:ident),+) => { $(
        impl Field<Vec<String>> for Vec<$type> {
            fn read(field: &str, wire: &Vec<String>) -> Result<Self> {
                if wire.is_empty() {
                    return Err(Error::invalid(field, "is required and must not be empty"));
                }
                wire.iter().enumerate().map(|(at, id)| $type::read(&format!("{field}[{at}]"), id.clone())).collect()
            }
        }
    )+ };
}

required_ids!(VolumeId);

/// The members of a group. Whether they are required depends on the spec that is served.
impl Field<Vec<String>> for Vec<SnapshotId> {
    fn read(field: &str, wire: &Vec<String>) -> Result<Self> {
        wire.iter()
            .enumerate()
            .map(|(at, id)| SnapshotId::read(&format!("{field}[{at}]"), id.clone()))
            .collect()
    }
}

impl Field<bool> for bool {
    fn read(_: &str, wire: &bool) -> Result<Self> {
        Ok(*wire)
    }
}

/// `max_entries` and `max_results`: zero means that the caller sets no limit.
impl Field<i32> for Option<NonZeroU32> {
    fn read(field: &str, wire: &i32) -> Result<Self> {
        u32::try_from(*wire)
            .map(NonZeroU32::new)
            .map_err(|_| Error::invalid(field, format!("is {wire}, must not be negative")))
    }
}

/// `starting_offset`, in bytes.
impl Field<i64> for u64 {
    fn read(field: &str, wire: &i64) -> Result<Self> {
        u64::try_from(*wire).map_err(|_| Error::invalid(field, format!("is {wire}, must not be negative")))
    }
}
