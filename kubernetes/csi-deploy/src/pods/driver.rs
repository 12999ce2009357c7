//! The container of the driver.

use serde_json::{Value, json};

use super::{
    Built, METRICS_PORT, SOCKET, api_token, config_volume, empty_dir, field, host_path, mount, port, probe,
    read_only, restricted, secret_variable, secret_volume, unless_empty, variable,
};
use crate::options::FusePods;
use crate::part::{DEVICES_DIR, POD_LOGS_DIR, Part, REGISTRATION_DIR, SOCKET_DIR, TEMPORARY_DIR};
use crate::plan::Plan;
use crate::rbac;
use crate::settings::FilesDirectory;
use crate::sidecars::API_RATE;

/// Memory of the smallest driver with csi-core: 3.4 MiB when idle, 5.3 MiB after 10,000 calls
/// (docs/benchmarks.md, "Footprint of a driver's process").
const REQUEST: &str = "16Mi";
/// Enough for many concurrent calls and the driver's own state.
const LIMIT: &str = "128Mi";
/// On the node the programs that create, check and grow filesystems run in the same control group.
const NODE_LIMIT: &str = "512Mi";

pub(super) fn container(plan: &Plan<'_>, part: Part) -> Built {
    let options = plan.options;
    let (mut mounts, mut volumes) = places(plan, part);
    mounts.push(mount("tmp", TEMPORARY_DIR));
    volumes.push(empty_dir("tmp"));
    if rbac::driver_calls_api(plan, part) {
        let (token, volume) = api_token();
        mounts.push(token);
        volumes.push(volume);
    }
    let http = plan.probes_by_http();
    // In the sidecar's place, the port is its own.
    let ports = http.then(|| vec![port(METRICS_PORT, options.port)]);
    let container = json!({
        "args": unless_empty(arguments(plan, part)),
        "env": unless_empty(environment(plan, part)),
        "image": options.image,
        "livenessProbe": plan.probes(part).then(|| probe("/healthz", options.port)),
        "name": "driver",
        "ports": ports,
        "readinessProbe": (http && plan.probes(part)).then(|| probe("/readyz", options.port)),
        "resources": resources(part),
        "securityContext": security(plan, part),
        "volumeMounts": mounts,
    });
    Built { container, volumes }
}

fn arguments(plan: &Plan<'_>, part: Part) -> Vec<String> {
    let options = plan.options;
    let mut args = Vec::new();
    if !options.classic {
        let mode = match part {
            // The resizer asks NodeGetCapabilities whether the node expands.
            Part::Controller if plan.expands_on_the_node_only() => "all",
            Part::Controller => "controller",
            Part::Node if plan.is_node_local() => "all",
            Part::Node => "node",
        };
        args.extend([format!("--endpoint=unix://{SOCKET_DIR}/csi.sock"), format!("--mode={mode}")]);
        if part == Part::Node {
            args.push(format!("--registration-dir={REGISTRATION_DIR}"));
            args.push(format!("--kubelet-socket-path={}/csi.sock", plan.plugin_dir()));
        }
        args.extend(match (options.fuse_pods, part) {
            (Some(FusePods::PerNode), Part::Node) => Some(format!("--fuse-pods={0}/{0}", plan.fuse_name())),
            (Some(FusePods::PerVolume), _) => Some(format!("--fuse-pods={}", plan.fuse_name())),
            _ => None,
        });
        if plan.probes_by_http() {
            args.push(format!("--metrics-address=:{}", options.port));
        }
        args.push(format!("--grace={}s", options.grace.as_secs()));
        if part == Part::Controller {
            args.extend(in_place_of_sidecars(plan));
        }
    }
    args.extend(options.arg.iter().cloned());
    args.extend(match part {
        Part::Controller => options.controller_arg.iter().cloned(),
        Part::Node => options.node_arg.iter().cloned(),
    });
    args
}

/// The flags of csi-controllers.
fn in_place_of_sidecars(plan: &Plan<'_>) -> Vec<String> {
    let options = plan.options;
    let mut args = Vec::new();
    if !options.no_sidecars {
        return args;
    }
    args.push("--no-sidecars".to_owned());
    args.extend(options.default_fstype.iter().map(|fstype| format!("--default-fstype={fstype}")));
    if options.cross_namespace_data_sources {
        args.push("--cross-namespace-data-sources".to_owned());
    }
    args.extend(API_RATE.map(str::to_owned));
    args
}

