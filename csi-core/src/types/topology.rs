//! Where volumes and nodes are.

use std::collections::BTreeMap;

use csi_proto::v1;

use crate::{Error, Result};

/// A place: topology keys and their values, all of which hold (`region=R1, zone=Z2`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Topology(BTreeMap<String, String>);

impl Topology {
    /// The place where this key has this value. Keys are `[prefix/]name`.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self(BTreeMap::from([(key.into(), value.into())]))
    }

    /// The same place, narrowed by another key.
    #[must_use]
    pub fn and(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.insert(key.into(), value.into());
        self
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// The keys and values, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    pub(crate) fn read(field: &str, wire: &v1::Topology) -> Result<Self> {
        let topology = Self(wire.segments.clone());
        topology.check().map_err(|reason| Error::invalid(format!("{field}.segments"), reason))?;
        Ok(topology)
    }

    /// The spec's rules for keys and values: parts of at most 63, keys unique without regard to case.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut seen = std::collections::BTreeSet::new();
        for (key, value) in &self.0 {
            let parts = key.split('/').count();
            if parts > 2 || key.split('/').any(|part| !is_label(part, "-_.")) {
                return Err(format!(
                    "key {key:?} is not [prefix/]name with parts of 1 to 63 of A-Z a-z 0-9 - _ ."
                ));
            }
            if !is_label(value, "-_.") {
                return Err(format!("value {value:?} of key {key} is not 1 to 63 of A-Z a-z 0-9 - _ ."));
            }
            if !seen.insert(key.to_lowercase()) {
                return Err(format!("key {key} is there twice but for case"));
            }
        }
        Ok(())
    }
}

/// 1 to 63 letters, digits and `between`, alphanumeric at both ends.
fn is_label(text: &str, between: &str) -> bool {
    let alphanumeric = |character: Option<char>| character.is_some_and(|c| c.is_ascii_alphanumeric());
    (1..=63).contains(&text.len())
        && alphanumeric(text.chars().next())
        && alphanumeric(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || between.contains(c))
}

impl From<Topology> for v1::Topology {
    fn from(topology: Topology) -> Self {
        Self { segments: topology.0 }
    }
}

/// Where a volume has to be usable from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopologyRequirement {
    /// The volume must be usable from at least one of these; empty is no constraint.
    pub requisite: Vec<Topology>,
    /// In this order of preference.
    pub preferred: Vec<Topology>,
}

impl TopologyRequirement {
    pub(crate) fn read(field: &str, wire: &v1::TopologyRequirement) -> Result<Self> {
        let list = |name: &str, wire: &[v1::Topology]| {
            wire.iter()
                .enumerate()
                .map(|(at, topology)| Topology::read(&format!("{field}.{name}[{at}]"), topology))
                .collect::<Result<Vec<_>>>()
        };
        let this = Self {
            requisite: list("requisite", &wire.requisite)?,
            preferred: list("preferred", &wire.preferred)?,
        };
        if this.requisite.is_empty() && this.preferred.is_empty() {
            return Err(Error::invalid(field, "must have requisite or preferred when it is given"));
        }
        let stray = this.preferred.iter().position(|one| !this.requisite.contains(one));
        match stray {
            Some(at) if !this.requisite.is_empty() => {
                Err(Error::invalid(format!("{field}.preferred[{at}]"), "is not one of requisite"))
            }
            _ => Ok(this),
        }
    }
}
