//! Counts how many volumes each node has, against a limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::types::{NodeId, VolumeId};

/// Counts the volumes that are attached or being attached to each node, against the nodes' limits.
///
/// The count is in memory: [`rebuild`](Self::rebuild) it from the storage system at start-up and whenever
/// the two might differ. Clones share one count.
///
/// ```
/// use csi_core::controller::AttachLimit;
/// use csi_core::types::NodeId;
/// use csi_core::{Error, VolumeId};
///
/// let limit = AttachLimit::new(1);
/// let (node, volume) = (NodeId::new("node-1")?, VolumeId::new("vol-1")?);
///
/// let place = limit.reserve(&node, &volume)?;
/// // … attach it; when that fails, `?` drops the reservation …
/// place.keep();
///
/// let another = limit.reserve(&node, &VolumeId::new("vol-2")?);
/// assert!(matches!(another, Err(Error::LimitReached(_))));
/// assert!(limit.reserve(&node, &volume).is_ok(), "it is there already");
/// limit.release(&node, &volume);
/// # Ok::<(), csi_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct AttachLimit {
    nodes: Arc<Mutex<Nodes>>,
}

#[derive(Debug)]
struct Nodes {
    default_limit: u64,
    limits: HashMap<NodeId, u64>,
    attached: HashMap<NodeId, HashMap<VolumeId, Place>>,
}

/// The state of a volume on a node. A volume that is neither attached nor reserved is not in the table.
#[derive(Debug, Default)]
struct Place {
    attached: bool,
    reservations: usize,
}

impl AttachLimit {
    /// Creates a count with a limit of `most` volumes per node: the number that the nodes report by
    /// [`NodeInfo::max_volumes`](crate::NodeInfo::max_volumes). As there, 0 means that there is no limit.
    pub fn new(most: u64) -> Self {
        let nodes = Nodes { default_limit: most, limits: HashMap::new(), attached: HashMap::new() };
        Self { nodes: Arc::new(Mutex::new(nodes)) }
    }

    /// Sets another limit for one node; 0 means that it has none. Volumes that are already attached beyond it stay attached.
    pub fn set_node_limit(&self, node_id: NodeId, most: u64) {
        self.nodes().limits.insert(node_id, most);
    }

    /// Replaces the set of attached volumes. Reservations stay.
    pub fn rebuild(&self, attached: impl IntoIterator<Item = (NodeId, VolumeId)>) {
        let mut nodes = self.nodes();
        nodes.attached.values_mut().flat_map(HashMap::values_mut).for_each(|place| place.attached = false);
        for (node_id, volume_id) in attached {
            nodes.attached.entry(node_id).or_default().entry(volume_id).or_default().attached = true;
        }
        nodes.attached.retain(|_, volumes| {
            volumes.retain(|_, place| place.attached || place.reservations > 0);
            !volumes.is_empty()
        });
    }

    /// Reserves a slot on the node for this volume, until the reservation is dropped or
    /// [kept](Reservation::keep). A volume that is already attached there, or being attached, takes no
    /// second slot.
    ///
    /// - spec: `controller-publish-volume.limit`
    ///
    /// # Errors
    /// [`Error::LimitReached`] (RESOURCE_EXHAUSTED) when the node is full.
    pub fn reserve(&self, node_id: &NodeId, volume_id: &VolumeId) -> Result<Reservation> {
        let mut nodes = self.nodes();
        let most = *nodes.limits.get(node_id).unwrap_or(&nodes.default_limit);
        let taken = nodes.attached.get(node_id);
        let count = count_of(taken);
        if most > 0 && count >= most && !taken.is_some_and(|volumes| volumes.contains_key(volume_id)) {
            return Err(Error::LimitReached(
                format!("node {node_id} has {count} volumes, and takes {most}").into(),
            ));
        }
        let volumes = nodes.attached.entry(node_id.clone()).or_default();
        volumes.entry(volume_id.clone()).or_default().reservations += 1;
        let node_id = node_id.clone();
        let volume_id = volume_id.clone();
        Ok(Reservation { limit: self.clone(), node_id, volume_id })
    }

    /// Frees the slot of a volume that is detached. If the volume is not known to be attached there,
    /// nothing changes.
    pub fn release(&self, node_id: &NodeId, volume_id: &VolumeId) {
        self.nodes().change(node_id, volume_id, |place| place.attached = false);
    }

    /// The number of taken slots on the node, including reservations.
    #[cfg(test)]
    fn taken(&self, node_id: &NodeId) -> u64 {
        count_of(self.nodes().attached.get(node_id))
    }

