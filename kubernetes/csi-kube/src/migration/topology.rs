//! Zones and regions of a persistent volume: Kubernetes' own labels on one side, the driver's keys on the other.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, TopologySelectorTerm,
};

use crate::error::{Error, Result};

pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
pub(super) const REGION: &str = "topology.kubernetes.io/region";
/// The labels' names before Kubernetes 1.17. Volumes of that age have them for ever.
pub(super) const OLD_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const OLD_REGION: &str = "failure-domain.beta.kubernetes.io/region";

/// What separates the zones of a volume in several zones, in a label.
pub(super) const SEPARATOR: &str = "__";

/// Finds the region of zones by their names.
pub(super) type RegionOf = fn(&[String]) -> Result<String>;

fn terms(volume: &mut PersistentVolume) -> &mut [NodeSelectorTerm] {
    let spec = volume.spec.as_mut();
    let required = spec.and_then(|spec| spec.node_affinity.as_mut()?.required.as_mut());
    required.map_or(&mut [], |required| &mut required.node_selector_terms)
}

fn requirements(volume: &PersistentVolume) -> impl Iterator<Item = &NodeSelectorRequirement> {
    let required = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    let terms = required.into_iter().flat_map(|required| &required.node_selector_terms);
    terms.flat_map(|term| term.match_expressions.iter().flatten())
}

fn values(volume: &PersistentVolume, key: &str) -> Vec<String> {
    let found = requirements(volume).filter(|requirement| requirement.key == key);
    let values: BTreeSet<&String> =
        found.flat_map(|requirement| requirement.values.iter().flatten()).collect();
    values.into_iter().cloned().collect()
}

pub(super) fn label<'v>(volume: &'v PersistentVolume, key: &str) -> Option<&'v str> {
    volume.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn add_label(volume: &mut PersistentVolume, key: &str, value: String) {
    volume.metadata.labels.get_or_insert_default().entry(key.to_owned()).or_insert(value);
}

fn rename(volume: &mut PersistentVolume, from: &str, to: &str) {
    for term in terms(volume) {
        for requirement in term.match_expressions.iter_mut().flatten() {
            if requirement.key == from {
                to.clone_into(&mut requirement.key);
            }
        }
    }
}

/// The names that this volume uses for its zone and region.
fn names(volume: &PersistentVolume) -> (&'static str, &'static str) {
    let has_affinity = |key: &str| requirements(volume).any(|requirement| requirement.key == key);
    if has_affinity(ZONE) {
        (ZONE, REGION)
    } else if has_affinity(OLD_ZONE) || label(volume, ZONE).is_none() && label(volume, OLD_ZONE).is_some() {
        (OLD_ZONE, OLD_REGION)
    } else {
        (ZONE, REGION)
    }
}

/// Adds a requirement to each term. Blank values are left out; without any other nothing is added.
fn add(volume: &mut PersistentVolume, key: &str, values: impl IntoIterator<Item = String>) {
    let values: BTreeSet<String> = values.into_iter().map(|value| value.trim().to_owned()).collect();
    let values: Vec<String> = values.into_iter().filter(|value| !value.is_empty()).collect();
    if values.is_empty() {
        return;
    }
    let affinity = volume.spec.get_or_insert_default().node_affinity.get_or_insert_default();
    let terms = &mut affinity.required.get_or_insert_default().node_selector_terms;
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    for term in terms {
        term.match_expressions.get_or_insert_default().push(requirement(key, values.clone()));
    }
}

fn requirement(key: &str, values: Vec<String>) -> NodeSelectorRequirement {
    NodeSelectorRequirement { key: key.to_owned(), operator: "In".to_owned(), values: Some(values) }
}

/// From Kubernetes' labels to the driver's zone.
pub(super) fn zone_to_csi(volume: &mut PersistentVolume, key: &str) {
    let (zone, region) = names(volume);
    if values(volume, zone).is_empty() {
        let zones = label(volume, zone).unwrap_or_default();
        let zones: Vec<String> = zones.split(SEPARATOR).map(str::to_owned).collect();
        add(volume, key, zones);
    } else {
        rename(volume, zone, key);
    }
    // Nodes no longer have the old label.
    if region == OLD_REGION {
        rename(volume, OLD_REGION, REGION);
    }
}

/// From Kubernetes' labels to the driver's zone and region, each by itself: a label is one value here.
pub(super) fn zone_and_region_to_csi(volume: &mut PersistentVolume, zone_key: &str, region_key: &str) {
    let (zone, region) = names(volume);
    for (name, key) in [(zone, zone_key), (region, region_key)] {
        if values(volume, name).is_empty() {
            let value = label(volume, name).map(str::to_owned);
            add(volume, key, value);
        } else {
            rename(volume, name, key);
        }
    }
}

/// From the driver's zone to Kubernetes' labels.
pub(super) fn zone_to_in_tree(
    volume: &mut PersistentVolume,
    key: &str,
    region_of: Option<RegionOf>,
) -> Result<()> {
    let zone = names(volume).0;
    rename(volume, key, zone);
    if let Some(region_of) = region_of {
        add_region(volume, region_of)?;
    }
    let zones = values(volume, zone);
    if !zones.is_empty() {
        add_label(volume, zone, zones.join(SEPARATOR));
    }
    Ok(())
}

fn add_region(volume: &mut PersistentVolume, region_of: RegionOf) -> Result<()> {
    let (zone, region) = names(volume);
    for term in terms(volume) {
        let found = || term.match_expressions.iter().flatten();
        if found().any(|requirement| requirement.key == region) {
            continue;
        }
        let zones = found().filter(|requirement| requirement.key == zone);
        let zones: Vec<String> = zones.flat_map(|requirement| requirement.values.clone()).flatten().collect();
        let value = region_of(&zones)?;
        term.match_expressions.get_or_insert_default().push(requirement(region, vec![value]));
    }
    if let [one] = values(volume, region).as_slice() {
        add_label(volume, region, one.clone());
    }
    Ok(())
}

/// From the driver's zone and region to Kubernetes' labels.
pub(super) fn zone_and_region_to_in_tree(volume: &mut PersistentVolume, zone_key: &str, region_key: &str) {
    let (zone, region) = names(volume);
    rename(volume, zone_key, zone);
    rename(volume, region_key, region);
    for name in [zone, region] {
        if let Some(first) = values(volume, name).into_iter().next() {
            add_label(volume, name, first);
        }
    }
}

/// The allowed topologies of a class with the driver's key for the zone.
pub(super) fn allowed(terms: &[TopologySelectorTerm], key: &str) -> Vec<TopologySelectorTerm> {
    let mut terms = terms.to_vec();
    for requirement in terms.iter_mut().flat_map(|term| term.match_label_expressions.iter_mut().flatten()) {
        if [ZONE, OLD_ZONE].contains(&requirement.key.as_str()) {
            key.clone_into(&mut requirement.key);
        }
    }
    terms
}

pub(super) fn one_region<'z>(
    zones: &'z [String],
    region_of: impl Fn(&'z str) -> Option<String>,
) -> Result<String> {
    let mut regions = BTreeSet::new();
    for zone in zones {
        let region = region_of(zone);
        regions.insert(region.ok_or_else(|| {
            Error::invalid(format!("zone {zone}"), "its name does not have the form of a zone's name")
        })?);
    }
    let mut found = regions.into_iter();
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        _ => Err(Error::invalid(format!("zones {zones:?}"), "they have to be in one region")),
    }
}
