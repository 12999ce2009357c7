//! Where to create a volume: the driver's places compared with the caller's topology requirement.

use crate::error::{Error, Result};
use crate::types::{Topology, TopologyRequirement};

/// A place for volumes: a pool, a zone, a node.
///
/// ```
/// use csi_core::types::{Place, Topology, TopologyRequirement};
///
/// let zone = |name| Topology::new("example.org/zone", name);
/// let pools = [
///     Place::new(zone("z1"), "pool-a").available_bytes(1 << 40),
///     Place::new(zone("z2"), "pool-b").available_bytes(1 << 20),
///     Place::new(zone("z3"), "pool-c"),
/// ];
/// let required = TopologyRequirement::new([zone("z1"), zone("z2"), zone("z3")], [zone("z3")]);
/// let found = Place::candidates(&pools, Some(&required), 1 << 30)?;
/// let pools: Vec<_> = found.into_iter().map(|place| place.value).collect();
/// assert_eq!(pools, ["pool-c", "pool-a"], "preferred first; pool-b is too small");
/// # Ok::<(), csi_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place<T> {
    /// From where a volume at this place can be used. Empty means from everywhere.
    pub topology: Topology,
    /// The free capacity in bytes, if the driver knows it.
    pub available_bytes: Option<u64>,
    /// The driver's value for this place.
    pub value: T,
}

impl<T> Place<T> {
    /// Creates a place with unlimited capacity.
    pub fn new(topology: Topology, value: T) -> Self {
        Self { topology, available_bytes: None, value }
    }

    /// Sets the free capacity of the place.
    #[must_use]
    pub fn available_bytes(mut self, bytes: u64) -> Self {
        self.available_bytes = Some(bytes);
        self
    }

    /// Returns the places where a volume of `bytes` can be created, the best first: the preferred places in
    /// the caller's order, then the other allowed places in the caller's order. Places of equal rank keep
    /// the order of `places`, so sort `places` by the driver's own preference. Take the first, or try one
    /// after another.
    ///
    /// Without a requirement, or with preferences only, every place is allowed. Spec:
    /// "TopologyRequirement".
    ///
    /// - spec: `create-volume.topology-met`, `create-volume.topology-preferred`
    ///
    /// # Errors
    /// [`Error::TopologyUnsatisfied`] when no place satisfies the requirement; [`Error::LimitReached`] when
    /// the places that do have too little capacity. Both are RESOURCE_EXHAUSTED, after which the caller can
    /// choose another node. [`Error::Internal`] when Kubernetes can't carry the topology of a place: nothing is
    /// created yet.
    pub fn candidates<'a>(
        places: &'a [Self],
        requirement: Option<&TopologyRequirement>,
        bytes: u64,
    ) -> Result<Vec<&'a Self>> {
        if let Some(fault) = places.iter().find_map(|place| place.topology.well_formed().err()) {
            return Err(Error::Internal(format!("a place of this driver: {fault}").into()));
        }
        let allowed = match requirement {
            None => places.iter().collect(),
            Some(requirement) => in_order(places, requirement),
        };
        if allowed.is_empty() {
            return Err(Error::TopologyUnsatisfied(format!(
                "accessibility_requirements: none of the driver's {} places is usable from where the volume has to be",
                places.len()
            ).into()));
        }
        let room = |place: &&Self| place.available_bytes.is_none_or(|room| room >= bytes);
        let most = allowed.iter().filter_map(|place| place.available_bytes).max().unwrap_or_default();
        let fitting: Vec<_> = allowed.into_iter().filter(room).collect();
        if fitting.is_empty() {
            return Err(Error::LimitReached(format!(
                "the volume needs {bytes} bytes, and no place that its topology allows has more than {most} bytes left"
            ).into()));
        }
        Ok(fitting)
    }
}

fn in_order<'a, T>(places: &'a [Place<T>], requirement: &TopologyRequirement) -> Vec<&'a Place<T>> {
    let everywhere = [Topology::default()];
    let allowed = if requirement.requisite.is_empty() { &everywhere[..] } else { &requirement.requisite };
    let mut taken = vec![false; places.len()];
    let mut ordered = Vec::with_capacity(places.len());
    for wanted in requirement.preferred.iter().chain(allowed) {
        for (place, taken) in places.iter().zip(&mut taken) {
            if !*taken && usable_from(&place.topology, wanted) {
                *taken = true;
                ordered.push(place);
            }
        }
    }
    ordered
}

