//! Deployment, StatefulSet and DaemonSet.

use k8s_openapi::api::apps::v1::{
    DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, Deployment, DeploymentSpec, DeploymentStrategy,
    RollingUpdateDaemonSet, RollingUpdateDeployment, StatefulSet, StatefulSetSpec,
};
use k8s_openapi::api::core::v1::{
    Container, LocalObjectReference, PodSecurityContext, PodSpec, PodTemplateSpec, Toleration,
    TopologySpreadConstraint, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Built, driver, sidecar};
use crate::error::Error;
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

pub(super) fn add(plan: &Plan<'_>, part: Part, files: &mut Files) -> Result<(), Error> {
    let metadata = metadata(plan, part.name(plan), part);
    let selector = LabelSelector { match_labels: Some(labels(plan, Some(part))), ..LabelSelector::default() };
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta { labels: Some(labels(plan, Some(part))), ..ObjectMeta::default() }),
        spec: Some(pod(plan, part)),
    };
    match (part, plan.options.controller) {
        (Part::Node, _) => {
            let spec = DaemonSetSpec {
                selector,
                template,
                update_strategy: Some(one_by_one()),
                ..DaemonSetSpec::default()
            };
            let set = DaemonSet { metadata, spec, ..DaemonSet::default() };
            files.add(part.file(), comments(plan, part), &set)
        }
        (Part::Controller, Controller::StatefulSet) => {
            let spec =
                StatefulSetSpec { replicas: Some(1), selector, template, ..StatefulSetSpec::default() };
            let set = StatefulSet { metadata, spec, ..StatefulSet::default() };
            files.add(part.file(), comments(plan, part), &set)
        }
        (Part::Controller, _) => {
            let spec = DeploymentSpec {
                replicas: Some(plan.options.replicas.into()),
                selector,
                strategy: Some(old_first()),
                template,
                ..DeploymentSpec::default()
            };
            let deployment = Deployment { metadata, spec, ..Deployment::default() };
            files.add(part.file(), comments(plan, part), &deployment)
        }
    }
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

fn one_by_one() -> DaemonSetUpdateStrategy {
    let max_unavailable = Some(IntOrString::String("10%".to_owned()));
    DaemonSetUpdateStrategy {
        type_: Some("RollingUpdate".to_owned()),
        rolling_update: Some(RollingUpdateDaemonSet { max_unavailable, ..RollingUpdateDaemonSet::default() }),
    }
}

/// The old pod ends before the new one starts, so that two processes of the driver do not serve the same
/// volumes.
fn old_first() -> DeploymentStrategy {
    DeploymentStrategy {
        type_: Some("RollingUpdate".to_owned()),
        rolling_update: Some(RollingUpdateDeployment {
            max_surge: Some(IntOrString::Int(0)),
            max_unavailable: Some(IntOrString::Int(1)),
        }),
    }
}

fn pod(plan: &Plan<'_>, part: Part) -> PodSpec {
    let options = plan.options;
    let (containers, volumes) = containers(plan, part);
    let is_node = part == Part::Node;
    PodSpec {
        // Containers that call the API mount the token themselves.
        automount_service_account_token: Some(false),
        containers,
        host_network: (is_node && options.host_network).then_some(true),
        dns_policy: (is_node && options.host_network).then(|| "ClusterFirstWithHostNet".to_owned()),
        host_pid: (is_node && options.host_pid).then_some(true),
        image_pull_secrets: pull_secrets(options),
        node_selector: Some([("kubernetes.io/os".to_owned(), "linux".to_owned())].into()),
        priority_class_name: Some(
            if is_node { "system-node-critical" } else { "system-cluster-critical" }.to_owned(),
        ),
        security_context: user(plan, part),
        service_account_name: Some(part.name(plan)),
        termination_grace_period_seconds: Some(
            i64::try_from(options.grace.as_secs()).unwrap_or(i64::MAX - MARGIN) + MARGIN,
        ),
        tolerations: Some(tolerations(part)),
        topology_spread_constraints: (!is_node && options.replicas > 1).then(|| vec![spread(plan, part)]),
        volumes: Some(volumes),
        ..PodSpec::default()
    }
}

pub(super) fn pull_secrets(options: &Options) -> Option<Vec<LocalObjectReference>> {
    let secrets = options.image_pull_secret.iter().map(|name| LocalObjectReference { name: name.clone() });
    Some(secrets.collect()).filter(|secrets: &Vec<_>| !secrets.is_empty())
}

fn containers(plan: &Plan<'_>, part: Part) -> (Vec<Container>, Vec<Volume>) {
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
    for Built { container, volumes: own } in built {
        // The reason of a restart is then in `kubectl describe pod`: every program here prints it last.
        let termination_message_policy = Some("FallbackToLogsOnError".to_owned());
        containers.push(Container { termination_message_policy, ..container });
        for volume in own {
            if !volumes.iter().any(|other: &Volume| other.name == volume.name) {
                volumes.push(volume);
            }
        }
    }
    // A volume that no container mounts has no place in the pod.
    let is_mounted = |volume: &Volume| {
        let mut mounts = containers.iter().flat_map(|container| container.volume_mounts.iter().flatten());
        mounts.any(|mount| mount.name == volume.name)
    };
    volumes.retain(is_mounted);
    (containers, volumes)
}

/// A controller that has nothing of the host is not root.
fn user(plan: &Plan<'_>, part: Part) -> Option<PodSecurityContext> {
    let options = plan.options;
    let has_host_paths = !options.controller_host_path.is_empty() || options.controller_sees_mounts;
    let is_root = part == Part::Node || options.privileged_controller || has_host_paths;
    (!is_root).then(|| PodSecurityContext {
        fs_group: Some(USER),
        run_as_group: Some(USER),
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        ..PodSecurityContext::default()
    })
}

fn tolerations(part: Part) -> Vec<Toleration> {
    let exists = |key: Option<&str>, effect: Option<&str>| Toleration {
        key: key.map(str::to_owned),
        effect: effect.map(str::to_owned),
        operator: Some("Exists".to_owned()),
        ..Toleration::default()
    };
    match part {
        // A pod with volumes can be on every node, also on one that is being drained.
        Part::Node => vec![exists(None, None)],
        Part::Controller => vec![
            exists(Some("CriticalAddonsOnly"), None),
            exists(Some("node-role.kubernetes.io/control-plane"), Some("NoSchedule")),
        ],
    }
}

fn spread(plan: &Plan<'_>, part: Part) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        label_selector: Some(LabelSelector {
            match_labels: Some(labels(plan, Some(part))),
            ..LabelSelector::default()
        }),
        max_skew: 1,
        topology_key: "kubernetes.io/hostname".to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        ..TopologySpreadConstraint::default()
    }
}
