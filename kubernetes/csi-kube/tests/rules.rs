//! The table of access rules in the README is the data of the crate.

use csi_kube::rules::{self, Scope};

#[test]
fn the_table_of_rules_is_the_code() {
    let document = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"));
    let (_, rest) = document.split_once("| rules of |").expect("the table");
    let listed: Vec<&str> = rest.lines().skip(2).take_while(|line| line.starts_with("| `")).collect();
    let mut due = Vec::new();
    for (name, rules) in rules::ALL {
        for rule in *rules {
            let group = if rule.group.is_empty() { "core".to_owned() } else { format!("`{}`", rule.group) };
            let scope = if rule.scope == Scope::Cluster { "cluster" } else { "namespace" };
            let verbs = rule.verbs.join(", ");
            due.push(format!("| `{name}` | {group} | `{}` | {verbs} | {scope} |", rule.resource));
            assert!(!rule.reason.is_empty(), "{name}");
        }
    }
    assert_eq!(listed, due);
}

/// A rule on a flag of `csi manifests` is the rule that a driver declares.
#[test]
fn a_rule_as_text_is_the_declared_one() {
    for rule in rules::ALL.iter().flat_map(|(_, rules)| *rules) {
        assert_eq!(rule.to_string().parse(), Ok(csi_core::deploy::Rule::from(rule)));
    }
}