fn environment(plan: &Plan<'_>, part: Part) -> Vec<Value> {
    let mut variables = Vec::new();
    if plan.options.classic {
        variables.push(variable("CSI_ENDPOINT", &format!("unix://{SOCKET_DIR}/csi.sock")));
    }
    if part == Part::Node || plan.options.classic {
        variables.push(field("NODE_ID", "spec.nodeName"));
    }
    if part == Part::Node {
        // What a driver no longer knows is unmounted in this directory only.
        variables.push(variable("VOLUME_ROOTS", &plan.options.kubelet_dir));
    }
    if part == Part::Controller && plan.options.no_sidecars {
        variables.push(field("POD_NAME", "metadata.name"));
    }
    variables.extend(plan.options.env.iter().map(|(name, value)| variable(name, value)));
    let secrets = plan.options.secret_env.iter().filter(|variable| variable.pods.have(part));
    variables.extend(secrets.map(|one| secret_variable(&one.name, &one.secret, &one.key)));
    variables
}

fn places(plan: &Plan<'_>, part: Part) -> (Vec<Value>, Vec<Value>) {
    let options = plan.options;
    let mut mounts = vec![mount(SOCKET, SOCKET_DIR)];
    let mut volumes = Vec::new();
    match part {
        Part::Controller => {
            volumes.push(empty_dir(SOCKET));
        }
        Part::Node => {
            volumes.push(host_path(SOCKET, &plan.plugin_dir(), "DirectoryOrCreate"));
            let registry = format!("{}/plugins_registry", options.kubelet_dir);
            volumes.push(host_path("registration", &registry, "Directory"));
            if !options.classic {
                mounts.push(mount("registration", REGISTRATION_DIR));
            }
        }
    }
    let propagation = match part {
        // Target paths are paths of the host, and mounts below it must reach the host.
        Part::Node => Some("Bidirectional"),
        Part::Controller => options.controller_sees_mounts.then_some("HostToContainer"),
    };
    if let Some(propagation) = propagation {
        volumes.push(host_path("kubelet", &options.kubelet_dir, "Directory"));
        let mut kubelet = mount("kubelet", &options.kubelet_dir);
        kubelet["mountPropagation"] = propagation.into();
        mounts.push(kubelet);
        if options.devices {
            volumes.push(host_path("dev", DEVICES_DIR, "Directory"));
            mounts.push(mount("dev", DEVICES_DIR));
        }
    }
    if part == Part::Node && options.fuse_pods.is_some() {
        // The names there show to which namespace a pod belongs.
        volumes.push(host_path("pod-logs", POD_LOGS_DIR, "Directory"));
        mounts.push(read_only("pod-logs", POD_LOGS_DIR));
    }
    for (index, path) in options.host_paths(part).1.iter().enumerate() {
        let name = format!("host-{index}");
        volumes.push(host_path(&name, path, "DirectoryOrCreate"));
        mounts.push(mount(&name, path));
    }
    type MakeVolume = fn(&str, &str) -> Value;
    let settings: [(&str, &[FilesDirectory], MakeVolume); 2] =
        [("secret", &options.secret_files, secret_volume), ("config", &options.config_files, config_volume)];
    for (kind, directories, make) in settings {
        let directories = directories.iter().filter(|directory| directory.pods.have(part));
        for (index, directory) in directories.enumerate() {
            let name = format!("{kind}-{index}");
            volumes.push(make(&name, &directory.object));
            // The whole directory: the kubelet does not update a single file of it (subPath).
            mounts.push(read_only(&name, &directory.path));
        }
    }
    (mounts, volumes)
}

fn resources(part: Part) -> Value {
    let limit = if part == Part::Node { NODE_LIMIT } else { LIMIT };
    // A limit of the processor would only slow calls down.
    json!({ "limits": { "memory": limit }, "requests": { "cpu": "10m", "memory": REQUEST } })
}

fn security(plan: &Plan<'_>, part: Part) -> Value {
    // Kubernetes allows Bidirectional only to privileged containers.
    if part == Part::Node || plan.options.privileged_controller {
        return json!({ "privileged": true, "readOnlyRootFilesystem": true });
    }
    restricted()
}
