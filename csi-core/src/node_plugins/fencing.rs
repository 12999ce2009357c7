//! A single writer, proven by the storage ([`csi_mount::reservation`]): the record of the controller, and the part of
//! [`BlockNode`](super::BlockNode) that differs with and without the feature `remote`.

use std::path::Path;

use csi_mount::Host;
use csi_mount::flow::block::StagePlan;
#[cfg(feature = "remote")]
use csi_mount::reservation::{Fencing, ReservationKey, WriteRight};

use super::block_devices::{Attachment, BlockDevices};
#[cfg(feature = "remote")]
use crate::error::Error;
use crate::error::Result;
use crate::types::VolumeHealthEntry;
#[cfg(feature = "remote")]
use crate::types::{NodeId, VolumeHealthStatus};

/// The entry of the publish context that has the node's key.
#[cfg(feature = "remote")]
const KEY: &str = "reservationKey";

/// The node that a volume with one writer is published to, and the number of times that it was published after it was
/// published nowhere: the generation of the node's [`ReservationKey`].
///
/// A driver that [fences](super::BlockDevices::fencing) keeps it with the volume, durably. It changes and stores it in
/// ControllerPublishVolume before the answer, and in ControllerUnpublishVolume. The framework runs these calls for
/// different nodes at the same time: a driver holds a lock of its own while it reads, changes and stores the record. A
/// copy or a snapshot of the volume begins with a new one.
///
/// ```
/// use csi_core::node_plugins::PublishRecord;
/// use csi_core::types::NodeId;
///
/// let mut record = PublishRecord::default();
/// record.publish(&NodeId::new("a")?)?;
/// let (name, first) = record.context("3f2504e0-4f89-41d3-9a0c-0305e82c3301");
/// assert!(record.publish(&NodeId::new("b")?).is_err(), "it is published to a");
/// record.unpublish(None);
/// record.publish(&NodeId::new("b")?)?;
/// assert_ne!(record.context("3f2504e0-4f89-41d3-9a0c-0305e82c3301"), (name, first));
/// # Ok::<(), csi_core::Error>(())
/// ```
#[cfg(feature = "remote")]
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct PublishRecord {
    /// The node to which it was published last. Empty: to none yet.
    node: String,
    is_published: bool,
    generation: u32,
}

#[cfg(feature = "remote")]
impl PublishRecord {
    /// Publishes the volume to this node. A repeated call changes nothing. A volume that comes back to the same node has
    /// a new generation: another machine can have the name now, and the one before can still write.
    ///
    /// # Errors
    /// [`Error::PublishedElsewhere`] (FAILED_PRECONDITION) if it is published to another node.
    pub fn publish(&mut self, node: &NodeId) -> Result<()> {
        if self.is_published {
            if self.node != node.as_str() {
                return Err(Error::PublishedElsewhere(NodeId::new(&self.node)?));
            }
            return Ok(());
        }
        let next = self.generation.checked_add(1);
        self.generation = next.ok_or_else(|| Error::Internal("no generation is left".into()))?;
        self.node = node.as_str().to_owned();
        self.is_published = true;
        Ok(())
    }

    /// Unpublishes the volume from this node, or from any. The next node can then take the device over from it.
    pub fn unpublish(&mut self, node: Option<&NodeId>) {
        if node.is_none_or(|node| node.as_str() == self.node) {
            self.is_published = false;
        }
    }

    /// The node to which the volume is published.
    pub fn published_node(&self) -> Option<&str> {
        self.is_published.then_some(&self.node)
    }

    /// The entry of the publish context, by which the node registers. `cluster` is the same for all nodes of a cluster,
    /// and for no node of another one: see [`ReservationKey::new`].
    pub fn context(&self, cluster: &str) -> (String, String) {
        (KEY.to_owned(), ReservationKey::new(cluster, self.generation).to_string())
    }
}

/// The reservation of a volume's device.
pub(super) enum Reservation {
    /// The driver or the access mode asks for none.
    Off,
    /// There is to be one, but the controller gave no key.
    #[cfg(feature = "remote")]
    WithoutKey,
    #[cfg(feature = "remote")]
    WithKey(ReservationKey, Fencing),
}

#[cfg(feature = "remote")]
impl Reservation {
    /// For a stage: one that is required needs a key.
    pub(super) fn for_stage(devices: &impl BlockDevices, volume: &Attachment) -> Result<Self> {
        let found = Self::of(devices, volume)?;
        if matches!(found, Self::WithoutKey) && devices.fencing() == Fencing::Required {
            volume.publish_context.require(KEY)?;
        }
        Ok(found)
    }

