//! Where a volume can be: the topologies that CreateVolume gets, and their order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use csi_proto::v1::{Topology, TopologyRequirement};
use k8s_openapi::api::core::v1::TopologySelectorTerm;

use super::{Failure, Then};
use crate::context::Context;
use crate::error::{Result, invalid};
use crate::objects::{CsiNode, Kind as _, Node};

/// Labels that a node, or a volume's place, must have all.
pub(crate) type Segment = BTreeMap<String, String>;

/// The topology keys that the driver registered on each node, and the node's labels.
pub(crate) struct Cluster<'a>(BTreeMap<&'a str, Site<'a>>);

struct Site<'a> {
    keys: BTreeSet<&'a str>,
    labels: Option<&'a Segment>,
}

impl<'a> Cluster<'a> {
    pub(crate) fn new(driver: &str, csi_nodes: &'a [Arc<CsiNode>], nodes: &'a [Arc<Node>]) -> Self {
        let labels: BTreeMap<&str, &Segment> =
            nodes.iter().map(|node| (node.name(), &node.metadata.labels)).collect();
        let site = |csi_node: &'a CsiNode| {
            let keys = csi_node.driver(driver).and_then(|driver| driver.topology_keys.as_ref());
            Site {
                keys: keys.into_iter().flatten().map(String::as_str).collect(),
                labels: labels.get(csi_node.name()).copied(),
            }
        };
        Self(csi_nodes.iter().map(|csi_node| (csi_node.name(), site(csi_node))).collect())
    }

    fn segment_of(&self, node: &str) -> Result<Segment, Failure> {
        let gone = |object: &str| {
            let kind = object.to_lowercase();
            let error = invalid!("failed to get selected {object} {node}: {kind} {node:?} not found");
            Failure { error, then: Then::Reschedule }
        };
        let site = self.0.get(node).ok_or_else(|| gone("CSINode"))?;
        let labels = site.labels.ok_or_else(|| gone("Node"))?;
        if site.keys.is_empty() {
            return Err(not_yet(format!("no topology key found for node {node}")));
        }
        let missing = || not_yet(format!("node {node} lacks a label of its topology keys {:?}", site.keys));
        segment(labels, &site.keys).ok_or_else(missing)
    }

    /// The place of each node, by its own keys.
    pub(crate) fn node_segments(&self) -> BTreeSet<Segment> {
        let sites = self.0.values().filter(|site| !site.keys.is_empty());
        sites.filter_map(|site| segment(site.labels?, &site.keys)).collect()
    }

    /// The places of all nodes on which the driver registered these keys, perhaps with further ones.
    fn segments(&self, keys: &BTreeSet<&str>) -> Vec<Segment> {
        let sites = self.0.values().filter(|site| site.keys.is_superset(keys));
        sites.filter_map(|site| segment(site.labels?, keys)).collect()
    }

    /// Nodes can have registered different keys: the places by each set of keys.
    fn all_segments(&self) -> Vec<Segment> {
        let keys: BTreeSet<_> =
            self.0.values().map(|site| &site.keys).filter(|keys| !keys.is_empty()).collect();
        keys.into_iter().flat_map(|keys| self.segments(keys)).collect()
    }
}

