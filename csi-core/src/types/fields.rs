//! Each kind of field of a typed request, read from the wire.

use std::num::NonZeroU32;
use std::path::{Component, PathBuf};

use csi_proto::v1;

use super::wire::{Field, Map, check_map};
use super::{
    CapacityRange, ContentSource, GroupSnapshotId, Name, NodeId, Parameters, PublishContext, Secrets,
    SnapshotId, Token, Topology, TopologyRequirement, VolumeCapability, VolumeContext, VolumeId, capability,
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

required_text!(VolumeId, NodeId, SnapshotId, GroupSnapshotId, Name);
optional_text!(VolumeId, NodeId, SnapshotId, Token);

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

map!(Secrets, Parameters, VolumeContext, PublishContext);

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

impl Field<Vec<v1::VolumeCapability>> for Vec<VolumeCapability> {
    fn read(field: &str, wire: &Vec<v1::VolumeCapability>) -> Result<Self> {
        capability::read_all(field, wire)
    }
}

fn read_ids<T: Field<String>>(field: &str, wire: &[String]) -> Result<Vec<T>> {
    wire.iter().enumerate().map(|(at, id)| T::read(&format!("{field}[{at}]"), id)).collect()
}

impl Field<Vec<String>> for Vec<VolumeId> {
    fn read(field: &str, wire: &Vec<String>) -> Result<Self> {
        if wire.is_empty() {
            return Err(Error::invalid(field, "is required and must not be empty"));
        }
        read_ids(field, wire)
    }
}

/// The members of a group. Whether they are required depends on the spec that is served.
impl Field<Vec<String>> for Vec<SnapshotId> {
    fn read(field: &str, wire: &Vec<String>) -> Result<Self> {
        read_ids(field, wire)
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

/// A path at which the caller believes a volume to be. It can be relative, and need not exist: a path
/// without the volume is answered with NOT_FOUND, not refused as malformed.
// spec: size-limits.paths
pub(crate) fn volume_path(field: &str, wire: &str) -> Result<PathBuf> {
    match wire {
        "" => Err(Error::invalid(field, "is required and must not be empty")),
        path if path.contains('\0') => Err(Error::invalid(field, "holds a NUL byte, which a path may not")),
        path => Ok(path.into()),
    }
}

/// Any other path is absolute, and without `..`.
// spec: size-limits.paths, node.paths-absolute
impl Field<String> for PathBuf {
    fn read(field: &str, wire: &String) -> Result<Self> {
        let path = volume_path(field, wire)?;
        if !path.is_absolute() {
            return Err(Error::invalid(field, format!("is {}, must be absolute", path.display())));
        }
        if path.components().any(|component| component == Component::ParentDir) {
            return Err(Error::invalid(field, format!("is {}, must not hold ..", path.display())));
        }
        Ok(path)
    }
}

impl Field<String> for Option<PathBuf> {
    fn read(field: &str, wire: &String) -> Result<Self> {
        if wire.is_empty() { Ok(None) } else { PathBuf::read(field, wire).map(Some) }
    }
}
