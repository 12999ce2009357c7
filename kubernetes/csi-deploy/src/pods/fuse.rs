//! The pods of the driver's FUSE programs, in a namespace of its own, in which pods have no privilege: a DaemonSet, or a
//! PodTemplate from which the controller makes a pod for each volume.

use serde_json::{Value, json};

use super::workload::{USER, pull_secrets};
use super::{empty_dir, mount, restricted, unless_empty, variable};
use crate::extras::pod_security;
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
/// By it the cluster autoscaler does not wait for the pod when it removes a node.
const LIKE_A_DAEMON_SET: &str = "cluster-autoscaler.kubernetes.io/daemonset-pod";

/// The namespace, before the role in it.
pub(crate) fn namespace(plan: &Plan<'_>, files: &mut Files) {
    if plan.options.fuse_pods.is_some() {
        let comment = "Whoever can make pods in this namespace can get the devices and credentials of volumes. Helm keeps \
                       it: its pods serve volumes that are in use.";
        let labels = pod_security("restricted");
        let metadata = json!({ "annotations": kept_by_helm(), "labels": labels, "name": plan.fuse_name() });
        files.add(FILE, vec![comment.to_owned()], ("v1", "Namespace"), json!({ "metadata": metadata }));
    }
}

/// `helm uninstall` leaves the object where it is, and says so. Another release of the same name takes it back.
fn kept_by_helm() -> Value {
    json!({ "helm.sh/resource-policy": "keep" })
}

pub(super) fn add(plan: &Plan<'_>, files: &mut Files) {
    let Some(kind) = plan.options.fuse_pods else { return };
    let name = plan.fuse_name();
    let labels = json!({ "app.kubernetes.io/component": "fuse", "app.kubernetes.io/name": plan.name });
    let mut metadata = json!({ "labels": labels, "name": name, "namespace": name });
    if kind == FusePods::PerVolume {
        let comment = "The controller makes a pod from it for each volume on each node, and adds the node.";
        let of_pod = json!({ "annotations": { LIKE_A_DAEMON_SET: "true" }, "labels": labels });
        let template = json!({ "metadata": of_pod, "spec": pod(plan, kind) });
        let object = json!({ "metadata": metadata, "template": template });
        files.add(FILE, vec![comment.to_owned()], ("v1", "PodTemplate"), object);
        return;
    }
    let comment = "OnDelete: programs that can't continue a mount end with their pod, and the volumes of its node are \
                   lost until they are published again.";
    metadata["annotations"] = kept_by_helm();
    let object = json!({
        "metadata": metadata,
        "spec": {
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": pod(plan, kind) },
            "updateStrategy": { "type": "OnDelete" },
        },
    });
    files.add(FILE, vec![comment.to_owned()], ("apps/v1", "DaemonSet"), object);
}

fn pod(plan: &Plan<'_>, kind: FusePods) -> Value {
    let options = plan.options;
    // A DaemonSet's pod is on each node before any workload. A volume's pod takes room from nobody unless it is asked to.
    let default_class = (kind == FusePods::PerNode).then(|| "system-node-critical".to_owned());
    let mut mounts =
        vec![mount(MOUNTER, MOUNTER_DIR), mount("tmp", TEMPORARY_DIR), mount("cache", CACHE_DIR)];
    // Sockets and credentials are never on a disk.
    let mut volumes = vec![in_memory(MOUNTER, "10Mi"), in_memory("tmp", "64Mi"), empty_dir("cache")];
    let mut installs = None;
    if options.fuse_image.is_some() {
        mounts.push(mount(PROGRAM, PROGRAM_DIR));
        volumes.push(empty_dir(PROGRAM));
        installs = Some(json!([{
            "args": arguments(plan, &[format!("--copy-program-to={PROGRAM_DIR}/mounter")]),
            "env": unless_empty(environment(plan)),
            "image": options.image,
            "name": "install",
            "securityContext": restricted(),
            "volumeMounts": [mount(PROGRAM, PROGRAM_DIR)],
        }]));
    }
    let flags = [format!("--fuse-mounter={MOUNTER_DIR}"), format!("--grace={DRAIN}s")];
    let memory = &options.fuse_memory;
    let mounter = json!({
        "args": arguments(plan, &flags),
        "command": options.fuse_image.is_some().then(|| [format!("{PROGRAM_DIR}/mounter")]),
        "env": unless_empty(environment(plan)),
        "image": options.fuse_image.as_ref().unwrap_or(&options.image),
        "name": "mounter",
        // Of a DaemonSet they are reserved before any volume is there, so a program never waits for room.
        "resources": { "limits": { "memory": memory }, "requests": { "cpu": "50m", "memory": memory } },
        "securityContext": restricted(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    });
    json!({
        "automountServiceAccountToken": false,
        "containers": [mounter],
        "enableServiceLinks": false,
        "imagePullSecrets": pull_secrets(options),
        "initContainers": installs,
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "priorityClassName": options.fuse_priority_class.clone().or(default_class),
        "securityContext": { "runAsGroup": USER, "runAsNonRoot": true, "runAsUser": USER },
        "terminationGracePeriodSeconds": DRAIN + MARGIN,
        // Pods with volumes can be on every node, also on one that is being drained.
        "tolerations": [{ "operator": "Exists" }],
        "volumes": volumes,
    })
}

/// These flags, and those that the driver has in all pods.
fn arguments(plan: &Plan<'_>, flags: &[String]) -> Vec<String> {
    [flags, &plan.options.arg].concat()
}

fn environment(plan: &Plan<'_>) -> Vec<Value> {
    plan.options.env.iter().map(|(name, value)| variable(name, value)).collect()
}

fn in_memory(name: &str, most: &str) -> Value {
    json!({ "emptyDir": { "medium": "Memory", "sizeLimit": most }, "name": name })
}
