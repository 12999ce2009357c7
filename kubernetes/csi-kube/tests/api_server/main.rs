//! Each part of the crate against a simulated API server, in paused time.

mod drain;
mod events;
mod fuse_pods;
mod leader_calls;
mod leader_election;
mod leader_run;
mod node_events;
mod node_labels;
mod objects;
mod startup_taint;

use csi_kube::rules::Rule;
use test_support::kube_api::Row;

/// The rules as the server takes them.
fn rows(rules: &[Rule]) -> Vec<Row> {
    rules.iter().map(|rule| (rule.group, rule.resource, rule.verbs)).collect()
}