    /// Each statement leaves the table consistent, so a panic elsewhere does not damage it and the poison
    /// is ignored.
    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count_of(volumes: Option<&HashMap<VolumeId, Place>>) -> u64 {
    volumes.map_or(0, |volumes| volumes.len() as u64)
}

impl Nodes {
    /// Changes an entry, and removes it if it is empty afterwards.
    fn change(&mut self, node_id: &NodeId, volume_id: &VolumeId, change: impl FnOnce(&mut Place)) {
        let Some(volumes) = self.attached.get_mut(node_id) else { return };
        let Some(place) = volumes.get_mut(volume_id) else { return };
        change(place);
        if !place.attached && place.reservations == 0 {
            volumes.remove(volume_id);
        }
        if volumes.is_empty() {
            self.attached.remove(node_id);
        }
    }
}

/// A slot on a node, held while a volume is being attached. Dropping it frees the slot, unless the volume
/// is attached there or has another reservation.
#[derive(Debug)]
#[must_use = "dropping it gives the place back"]
pub struct Reservation {
    limit: AttachLimit,
    node_id: NodeId,
    volume_id: VolumeId,
}

impl Reservation {
    /// Marks the volume as attached: it keeps its slot until it is [released](AttachLimit::release).
    pub fn keep(self) {
        self.limit.nodes().change(&self.node_id, &self.volume_id, |place| place.attached = true);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.limit.nodes().change(&self.node_id, &self.volume_id, |place| place.reservations -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn node(at: usize) -> NodeId {
        NodeId::new(format!("node-{at}")).unwrap()
    }

    fn volume(at: usize) -> VolumeId {
        VolumeId::new(format!("vol-{at}")).unwrap()
    }

    // spec: controller-publish-volume.limit
    #[test]
    fn one_node_can_take_more_than_the_others() {
        let limit = AttachLimit::new(1);
        limit.set_node_limit(node(1), 2);
        for (at, most) in [(0, 1), (1, 2)] {
            (0..most).for_each(|number| limit.reserve(&node(at), &volume(number)).unwrap().keep());
            let error = limit.reserve(&node(at), &volume(most)).unwrap_err();
            assert_eq!(error.to_string(), format!("node node-{at} has {most} volumes, and takes {most}"));
        }
    }

    /// NodeGetInfo reports 0 where the orchestrator decides: the controller must not refuse what it then sends.
    #[test]
    fn zero_is_no_limit_as_in_the_nodes_answer() {
        let limit = AttachLimit::new(0);
        limit.set_node_limit(node(1), 1);
        (0..99).for_each(|number| limit.reserve(&node(0), &volume(number)).unwrap().keep());
        assert_eq!(limit.taken(&node(0)), 99);
        limit.reserve(&node(1), &volume(0)).unwrap().keep();
        assert!(limit.reserve(&node(1), &volume(1)).is_err());
        limit.set_node_limit(node(1), 0);
        limit.reserve(&node(1), &volume(1)).unwrap().keep();
    }

    #[test]
    fn a_rebuild_leaves_what_is_under_way_alone() {
        let limit = AttachLimit::new(2);
        limit.reserve(&node(0), &volume(0)).unwrap().keep();
        let under_way = limit.reserve(&node(0), &volume(1)).unwrap();
        limit.rebuild([(node(1), volume(5))]);
        assert_eq!((limit.taken(&node(0)), limit.taken(&node(1))), (1, 1));
        under_way.keep();
        assert_eq!(limit.taken(&node(0)), 1);
    }

    // spec: controller-publish-volume.limit
    #[test]
    fn threads_never_take_more_than_there_is() {
        let limit = AttachLimit::new(3);
        let most = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let limit = limit.clone();
                let most = &most;
                scope.spawn(move || {
                    for round in 0..2_000 {
                        let volume = volume(thread * 2 + round % 2);
                        let Ok(place) = limit.reserve(&node(0), &volume) else { continue };
                        most.fetch_max(limit.taken(&node(0)), Ordering::Relaxed);
                        if round % 3 == 0 {
                            place.keep();
                            limit.release(&node(0), &volume);
                        }
                    }
                });
            }
        });
        assert!((1..=3).contains(&most.into_inner()));
        assert_eq!(limit.taken(&node(0)), 0);
        assert!(limit.nodes().attached.is_empty());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Attach(usize),
        Fail(usize),
        Detach(usize),
    }

    proptest! {
        #[test]
        fn it_counts_as_a_set_would(steps in prop::collection::vec(
            prop_oneof![(0_usize..6).prop_map(Step::Attach), (0_usize..6).prop_map(Step::Fail), (0_usize..6).prop_map(Step::Detach)],
            0..60,
        )) {
            let limit = AttachLimit::new(3);
            let mut model: BTreeMap<usize, ()> = BTreeMap::new();
            for step in steps {
                let fits = |at: usize| model.len() < 3 || model.contains_key(&at);
                match step {
                    Step::Attach(at) => {
                        let place = limit.reserve(&node(0), &volume(at));
                        prop_assert_eq!(place.is_ok(), fits(at));
                        if let Ok(place) = place {
                            place.keep();
                            model.insert(at, ());
                        }
                    }
                    Step::Fail(at) => prop_assert_eq!(limit.reserve(&node(0), &volume(at)).map(drop).is_ok(), fits(at)),
                    Step::Detach(at) => {
                        limit.release(&node(0), &volume(at));
                        model.remove(&at);
                    }
                }
                prop_assert_eq!(limit.taken(&node(0)), model.len() as u64);
            }
        }
    }
}
