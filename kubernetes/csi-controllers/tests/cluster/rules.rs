//! The access rules of `manifests --no-sidecars`.

use std::collections::BTreeSet;

use clap::Parser as _;
use csi_deploy::{Options, manifests};
use serde_json::Value;
use test_support::kube_api::Row;

use crate::bed::Bed;

/// Group, resource and verb.
pub(crate) type Used = BTreeSet<(String, String, String)>;

/// What the manifests allow only with an option, or for an object that they make needless.
const FURTHER: [Row; 5] = [
    ("", "secrets", &["get"]),
    ("gateway.networking.k8s.io", "referencegrants", &["list"]),
    ("storage.k8s.io", "csidrivers", &["get"]),
    ("storage.k8s.io", "volumeattachments", &["get", "list", "watch", "patch"]),
    ("storage.k8s.io", "volumeattachments/status", &["patch"]),
];

/// The rules of the controller in the manifests of a hostpath with these flags.
fn of_manifests(flags: &[&str]) -> Vec<Value> {
    let directory = tempfile::tempdir().unwrap();
    let data = format!("--data={}", directory.path().display());
    let own = ["hostpath", &data, "--node-id=worker-1"];
    let args = hostpath::Args::parse_from(own.iter().chain(flags));
    let facts = hostpath::plugin(&args).unwrap().with_args(&args.driver).facts().unwrap();
    let mut options = Options::new("registry.example.org/hostpath:1");
    options.no_sidecars = true;
    let text = manifests(&facts, &options).unwrap().single();
    let mut objects: Vec<Value> =
        text.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect();
    objects.retain(|object| object["metadata"]["name"].as_str().unwrap().ends_with("-controller"));
    objects.iter().flat_map(|object| object["rules"].as_array().cloned().unwrap_or_default()).collect()
}

fn row(rule: &Value) -> Row {
    let leaked = |value: &Value| &*value.as_str().unwrap().to_owned().leak();
    let verbs: Vec<&'static str> = rule["verbs"].as_array().unwrap().iter().map(leaked).collect();
    (leaked(&rule["apiGroups"][0]), leaked(&rule["resources"][0]), verbs.leak())
}

/// The rules under which a driver with these flags works.
pub(crate) fn of(flags: &[&str]) -> Vec<Row> {
    of_manifests(flags).iter().map(row).chain(FURTHER).collect()
}

/// The leases that can be held by these rules.
pub(crate) fn leases() -> Vec<String> {
    let rules = of_manifests(&[]);
    let names = |rule: &Value| serde_json::from_value(rule["resourceNames"].clone()).ok();
    rules.iter().filter(|rule| rule["resources"][0] == "leases").find_map(names).unwrap()
}

/// What was asked for.
pub(crate) fn used(bed: &Bed) -> Used {
    let calls = bed.server.requests_since(0).into_iter();
    calls.map(|call| (call.group.clone(), call.rule_resource(), call.verb.to_owned())).collect()
}

/// Panics unless each verb of the rules of a driver was used.
pub(crate) fn assert_used(used: &Used) {
    for rule in of_manifests(&["--expansion=offline"]) {
        let (group, resource, verbs) = row(&rule);
        // The election is left out. An object is read again only when somebody else changes it at the same time, and an
        // event that repeats is patched.
        let is_left_out = |verb: &str| {
            resource == "leases"
                || (resource, verb) == ("events", "patch")
                || (verb == "get" && !["persistentvolumes", "pods", "replicasets"].contains(&resource))
        };
        for verb in verbs.iter().filter(|verb| !is_left_out(verb)) {
            let row = (group.to_owned(), resource.to_owned(), (*verb).to_owned());
            assert!(used.contains(&row), "{row:?} is not needed");
        }
    }
}
