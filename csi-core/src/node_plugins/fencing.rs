//! A single writer, proven by the storage ([`csi_mount::reservation`]): the record of the controller, and the part of
//! [`BlockNode`](super::BlockNode) that differs with and without the feature `remote`.

use std::path::Path;
#[cfg(feature = "remote")]
use std::time::SystemTime;

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

/// The entries of the publish context: the node's key, the node to which it was given, and the earlier generations that
/// this node had.
#[cfg(feature = "remote")]
const KEY: &str = "reservationKey";
#[cfg(feature = "remote")]
const NODE: &str = "reservationNode";
#[cfg(feature = "remote")]
const EARLIER: &str = "reservationEarlier";

/// How many earlier generations a record has.
#[cfg(feature = "remote")]
const MAX_EARLIER: usize = 16;

/// The node that a volume with one writer is published to, and the generation of that node's [`ReservationKey`]. It grows
/// each time that the volume is published after it was published nowhere, and is never one that a restored backup of the
/// record does not know: it is at least the time in seconds.
///
/// Give a node an id that another machine does not have after it, such as [`machine_node_id`]: a machine that is replaced
/// under the same name has a record, a generation and a key of its own then.
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
/// let first = record.context("3f2504e0-4f89-41d3-9a0c-0305e82c3301");
/// assert!(record.publish(&NodeId::new("b")?).is_err(), "it is published to a");
/// record.unpublish(None);
/// record.publish(&NodeId::new("b")?)?;
/// assert_ne!(record.context("3f2504e0-4f89-41d3-9a0c-0305e82c3301"), first);
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
    /// Earlier generations, and who had them; the last one is the newest.
    earlier: Vec<(u32, String)>,
}

#[cfg(feature = "remote")]
impl PublishRecord {
    /// Publishes the volume to this node. A repeated call changes nothing. A volume that comes back to the same node has
    /// a new generation: another machine can have the name now, and the one before can still write.
    ///
    /// # Errors
    /// [`Error::PublishedElsewhere`] (FAILED_PRECONDITION) if it is published to another node.
    pub fn publish(&mut self, node: &NodeId) -> Result<()> {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
        // The clock says nothing from 2106 on; the generation still grows.
        self.publish_at(node, now.try_into().unwrap_or_default())
    }