/// The argument of CreateVolume; `None` if the driver isn't to be limited. `allowed` is the class's, everything if empty,
/// and `node` what the scheduler chose for the claim of this name. `recorded` is what an earlier call got first: the same
/// again, or the first call's volume can be lost in another place.
///
/// # Errors
/// The node is gone, or a node or the class does not fit, or not yet.
pub(super) fn requirement(
    context: &Context,
    claim: &str,
    allowed: &[TopologySelectorTerm],
    node: Option<&str>,
    recorded: Option<&Segment>,
) -> Result<Option<TopologyRequirement>, Failure> {
    if !context.driver.has_topology {
        return Ok(None);
    }
    let csi_nodes = context.caches.csi_nodes.all();
    let nodes = context.caches.nodes.all();
    let cluster = Cluster::new(&context.driver.name, &csi_nodes, &nodes);
    let chosen = match (recorded, node) {
        (Some(recorded), _) if recorded.is_empty() => return Ok(None),
        (Some(recorded), _) => Some(recorded.clone()),
        (None, Some(node)) => Some(cluster.segment_of(node)?),
        (None, None) => None,
    };
    let mut terms = match &chosen {
        Some(chosen) if context.args.strict_topology && node.is_some() => {
            let terms = product(allowed);
            if !terms.is_empty() && !terms.iter().any(|term| contains(chosen, term)) {
                return Err(outside(node, chosen, "allowed topologies", &terms));
            }
            vec![chosen.clone()]
        }
        _ if !allowed.is_empty() => product(allowed),
        Some(chosen) if node.is_some() => cluster.segments(&chosen.keys().map(String::as_str).collect()),
        None if context.args.no_immediate_topology => return Ok(None),
        _ => cluster.all_segments(),
    };
    if terms.is_empty() && !allowed.is_empty() {
        return Ok(None);
    }
    terms.sort_by(|one, other| one.len().cmp(&other.len()).then_with(|| one.cmp(other)));
    terms.dedup();
    let first = match &chosen {
        Some(chosen) => {
            let same = terms.iter().position(|term| term == chosen);
            match same.or_else(|| terms.iter().position(|term| contains(chosen, term))) {
                Some(first) => first,
                // Its last node is gone, but the volume can exist.
                None if recorded.is_some() && allowed.is_empty() => {
                    terms.insert(0, chosen.clone());
                    0
                }
                None => return Err(outside(node, chosen, "requisite", &terms)),
            }
        }
        None if terms.is_empty() => return Err(not_yet("no available topology found")),
        None => spread(claim) as usize % terms.len(),
    };
    let topologies =
        |terms: &[Segment]| terms.iter().map(|term| Topology { segments: term.clone() }).collect();
    let requisite = topologies(&terms);
    terms.rotate_left(first);
    Ok(Some(TopologyRequirement { requisite, preferred: topologies(&terms) }))
}

fn not_yet(text: impl std::fmt::Display) -> Failure {
    invalid!("error generating accessibility requirements: {text}").into()
}

fn outside(node: Option<&str>, chosen: &Segment, place: &str, terms: &[Segment]) -> Failure {
    let node = node.unwrap_or_default();
    not_yet(format!("topology {chosen:?} from selected node {node:?} is not in {place}: {terms:?}"))
}

fn segment(labels: &Segment, keys: &BTreeSet<&str>) -> Option<Segment> {
    keys.iter().map(|key| Some(((*key).to_owned(), labels.get(*key)?.clone()))).collect()
}

/// Whether the place has all of the term's labels.
fn contains(place: &Segment, term: &Segment) -> bool {
    term.iter().all(|(key, value)| place.get(key) == Some(value))
}

/// A class's terms have several values for a key; segments have one.
fn product(terms: &[TopologySelectorTerm]) -> Vec<Segment> {
    let mut segments = Vec::new();
    for term in terms {
        let mut of_term = vec![Segment::new()];
        for requirement in term.match_label_expressions.iter().flatten() {
            let with = |segment: &Segment, value: &String| {
                let mut segment = segment.clone();
                segment.insert(requirement.key.clone(), value.clone());
                segment
            };
            let values = requirement.values.iter();
            of_term = values.flat_map(|value| of_term.iter().map(move |one| with(one, value))).collect();
        }
        segments.extend(of_term.into_iter().filter(|segment| !segment.is_empty()));
    }
    segments
}

/// Spreads claims over the topologies as Kubernetes does: claims of one StatefulSet, `<claim>-<set>-<index>`, start
/// at the same place, and each index one further.
fn spread(claim: &str) -> u32 {
    let indexed = claim.rsplit_once('-').and_then(|(rest, index)| Some((rest, index.parse::<u32>().ok()?)));
    let (hashed, index) = match indexed {
        Some((rest, index)) => (rest.rsplit_once('-').map_or(rest, |(_, set)| set), index),
        None => (claim, 0),
    };
    // FNV-1 of 32 bits.
    let hash =
        hashed.bytes().fold(2_166_136_261_u32, |hash, byte| hash.wrapping_mul(16_777_619) ^ u32::from(byte));
    hash.wrapping_add(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_one_of_kubernetes() {
        assert_eq!(spread(""), 0x811c_9dc5);
        // FNV-1's published test vectors of 32 bits.
        assert_eq!(spread("a"), 0x050c_5d7e);
        assert_eq!(spread("foobar"), 0x31f0_b262);
        assert_eq!(spread("x-foobar-7"), 0x31f0_b269);
        assert_eq!(spread("foobar-7"), 0x31f0_b269);
    }
}
