//! A volume, as the driver answers with it.

use std::collections::BTreeMap;

use csi_proto::v1;
use v1::volume_content_source as wire_source;

use super::wire::check_map;
use super::{SnapshotId, Topology, VolumeId};
use crate::offer::{Offer, PluginService};
use crate::{Error, Result};

/// What a new volume's content is copied from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ContentSource {
    /// A snapshot.
    Snapshot(SnapshotId),
    /// Another volume: a clone.
    Volume(VolumeId),
}

impl ContentSource {
    // spec: fields.one-of
    pub(crate) fn read(field: &str, wire: &v1::VolumeContentSource) -> Result<Self> {
        use wire_source::Type;
        match &wire.r#type {
            Some(Type::Snapshot(source)) => {
                SnapshotId::read(&format!("{field}.snapshot.snapshot_id"), source.snapshot_id.clone())
                    .map(Self::Snapshot)
            }
            Some(Type::Volume(source)) => {
                VolumeId::read(&format!("{field}.volume.volume_id"), source.volume_id.clone())
                    .map(Self::Volume)
            }
            None => Err(Error::invalid(field, "must have snapshot or volume when it is given")),
        }
    }
}

impl From<ContentSource> for v1::VolumeContentSource {
    fn from(source: ContentSource) -> Self {
        let r#type = match source {
            ContentSource::Snapshot(id) => {
                wire_source::Type::Snapshot(wire_source::SnapshotSource { snapshot_id: id.into() })
            }
            ContentSource::Volume(id) => {
                wire_source::Type::Volume(wire_source::VolumeSource { volume_id: id.into() })
            }
        };
        Self { r#type: Some(r#type) }
    }
}

/// A volume that exists.
///
/// ```
/// # use csi_core::{Volume, VolumeId};
/// let volume = Volume::new(VolumeId::new("vol-1")?, 1 << 30).context("pool", "fast");
/// # Ok::<(), csi_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Volume {
    /// Its id.
    pub volume_id: VolumeId,
    /// Its size in bytes; 0 when it is unknown, which callers take for the size that they asked for.
    pub capacity_bytes: u64,
    /// What every later call about the volume brings back. No secrets: it is stored in the clear.
    pub volume_context: BTreeMap<String, String>,
    /// What its content was copied from. Left `None`, CreateVolume answers with the source asked for.
    pub content_source: Option<ContentSource>,
    /// The places from which it can be used; empty when there is no constraint.
    pub accessible_topology: Vec<Topology>,
}

impl Volume {
    /// A volume with this id and size in bytes, and nothing else to say of it.
    pub fn new(volume_id: VolumeId, capacity_bytes: u64) -> Self {
        Self {
            volume_id,
            capacity_bytes,
            volume_context: BTreeMap::new(),
            content_source: None,
            accessible_topology: Vec::new(),
        }
    }

    /// The same volume, with one more entry in its context.
    #[must_use]
    pub fn context(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.volume_context.insert(key.into(), value.into());
        self
    }

    /// The same volume, copied from this source.
    #[must_use]
    pub fn source(mut self, source: ContentSource) -> Self {
        self.content_source = Some(source);
        self
    }

    /// The same volume, usable from one more place.
    #[must_use]
    pub fn accessible_from(mut self, topology: Topology) -> Self {
        self.accessible_topology.push(topology);
        self
    }

    /// The wire's form, once it keeps the spec's rules.
    // spec: create-volume.topology-needs-capability, create-volume.answers-an-id
    pub(crate) fn answer(self, offer: &Offer) -> Result<v1::Volume> {
        check_map("volume.volume_context", &self.volume_context).map_err(Error::broken)?;
        offer.check_places(
            "volume.accessible_topology",
            &self.accessible_topology,
            PluginService::VolumeAccessibilityConstraints,
        )?;
        Ok(v1::Volume {
            capacity_bytes: signed("volume.capacity_bytes", self.capacity_bytes)?,
            volume_id: self.volume_id.into(),
            volume_context: self.volume_context,
            content_source: self.content_source.map(Into::into),
            accessible_topology: self.accessible_topology.into_iter().map(Into::into).collect(),
        })
    }
}

/// A size of the driver's as the wire has it.
// spec: fields.not-negative
pub(crate) fn signed(field: &str, bytes: u64) -> Result<i64> {
    i64::try_from(bytes).map_err(|_| Error::broken(format!("{field} {bytes} does not fit an int64")))
}
