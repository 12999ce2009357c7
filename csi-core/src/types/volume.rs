//! A volume in a driver's answers.

use std::collections::BTreeMap;
use std::fmt;

use csi_proto::v1;
use serde::{Deserialize, Serialize};
use v1::volume_content_source as wire_source;

use super::wire::check_map;
use super::{SnapshotId, Topology, VolumeId};
use crate::error::{Error, Result};
use crate::offer::{Offer, PluginService};

/// The source of a new volume's content.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ContentSource {
    /// A snapshot.
    Snapshot(SnapshotId),
    /// Another volume: a clone.
    Volume(VolumeId),
}

impl ContentSource {
    /// Returns the id of the snapshot or volume.
    pub fn id(&self) -> &str {
        match self {
            Self::Snapshot(id) => id.as_str(),
            Self::Volume(id) => id.as_str(),
        }
    }

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

/// Shows the kind and the id, for example `snapshot snap-1`.
impl fmt::Display for ContentSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot(id) => write!(f, "snapshot {id}"),
            Self::Volume(id) => write!(f, "volume {id}"),
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

/// An existing volume.
///
/// ```
/// # use csi_core::{Volume, VolumeId};
/// let volume = Volume::new(VolumeId::new("vol-1")?, 1 << 30).context("pool", "fast");
/// # Ok::<(), csi_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Volume {
    /// The volume's id.
    pub volume_id: VolumeId,
    /// The size in bytes; 0 if unknown, in which case callers assume the requested size.
    pub capacity_bytes: u64,
    /// The context that is sent with every later call about the volume. It must contain no secrets: it is
    /// stored in clear text.
    pub volume_context: BTreeMap<String, String>,
    /// The source of the content. If `None`, CreateVolume answers with the requested source.
    pub content_source: Option<ContentSource>,
    /// From where the volume can be used; empty means no constraint.
    pub accessible_topology: Vec<Topology>,
    /// The filesystem that the volume has, or gets at its first stage; `None` if that is not known.
    /// ValidateVolumeCapabilities confirms no other one. Not on the wire.
    pub fs_type: Option<String>,
}

impl Volume {
    /// Creates a volume with this id and size in bytes.
    pub fn new(volume_id: VolumeId, capacity_bytes: u64) -> Self {
        Self {
            volume_id,
            capacity_bytes,
            volume_context: BTreeMap::new(),
            content_source: None,
            accessible_topology: Vec::new(),
            fs_type: None,
        }
    }

    /// Adds an entry to the context.
    #[must_use]
    pub fn context(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.volume_context.insert(key.into(), value.into());
        self
    }

    /// Sets the source of the content.
    #[must_use]
    pub fn source(mut self, source: ContentSource) -> Self {
        self.content_source = Some(source);
        self
    }

    /// Adds a topology from which the volume is usable.
    #[must_use]
    pub fn accessible_from(mut self, topology: Topology) -> Self {
        self.accessible_topology.push(topology);
        self
    }

    /// Checks the spec's rules and returns the wire's form.
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

/// A size from the driver in the wire's form.
// spec: fields.not-negative
pub(crate) fn signed(field: &str, bytes: u64) -> Result<i64> {
    i64::try_from(bytes).map_err(|_| Error::broken(format!("{field} {bytes} does not fit an int64")))
}
