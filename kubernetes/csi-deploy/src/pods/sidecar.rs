//! The containers next to the driver's.

use serde_json::json;

use super::{Built, SOCKET, api_token, field, mount, port, probe, restricted, unless_empty};
use crate::part::{REGISTRATION_DIR, SOCKET_DIR};
use crate::plan::Plan;
use crate::rbac;
use crate::sidecars::Sidecar;

/// Where snapshot-metadata has its certificate.
const CERTIFICATES: &str = "certificates";
pub(crate) const SNAPSHOT_METADATA_PORT: u16 = 50051;

pub(super) fn container(plan: &Plan<'_>, sidecar: Sidecar) -> Built {
    let (name, version) = sidecar.image();
    let number = sidecar.port(plan);
    let elects = plan.elects_leader(sidecar);
    let mut args = vec![format!("--csi-address={SOCKET_DIR}/csi.sock"), format!("--http-endpoint=:{number}")];
    if elects {
        args.push("--leader-election".to_owned());
    }
    args.extend(sidecar.flags(plan));
    let mut mounts = vec![mount(SOCKET, SOCKET_DIR)];
    let mut volumes = Vec::new();
    if rbac::sidecar_calls_api(sidecar) {
        let (token, volume) = api_token();
        mounts.push(token);
        volumes.push(volume);
    }
    let mut ports = vec![port(port_name(sidecar), number)];
    let liveness = match sidecar {
        Sidecar::Registrar => {
            mounts.push(mount("registration", REGISTRATION_DIR));
            Some("/healthz")
        }
        Sidecar::SnapshotMetadata => {
            let secret = &plan.options.snapshot_metadata_secret;
            volumes.push(json!({ "name": CERTIFICATES, "secret": { "secretName": secret } }));
            mounts.push(mount(CERTIFICATES, "/certificates"));
            ports.push(port("metadata", SNAPSHOT_METADATA_PORT));
            None
        }
        // The driver's own probe asks it.
        Sidecar::LivenessProbe => None,
        _ => elects.then_some("/healthz/leader-election"),
    };
    let env: Vec<_> = sidecar.variables(plan).into_iter().map(|(name, path)| field(name, path)).collect();
    let container = json!({
        "args": args,
        "env": unless_empty(env),
        "image": format!("{}/{name}:{version}", plan.options.sidecar_registry),
        "livenessProbe": liveness.map(|path| probe(path, number)),
        "name": name,
        "ports": ports,
        // They keep the cluster's claims and volumes in memory, so no limit fits every cluster.
        "resources": { "requests": { "cpu": "10m", "memory": "32Mi" } },
        "securityContext": restricted(),
        "volumeMounts": mounts,
    });
    Built { container, volumes }
}

/// At most 15 characters, as Kubernetes requires.
pub(crate) fn port_name(sidecar: Sidecar) -> &'static str {
    match sidecar {
        Sidecar::Provisioner => "provisioner",
        Sidecar::Attacher => "attacher",
        Sidecar::Resizer => "resizer",
        Sidecar::Snapshotter => "snapshotter",
        Sidecar::SnapshotMetadata => "metadata-http",
        Sidecar::HealthMonitor | Sidecar::ConditionMonitor => "health-monitor",
        Sidecar::Registrar => "registrar",
        Sidecar::LivenessProbe => "healthz",
    }
}
