//! The pods of the driver's FUSE programs: a DaemonSet in a namespace of its own, in which pods have no privilege.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy};
use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, Namespace, PodSecurityContext, PodSpec, PodTemplateSpec,
    ResourceRequirements, Toleration, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use super::workload::{USER, pull_secrets};
use super::{empty_dir, mount, restricted, variable};
use crate::error::Error;
use crate::files::Files;
use crate::options::FusePods;
use crate::part::TEMPORARY_DIR;
use crate::plan::Plan;

const FILE: &str = "fuse.yaml";
/// The volume in which the driver finds the socket: `Mounter::in_pods` of csi-mount.
const MOUNTER: &str = "mounter";
const MOUNTER_DIR: &str = "/mounter";
/// The driver's program, in a pod with another image.
const PROGRAM: &str = "program";
const PROGRAM_DIR: &str = "/csi-program";
/// Where programs keep a cache.
const CACHE_DIR: &str = "/var/cache/fuse";
/// How long the pod waits for the end of its volumes, and what it then gets to end them, in seconds.
const DRAIN: i64 = 570;
const MARGIN: i64 = 30;

/// The namespace, before the role in it.
pub(crate) fn namespace(plan: &Plan<'_>, files: &mut Files) -> Result<(), Error> {
    if plan.options.fuse_pods.is_none() {
        return Ok(());
    }
    let mode = |mode| format!("pod-security.kubernetes.io/{mode}");
    let levels = ["audit", "enforce", "warn"].map(|of| (mode(of), "restricted".to_owned()));
    let name = Some(plan.fuse_name());
    let metadata = ObjectMeta { name, labels: Some(levels.into()), ..ObjectMeta::default() };
    let comment = "Whoever can make pods in this namespace can get the devices and credentials of volumes.";
    files.add(FILE, vec![comment.to_owned()], &Namespace { metadata, ..Namespace::default() })
}

pub(super) fn add(plan: &Plan<'_>, files: &mut Files) -> Result<(), Error> {
    if plan.options.fuse_pods != Some(FusePods::PerNode) {
        return Ok(());
    }
    let name = plan.fuse_name();
    let labels: BTreeMap<_, _> = [
        ("app.kubernetes.io/component".to_owned(), "fuse".to_owned()),
        ("app.kubernetes.io/name".to_owned(), plan.name.clone()),
    ]
    .into();
    let spec = DaemonSetSpec {
        selector: LabelSelector { match_labels: Some(labels.clone()), ..LabelSelector::default() },
        template: PodTemplateSpec {
            metadata: Some(ObjectMeta { labels: Some(labels.clone()), ..ObjectMeta::default() }),
            spec: Some(pod(plan)),
        },
        update_strategy: Some(DaemonSetUpdateStrategy {
            type_: Some("OnDelete".to_owned()),
            ..DaemonSetUpdateStrategy::default()
        }),
        ..DaemonSetSpec::default()
    };
    let metadata = ObjectMeta {
        name: Some(name.clone()),
        namespace: Some(name),
        labels: Some(labels),
        ..ObjectMeta::default()
    };
    let comment = "OnDelete: programs that can't continue a mount end with their pod, and the volumes of its node are \
                   lost until they are published again.";
    let set = DaemonSet { metadata, spec, ..DaemonSet::default() };
    files.add(FILE, vec![comment.to_owned()], &set)
}

fn pod(plan: &Plan<'_>) -> PodSpec {
    let options = plan.options;
    let mut mounts =
        vec![mount(MOUNTER, MOUNTER_DIR), mount("tmp", TEMPORARY_DIR), mount("cache", CACHE_DIR)];
    // Sockets and credentials are never on a disk.
    let mut volumes = vec![in_memory(MOUNTER, "10Mi"), in_memory("tmp", "64Mi"), empty_dir("cache")];
    let mut installs = None;
    if options.fuse_image.is_some() {
        mounts.push(mount(PROGRAM, PROGRAM_DIR));
        volumes.push(empty_dir(PROGRAM));
        installs = Some(vec![Container {
            name: "install".to_owned(),
            image: Some(options.image.clone()),
            args: Some(arguments(plan, &[format!("--copy-program-to={PROGRAM_DIR}/mounter")])),
            env: Some(environment(plan)).filter(|env| !env.is_empty()),
            security_context: Some(restricted()),
            volume_mounts: Some(vec![mount(PROGRAM, PROGRAM_DIR)]),
            ..Container::default()
        }]);
    }
    let flags = [format!("--fuse-mounter={MOUNTER_DIR}"), format!("--grace={DRAIN}s")];
    let mounter = Container {
        name: "mounter".to_owned(),
        image: Some(options.fuse_image.as_ref().unwrap_or(&options.image).clone()),
        command: options.fuse_image.is_some().then(|| vec![format!("{PROGRAM_DIR}/mounter")]),
        args: Some(arguments(plan, &flags)),
        env: Some(environment(plan)).filter(|env| !env.is_empty()),
        resources: Some(resources(&options.fuse_memory)),
        security_context: Some(restricted()),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(mounts),
        ..Container::default()
    };
    PodSpec {
        automount_service_account_token: Some(false),
        containers: vec![mounter],
        enable_service_links: Some(false),
        image_pull_secrets: pull_secrets(options),
        init_containers: installs,
        node_selector: Some([("kubernetes.io/os".to_owned(), "linux".to_owned())].into()),
        priority_class_name: Some("system-node-critical".to_owned()),
        security_context: Some(PodSecurityContext {
            run_as_group: Some(USER),
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            ..PodSecurityContext::default()
        }),
        termination_grace_period_seconds: Some(DRAIN + MARGIN),
        // Pods with volumes can be on every node, also on one that is being drained.
        tolerations: Some(vec![Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() }]),
        volumes: Some(volumes),
        ..PodSpec::default()
    }
}

/// These flags, and those that the driver has in all pods.
fn arguments(plan: &Plan<'_>, flags: &[String]) -> Vec<String> {
    [flags, &plan.options.arg].concat()
}

fn environment(plan: &Plan<'_>) -> Vec<k8s_openapi::api::core::v1::EnvVar> {
    plan.options.env.iter().map(|(name, value)| variable(name, value)).collect()
}

fn in_memory(name: &str, most: &str) -> Volume {
    let source = EmptyDirVolumeSource {
        medium: Some("Memory".to_owned()),
        size_limit: Some(Quantity(most.to_owned())),
        ..EmptyDirVolumeSource::default()
    };
    Volume { name: name.to_owned(), empty_dir: Some(source), ..Volume::default() }
}

fn resources(memory: &str) -> ResourceRequirements {
    let quantity = |name: &str, value: &str| (name.to_owned(), Quantity(value.to_owned()));
    ResourceRequirements {
        // A DaemonSet's requests are reserved before any volume is there, so a program never waits for room.
        requests: Some([quantity("cpu", "50m"), quantity("memory", memory)].into()),
        limits: Some([quantity("memory", memory)].into()),
        ..ResourceRequirements::default()
    }
}
