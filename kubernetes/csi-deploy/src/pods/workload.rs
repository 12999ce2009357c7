//! Deployment, StatefulSet and DaemonSet.

use serde_json::{Value, json};

use super::{Built, driver, sidecar, unless_empty};
use crate::files::Files;
use crate::options::{Controller, Options};
use crate::part::Part;
use crate::plan::Plan;
use crate::plan::{labels, metadata};
use crate::sidecars::Sidecar;

/// The user of pods that need nothing of the host. All containers of a pod have it, because the driver's
/// socket is for its own user and group.
pub(super) const USER: i64 = 65532;
/// What the pod gets more than the driver's running operations, before it is killed.
const MARGIN: i64 = 30;

pub(super) fn add(plan: &Plan<'_>, part: Part, files: &mut Files) {
    let labels = labels(plan, Some(part));
    let mut spec = json!({
        "selector": { "matchLabels": labels },
        "template": { "metadata": { "labels": labels }, "spec": pod(plan, part) },
    });
    let kind = match (part, plan.options.controller) {
        (Part::Node, _) => {
            spec["updateStrategy"] =
                json!({ "rollingUpdate": { "maxUnavailable": "10%" }, "type": "RollingUpdate" });
            "DaemonSet"
        }
        (Part::Controller, Controller::StatefulSet) => {
            spec["replicas"] = 1.into();
            "StatefulSet"
        }
        (Part::Controller, _) => {
            spec["replicas"] = plan.options.replicas.into();
            // The old pod ends before the new one starts, so that two processes of the driver do not serve the same
            // volumes.
            let old_first = json!({ "maxSurge": 0, "maxUnavailable": 1 });
            spec["strategy"] = json!({ "rollingUpdate": old_first, "type": "RollingUpdate" });
            "Deployment"
        }
    };
    let object = json!({ "metadata": metadata(plan, &part.name(plan), part), "spec": spec });
    files.add(part.file(), comments(plan, part), ("apps/v1", kind), object);
}

fn comments(plan: &Plan<'_>, part: Part) -> Vec<String> {
    match part {
        Part::Node => {
            let mut comments = vec![
                "The driver is privileged because Kubernetes allows mountPropagation: Bidirectional to no other container.".to_owned(),
            ];
            if plan.options.host_network {
                comments.push(format!(
                    "Port {} is on the node's address, where no NetworkPolicy applies: who reaches it reads health and metrics.",
                    plan.options.port
                ));
            }
            comments
        }
        Part::Controller if plan.elects() => {
            vec!["The sidecars elect a leader, so that during an update never two of a kind work.".to_owned()]
        }
        Part::Controller if plan.options.driver_elects => {
            vec![
                "The driver elects a leader. No probe asks the pods, because one that waits does not serve."
                    .to_owned(),
            ]
        }
        Part::Controller => Vec::new(),
    }
}

fn pod(plan: &Plan<'_>, part: Part) -> Value {
    let options = plan.options;
    let (containers, volumes) = containers(plan, part);
    let is_node = part == Part::Node;
    let spread = json!([{
        "labelSelector": { "matchLabels": labels(plan, Some(part)) },
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
    }]);
    json!({
        // Containers that call the API mount the token themselves.
        "automountServiceAccountToken": false,
        "containers": containers,
        "dnsPolicy": (is_node && options.host_network).then_some("ClusterFirstWithHostNet"),
        "hostNetwork": (is_node && options.host_network).then_some(true),
        "hostPID": (is_node && options.host_pid).then_some(true),
        "imagePullSecrets": pull_secrets(options),
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "priorityClassName": if is_node { "system-node-critical" } else { "system-cluster-critical" },
        "securityContext": user(plan, part),
        "serviceAccountName": part.name(plan),
        "terminationGracePeriodSeconds":
            i64::try_from(options.grace.as_secs()).unwrap_or(i64::MAX - MARGIN) + MARGIN,
        "tolerations": tolerations(part),
        "topologySpreadConstraints": (!is_node && options.replicas > 1).then_some(spread),
        "volumes": volumes,
    })
}

pub(super) fn pull_secrets(options: &Options) -> Option<Vec<Value>> {
    unless_empty(options.image_pull_secret.iter().map(|name| json!({ "name": name })).collect())
}

fn containers(plan: &Plan<'_>, part: Part) -> (Vec<Value>, Vec<Value>) {
    let mut sidecars = match part {
        Part::Node if !plan.is_node_local() => Vec::new(),
        _ => plan.sidecars(),
    };
    if part == Part::Node && plan.options.classic {
        sidecars.push(Sidecar::Registrar);
    }
    if !plan.probes_by_http() && plan.probes(part) {
        sidecars.push(Sidecar::LivenessProbe);
    }
    let sidecars = sidecars.into_iter().map(|sidecar| sidecar::container(plan, sidecar));
    let built: Vec<Built> = std::iter::once(driver::container(plan, part)).chain(sidecars).collect();
    let mut volumes = Vec::new();
    let mut containers = Vec::new();
    for Built { mut container, volumes: own } in built {
        // The reason of a restart is then in `kubectl describe pod`: every program here prints it last.
        container["terminationMessagePolicy"] = "FallbackToLogsOnError".into();
        containers.push(container);
        for volume in own {
            if !volumes.iter().any(|other: &Value| other["name"] == volume["name"]) {
                volumes.push(volume);
            }
        }
    }
    // A volume that no container mounts has no place in the pod.
    let is_mounted = |volume: &Value| {
        let mut mounts =
            containers.iter().flat_map(|container| container["volumeMounts"].as_array()).flatten();
        mounts.any(|mount| mount["name"] == volume["name"])
    };
    volumes.retain(is_mounted);
    (containers, volumes)
}

/// A controller that has nothing of the host is not root.
fn user(plan: &Plan<'_>, part: Part) -> Option<Value> {
    let options = plan.options;
    let has_host_paths = !options.controller_host_path.is_empty() || options.controller_sees_mounts;
    let is_root = part == Part::Node || options.privileged_controller || has_host_paths;
    (!is_root)
        .then(|| json!({ "fsGroup": USER, "runAsGroup": USER, "runAsNonRoot": true, "runAsUser": USER }))
}

fn tolerations(part: Part) -> Value {
    match part {
        // A pod with volumes can be on every node, also on one that is being drained.
        Part::Node => json!([{ "operator": "Exists" }]),
        Part::Controller => json!([
            { "key": "CriticalAddonsOnly", "operator": "Exists" },
            { "effect": "NoSchedule", "key": "node-role.kubernetes.io/control-plane", "operator": "Exists" },
        ]),
    }
}