/// Whether a volume at `place` can be used from `wanted`, or from a part of it: no common key has different
/// values, and at least one key is common unless one of the two is empty (everywhere).
pub(crate) fn usable_from(place: &Topology, wanted: &Topology) -> bool {
    let mut common =
        place.iter().filter_map(|(key, value)| wanted.get(key).map(|wanted| wanted == value)).peekable();
    let speak_of_the_same = common.peek().is_some();
    let everywhere = place.iter().next().is_none() || wanted.iter().next().is_none();
    (speak_of_the_same || everywhere) && common.all(|equal| equal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn zone(zone: u8) -> Topology {
        Topology::new("region", "r1").and("zone", format!("z{zone}"))
    }

    fn names<'a>(found: &[&Place<&'a str>]) -> Vec<&'a str> {
        found.iter().map(|place| place.value).collect()
    }

    // spec: create-volume.topology-met
    #[test]
    fn a_region_serves_its_zones_and_no_other_region() {
        let places = [
            Place::new(Topology::new("region", "r2"), "far"),
            Place::new(Topology::new("region", "r1"), "near"),
            Place::new(zone(2).and("rack", "7"), "rack"),
            Place::new(Topology::new("host", "h1"), "unrelated"),
            Place::new(Topology::default(), "everywhere"),
        ];
        let required = TopologyRequirement { requisite: vec![zone(2)], preferred: vec![] };
        let found = Place::candidates(&places, Some(&required), 0).unwrap();
        assert_eq!(names(&found), ["near", "rack", "everywhere"]);
    }

    #[test]
    fn preferences_alone_exclude_nobody() {
        let places = [Place::new(zone(1), "one"), Place::new(zone(2), "two"), Place::new(zone(3), "three")];
        let required = TopologyRequirement { requisite: vec![], preferred: vec![zone(3), zone(2)] };
        assert_eq!(names(&Place::candidates(&places, Some(&required), 0).unwrap()), ["three", "two", "one"]);
        assert_eq!(names(&Place::candidates(&places, None, 0).unwrap()), ["one", "two", "three"]);
    }

    // spec: create-volume.topology-unmet
    #[test]
    fn a_wrong_place_and_a_full_one_have_different_errors() {
        let places = [Place::new(zone(1), ()).available_bytes(9)];
        let required = |at| TopologyRequirement { requisite: vec![zone(at)], preferred: vec![] };
        assert!(matches!(
            Place::candidates(&places, Some(&required(2)), 0),
            Err(Error::TopologyUnsatisfied(_))
        ));
        assert!(matches!(Place::candidates(&places, Some(&required(1)), 10), Err(Error::LimitReached(_))));
        assert!(Place::candidates(&places, Some(&required(1)), 9).is_ok());
        assert!(matches!(Place::<()>::candidates(&[], None, 0), Err(Error::TopologyUnsatisfied(_))));
    }

    // spec: topology.values
    #[test]
    fn a_place_that_kubernetes_can_not_carry_is_refused_before_anything_is_created() {
        let places = [Place::new(zone(1), ()), Place::new(Topology::new("zone", "a b"), ())];
        let refused = Place::candidates(&places, None, 0).unwrap_err();
        assert!(refused.to_string().contains("value \"a b\" of key zone"), "{refused}");
    }

    proptest! {
        // spec: create-volume.topology-preferred
        #[test]
        fn the_best_preference_that_has_a_place_is_first(
            zones in prop::collection::vec(0_u8..6, 0..8),
            requisite in prop::collection::vec(0_u8..6, 1..6),
            preferred in prop::sample::subsequence((0_u8..6).collect::<Vec<_>>(), 0..6),
        ) {
            let preferred: Vec<u8> = preferred.into_iter().filter(|zone| requisite.contains(zone)).collect();
            let places: Vec<_> = zones.iter().map(|at| Place::new(zone(*at), *at)).collect();
            let required = TopologyRequirement {
                requisite: requisite.iter().copied().map(zone).collect(),
                preferred: preferred.iter().copied().map(zone).collect(),
            };
            let due = preferred.iter().chain(&requisite).find(|at| zones.contains(at));
            match Place::candidates(&places, Some(&required), 0) {
                Ok(found) => {
                    prop_assert_eq!(Some(&found[0].value), due);
                    prop_assert!(found.iter().all(|place| requisite.contains(&place.value)));
                    prop_assert_eq!(found.len(), zones.iter().filter(|at| requisite.contains(at)).count());
                }
                Err(_) => prop_assert_eq!(due, None),
            }
        }
    }
}