    /// What the driver chose, with the key of the publish context: a volume that was staged earlier can have none. One that
    /// several nodes use, or that is only read, has no reservation.
    pub(super) fn of(devices: &impl BlockDevices, volume: &Attachment) -> Result<Self> {
        let mode = volume.volume_capability.as_ref().map(|capability| capability.access_mode);
        let has_one_writer = mode.is_none_or(|mode| !mode.is_multi_node() && !mode.is_read_only());
        let fencing = devices.fencing();
        if !has_one_writer || fencing == Fencing::Off {
            return Ok(Self::Off);
        }
        let Some(key) = volume.publish_context.get(KEY) else { return Ok(Self::WithoutKey) };
        let key = key.parse().map_err(|error: csi_mount::Error| {
            Error::invalid(format!("publish_context[{KEY}]"), error.to_string())
        })?;
        Ok(Self::WithKey(key, fencing))
    }

    /// The plan of a volume's stage, with the reservation.
    pub(super) fn plan(&self, plan: StagePlan) -> StagePlan {
        match self {
            Self::Off => plan,
            Self::WithoutKey => {
                log_without_key();
                plan
            }
            Self::WithKey(key, fencing) => plan.reserve(*key, *fencing),
        }
    }

    /// Reserves the device of a raw volume.
    pub(super) fn reserve(&self, host: &Host, device: &Path) -> Result<()> {
        match self {
            Self::Off => {}
            Self::WithoutKey => log_without_key(),
            Self::WithKey(key, fencing) => host.block().reserve(device, *key, *fencing)?,
        }
        Ok(())
    }

    /// What is wrong with the reservation.
    pub(super) fn health(&self, host: &Host, device: &Path) -> Result<Option<VolumeHealthEntry>> {
        let not_fenced = |message| VolumeHealthEntry::new(VolumeHealthStatus::Degraded, "NotFenced", message);
        let key = match self {
            Self::Off => return Ok(None),
            Self::WithoutKey => {
                return Ok(Some(not_fenced(
                    "its controller gave no key: a node that is cut off could write",
                )));
            }
            Self::WithKey(key, _) => *key,
        };
        Ok(Some(match host.block().write_right(device, key)? {
            WriteRight::Lost(generation) => VolumeHealthEntry::new(
                VolumeHealthStatus::Inaccessible,
                "Fenced",
                format!(
                    "generation {generation} has the volume, this node has {}: unstage it",
                    key.generation()
                ),
            ),
            WriteRight::NotReserved => VolumeHealthEntry::new(
                VolumeHealthStatus::Degraded,
                "NotReserved",
                "its storage lost the reservation: another node could write; stage it again",
            ),
            WriteRight::Unsupported => {
                not_fenced("its device has no reservations: a node that is cut off could write")
            }
            _ => return Ok(None),
        }))
    }
}

#[cfg(feature = "remote")]
fn log_without_key() {
    tracing::info!("no reservation: the publish context has no {KEY}");
}

/// Ends the reservation of a volume that is unstaged. If that fails, the next node takes it over.
#[cfg(feature = "remote")]
pub(super) fn release(devices: &impl BlockDevices, host: &Host, device: &Path) {
    if devices.fencing() != Fencing::Off
        && let Err(left) = host.block().release(device)
    {
        tracing::warn!(%left, "the reservation of a volume that is unstaged stays");
    }
}

#[cfg(not(feature = "remote"))]
#[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "with the feature they do something")]
impl Reservation {
    pub(super) fn for_stage(_: &impl BlockDevices, _: &Attachment) -> Result<Self> {
        Ok(Self::Off)
    }

    pub(super) fn of(_: &impl BlockDevices, _: &Attachment) -> Result<Self> {
        Ok(Self::Off)
    }

    pub(super) fn plan(&self, plan: StagePlan) -> StagePlan {
        plan
    }

    pub(super) fn reserve(&self, _: &Host, _: &Path) -> Result<()> {
        Ok(())
    }

    pub(super) fn health(&self, _: &Host, _: &Path) -> Result<Option<VolumeHealthEntry>> {
        Ok(None)
    }
}

#[cfg(not(feature = "remote"))]
pub(super) fn release(_: &impl BlockDevices, _: &Host, _: &Path) {}

#[cfg(all(test, feature = "remote"))]
mod tests {
    use super::*;

    #[test]
    fn the_generation_grows_with_each_publish_after_an_unpublish() {
        let node = |name: &str| NodeId::new(name).unwrap();
        let mut record = PublishRecord::default();
        for (name, generation) in [("a", 1), ("a", 2), ("b", 3), ("b", 4), ("a", 5)] {
            record.publish(&node(name)).unwrap();
            record.publish(&node(name)).unwrap();
            assert_eq!((record.generation, record.published_node()), (generation, Some(name)));
            let before = record.clone();
            let refused = record.publish(&node("c")).unwrap_err();
            assert!(matches!(refused, Error::PublishedElsewhere(found) if found.as_str() == name));
            record.unpublish(Some(&node("c")));
            assert_eq!(record, before);
            record.unpublish((generation == 1).then(|| node(name)).as_ref());
            assert_eq!(record.published_node(), None);
            let (key, value) = record.context("cluster");
            assert_eq!(key, "reservationKey");
            assert_eq!(value.parse::<ReservationKey>().unwrap(), ReservationKey::new("cluster", generation));
        }
        record.generation = u32::MAX;
        record.publish(&node("d")).unwrap_err();
    }
}
