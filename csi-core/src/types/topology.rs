//! Topologies of volumes and nodes.

use std::collections::{BTreeMap, BTreeSet};

use csi_proto::v1;
use serde::{Deserialize, Serialize};

use super::wire::check_map;
use crate::error::{Error, Result};

/// A topology segment: keys and their values, all of which apply (`region=R1, zone=Z2`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Topology(BTreeMap<String, String>);

impl Topology {
    /// Creates the topology where this key has this value. Keys have the form `[prefix/]name`.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self(BTreeMap::from([(key.into(), value.into())]))
    }

    /// Adds another key.
    #[must_use]
    pub fn and(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.insert(key.into(), value.into());
        self
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Returns the keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    pub(crate) fn read(field: &str, wire: &v1::Topology) -> Result<Self> {
        let field_of_map = format!("{field}.segments");
        check_map(&field_of_map, &wire.segments)?;
        let topology = Self(wire.segments.clone());
        topology.check(&field_of_map)?;
        Ok(topology)
    }

    /// Checks the spec's rules for keys and values: a prefix that is a domain name, a name and a value of
    /// at most 63 characters, keys that are unique without regard to case. A plugin whose own topology breaks them
    /// does not start; with this, a driver can say which of its flags is the cause.
    ///
    /// - spec: `topology.keys`, `topology.values`, `topology.keys-without-case`
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming this field, or flag.
    pub fn check(&self, field: &str) -> Result<()> {
        self.well_formed().map_err(|reason| Error::invalid(field, reason))
    }

    // spec: topology.keys, topology.values, topology.keys-without-case
    pub(crate) fn well_formed(&self) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for (key, value) in &self.0 {
            let (prefix, name) = split(key);
            if !is_label(name, "-_.") || name.contains('/') {
                return Err(format!(
                    "key {key:?} is not [prefix/]name with a name of 1 to 63 of A-Z a-z 0-9 - _ ."
                ));
            }
            if prefix.is_some_and(|prefix| !is_prefix(prefix)) {
                return Err(format!("key {key:?} has a prefix that is not 1 to 63 of a-z 0-9 - ."));
            }
            if !is_label(value, "-_.") {
                return Err(format!(
                    "value {value:?} of key {key} is not 1 to 63 of A-Z a-z 0-9 - _ . with a letter or digit at \
                     both ends"
                ));
            }
            if !seen.insert(key.to_lowercase()) {
                return Err(format!("key {key} appears twice, in different case"));
            }
        }
        Ok(())
    }

    /// The prefixes of the keys.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|key| split(key).0)
    }

    /// Whether the two topologies overlap: no common key has different values.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        self.0.iter().all(|(key, value)| other.0.get(key).is_none_or(|theirs| theirs == value))
    }
}

/// A key's prefix, if it has one, and its name.
fn split(key: &str) -> (Option<&str>, &str) {
    key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name))
}

/// Whether this is a domain name of at most 63 lower-case characters, with each label alphanumeric at both
/// ends.
fn is_prefix(prefix: &str) -> bool {
    is_label(prefix, "-.")
        && !prefix.contains(|c: char| c.is_ascii_uppercase())
        && prefix.split('.').all(|label| is_label(label, "-"))
}

/// Whether this is 1 to 63 letters, digits and characters of `between`, alphanumeric at both ends.
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

/// From where a volume must be usable.
///
/// - spec: `topology.documented`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TopologyRequirement {
    /// The volume must be usable from at least one of these; empty is no constraint.
    pub requisite: Vec<Topology>,
    /// Preferred topologies, the most preferred first.
    pub preferred: Vec<Topology>,
}

impl TopologyRequirement {
    /// Creates a requirement, for tests of a driver.
    pub fn new(
        requisite: impl IntoIterator<Item = Topology>,
        preferred: impl IntoIterator<Item = Topology>,
    ) -> Self {
        Self { requisite: requisite.into_iter().collect(), preferred: preferred.into_iter().collect() }
    }

    // spec: topology.preferred-is-requisite, topology.one-list-is-given
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
        // Each list can have as many entries as the cluster has nodes.
        let requisite: BTreeSet<&Topology> = this.requisite.iter().collect();
        let stray = this.preferred.iter().position(|one| !requisite.contains(one));
        match stray {
            Some(at) if !this.requisite.is_empty() => {
                Err(Error::invalid(format!("{field}.preferred[{at}]"), "is not one of requisite"))
            }
            _ => Ok(this),
        }
    }
}

impl TopologyRequirement {
    /// Reads the requirement of a request; empty if the request has none.
    pub(crate) fn asked(wire: Option<&v1::TopologyRequirement>) -> Result<Self> {
        wire.map_or_else(|| Ok(Self::default()), |wire| Self::read("accessibility_requirements", wire))
    }

    /// Whether a volume that is usable from these places meets the requirement. No places means usable from
    /// everywhere.
    pub(crate) fn is_satisfied_by(&self, places: &[Topology]) -> bool {
        let mut pairs =
            self.requisite.iter().flat_map(|asked| places.iter().map(move |place| (asked, place)));
        self.requisite.is_empty() || places.is_empty() || pairs.any(|(asked, place)| asked.meets(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: topology.keys, topology.values, topology.keys-without-case
    #[test]
    fn keys_and_values_keep_the_spec_s_rules() {
        let long = "x".repeat(63);
        let too_long = "x".repeat(64);
        let good =
            [("zone", "z1"), ("Zone_1.a-b", "A_b.c-d"), ("topology.example.org/zone", "z"), (&long, &long)];
        for (key, value) in good {
            assert_eq!(Topology::new(key, value).well_formed(), Ok(()), "{key}={value}");
        }
        let bad = [
            ("", "z"),
            ("zone", ""),
            ("a/b/c", "z"),
            ("/zone", "z"),
            ("p/", "z"),
            ("Example.org/zone", "z"),
            ("ex_ample/zone", "z"),
            ("a..b/zone", "z"),
            ("a.-b/zone", "z"),
            ("-zone", "z"),
            ("zone.", "z"),
            ("zone", "-z"),
            ("zone", "z z"),
            (&too_long, "z"),
            ("zone", &too_long),
            ("zöne", "z"),
        ];
        for (key, value) in bad {
            assert!(Topology::new(key, value).well_formed().is_err(), "{key}={value}");
        }
        assert!(
            Topology::new("zone", "a")
                .and("Zone", "a")
                .well_formed()
                .unwrap_err()
                .contains("twice, in different case")
        );
    }

    // spec: create-volume.topology-met
    #[test]
    fn a_requirement_is_met_where_no_key_contradicts_it() {
        let zone = |zone: &str| Topology::new("region", "r1").and("zone", zone);
        let asked = TopologyRequirement { requisite: vec![zone("a"), zone("b")], preferred: vec![] };
        assert!(asked.is_satisfied_by(&[zone("b")]));
        assert!(
            asked.is_satisfied_by(&[Topology::new("region", "r1")]),
            "the whole region is more than was requested"
        );
        assert!(asked.is_satisfied_by(&[]), "usable from everywhere");
        assert!(!asked.is_satisfied_by(&[zone("c")]));
        assert!(!asked.is_satisfied_by(&[Topology::new("region", "r2")]));
        assert!(TopologyRequirement::default().is_satisfied_by(&[zone("c")]));
    }
}