    fn publish_at(&mut self, node: &NodeId, seconds: u32) -> Result<()> {
        if self.is_published {
            if self.node != node.as_str() {
                return Err(Error::PublishedElsewhere(NodeId::new(&self.node)?));
            }
            return Ok(());
        }
        let next = self.generation.checked_add(1);
        let next = next.ok_or_else(|| Error::Internal("no generation is left".into()))?.max(seconds);
        if !self.node.is_empty() {
            self.earlier.push((self.generation, std::mem::take(&mut self.node)));
            let spare = self.earlier.len().saturating_sub(MAX_EARLIER);
            self.earlier.drain(..spare);
        }
        self.generation = next;
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

    /// The entries of the publish context, by which the node registers. `cluster` is the same for all nodes of a cluster,
    /// and for no node of another one: see [`ReservationKey::new`].
    pub fn context(&self, cluster: &str) -> [(String, String); 3] {
        let own = self.earlier.iter().filter(|(_, node)| *node == self.node);
        let earlier: Vec<String> = own.map(|(generation, _)| generation.to_string()).collect();
        [
            (KEY.to_owned(), ReservationKey::new(cluster, self.generation).to_string()),
            (NODE.to_owned(), self.node.clone()),
            (EARLIER.to_owned(), earlier.join(",")),
        ]
    }
}

/// An id for this machine that no other machine has that gets its name later: the name, a slash, and the UUID of its
/// hardware or, where the firmware gives none, the one of /etc/machine-id. In a pod, that file is the node's only if it is
/// mounted.
///
/// The orchestrator must know the node by this id: it is that of NodeGetInfo.
///
/// # Errors
/// [`Error::Internal`] if the machine has neither. [`Error::InvalidArgument`] if the id is longer than 256 bytes.
#[cfg(feature = "remote")]
pub fn machine_node_id(name: &str) -> Result<NodeId> {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let machine = machine_uuid(&read("/sys/class/dmi/id/product_uuid"), &read("/etc/machine-id"));
    let missing = "this machine has no UUID: neither its firmware has one, nor /etc/machine-id; mount the node's into the pod";
    NodeId::new(format!("{name}/{}", machine.ok_or_else(|| Error::Internal(missing.into()))?))
}

#[cfg(feature = "remote")]
fn machine_uuid(firmware: &str, machine_id: &str) -> Option<String> {
    let is_plausible = |text: &str| {
        let digits = || text.bytes().filter(u8::is_ascii_hexdigit);
        // Some firmware has only zeros, only ones, or a number that counts.
        let known = "03000200-0400-0500-0006-000700080009";
        digits().count() == 32 && digits().any(|digit| Some(digit) != digits().next()) && text != known
    };
    let texts = [firmware, machine_id].map(|text| text.trim().to_ascii_lowercase());
    texts.into_iter().find(|text| is_plausible(text))
}

/// The reservation of a volume's device.
pub(super) enum Reservation {
    /// The driver or the access mode asks for none.
    Off,
    /// There is to be one, but the controller gave no key.
    #[cfg(feature = "remote")]
    WithoutKey,
    #[cfg(feature = "remote")]
    With(csi_mount::reservation::Reservation, ReservationKey),
}

#[cfg(feature = "remote")]
impl Reservation {
    /// For a stage: one that is required needs a key.
    pub(super) async fn for_stage(devices: &impl BlockDevices, volume: &Attachment) -> Result<Self> {
        let found = Self::of(devices, volume)?;
        if matches!(found, Self::WithoutKey) && devices.fencing() == Fencing::Required {
            volume.publish_context.require(KEY)?;
        }
        if let (Self::With(..), Some(node)) = (&found, volume.publish_context.get(NODE)) {
            let own = devices.info().await?.node_id;
            if node != own.as_str() {
                let reason = format!(
                    "the volume is published to node {node}, and this one is {own}: detach it and attach it again"
                );
                return Err(Error::NotPossible(reason.into()));
            }
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
        let reservation = csi_mount::reservation::Reservation::new(key, fencing);
        let Some(earlier) = volume.publish_context.get(EARLIER) else {
            return Ok(Self::With(reservation, key));
        };
        let generations = earlier.split(',').filter(|text| !text.is_empty()).map(str::parse);
        let generations = generations.collect::<Result<Vec<u32>, _>>().map_err(|_| {
            Error::invalid(format!("publish_context[{EARLIER}]"), "is not a list of generations")
        })?;
        Ok(Self::With(reservation.earlier(generations), key))
    }

    /// The plan of a volume's stage, with the reservation.
    pub(super) fn plan(&self, plan: StagePlan) -> StagePlan {
        match self {
            Self::Off => plan,
            Self::WithoutKey => {
                log_without_key();
                plan
            }
            Self::With(reservation, _) => plan.reserve(reservation.clone()),
        }
    }

    /// Reserves the device of a raw volume.
    pub(super) fn reserve(&self, host: &Host, device: &Path) -> Result<()> {
        match self {
            Self::Off => {}
            Self::WithoutKey => log_without_key(),
            Self::With(reservation, _) => host.block().reserve(device, reservation)?,
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
            Self::With(_, key) => *key,
        };
        Ok(Some(match host.block().write_right(device, key)? {
            WriteRight::Lost(generation) => VolumeHealthEntry::new(
                VolumeHealthStatus::Inaccessible,
                "Fenced",
                format!(
                    "another machine has the volume with generation {generation}, this node has {}: unstage it",
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

#[cfg(not(feature = "remote"))]
#[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "with the feature they do something")]
impl Reservation {
    pub(super) async fn for_stage(_: &impl BlockDevices, _: &Attachment) -> Result<Self> {
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

#[cfg(all(test, feature = "remote"))]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn context(record: &PublishRecord) -> (u32, String, String) {
        let [(key, value), (_, node), (_, earlier)] = record.context("cluster");
        assert_eq!(key, "reservationKey");
        (value.parse::<ReservationKey>().unwrap().generation(), node, earlier)
    }

    #[test]
    fn the_generation_grows_with_each_publish_after_an_unpublish() {
        let mut record = PublishRecord::default();
        let steps = [("a", 1, ""), ("a", 2, "1"), ("b", 3, ""), ("b", 4, "3"), ("a", 5, "1,2")];
        for (name, generation, earlier) in steps {
            record.publish_at(&node(name), 0).unwrap();
            record.publish_at(&node(name), 100).unwrap();
            assert_eq!((record.generation, record.published_node()), (generation, Some(name)));
            let before = record.clone();
            let refused = record.publish(&node("c")).unwrap_err();
            assert!(matches!(refused, Error::PublishedElsewhere(found) if found.as_str() == name));
            record.unpublish(Some(&node("c")));
            assert_eq!(record, before);
            record.unpublish((generation == 1).then(|| node(name)).as_ref());
            assert_eq!(record.published_node(), None);
            assert_eq!(context(&record), (generation, name.to_owned(), earlier.to_owned()));
        }
        record.generation = u32::MAX;
        record.publish(&node("d")).unwrap_err();
    }

    #[test]
    fn a_record_from_a_backup_gives_no_generation_again() {
        let mut record = PublishRecord::default();
        record.publish_at(&node("a"), 1000).unwrap();
        record.unpublish(None);
        let mut backup = record.clone();
        record.publish_at(&node("b"), 1010).unwrap();
        backup.publish_at(&node("c"), 1020).unwrap();
        assert_eq!([record.generation, backup.generation], [1010, 1020]);
        // A clock that goes back.
        backup.unpublish(None);
        backup.publish_at(&node("d"), 7).unwrap();
        assert_eq!(backup.generation, 1021);
    }

    #[test]
    fn a_record_of_an_earlier_version_is_read_and_one_stays_small() {
        let text = r#"{"node":"a","is_published":false,"generation":7}"#;
        let mut record: PublishRecord = serde_json::from_str(text).unwrap();
        for _ in 0..2 * MAX_EARLIER {
            record.publish_at(&node("a"), 0).unwrap();
            record.unpublish(None);
        }
        assert_eq!(record.earlier.len(), MAX_EARLIER);
        assert_eq!(record.earlier.last().unwrap().0 + 1, record.generation);
    }

    #[test]
    fn a_machine_is_known_by_a_number_that_it_alone_has() {
        let own = "4c4c4544-0043-3510-8052-b4c04f4a4e32";
        let file = "0123456789abcdef0123456789abcdee";
        for (firmware, expected) in [
            (own, own),
            ("4C4C4544-0043-3510-8052-B4C04F4A4E32\n", own),
            ("", file),
            ("Not Settable", file),
            ("00000000-0000-0000-0000-000000000000", file),
            ("FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", file),
            ("03000200-0400-0500-0006-000700080009", file),
        ] {
            assert_eq!(machine_uuid(firmware, &format!("{file}\n")).as_deref(), Some(expected), "{firmware}");
        }
        assert_eq!(machine_uuid("", "uninitialized\n"), None);
    }
}
