//! The pods of the driver: the controller's and the node's.
//!
//! | file | has |
//! |---|---|
//! | `driver` | the container of the driver: arguments, probes, what it needs of the host |
//! | `fuse` | the pods of FUSE programs |
//! | `sidecar` | the containers next to it |
//! | `workload` | Deployment, StatefulSet, DaemonSet around the pods |

mod driver;
mod fuse;
mod sidecar;
mod workload;

pub(crate) use fuse::namespace as fuse_namespace;
pub(crate) use sidecar::{SNAPSHOT_METADATA_PORT, port_name};

use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapProjection, ConfigMapVolumeSource, Container, ContainerPort,
    DownwardAPIProjection, DownwardAPIVolumeFile, EmptyDirVolumeSource, EnvVar, EnvVarSource, HTTPGetAction,
    HostPathVolumeSource, KeyToPath, ObjectFieldSelector, Probe, ProjectedVolumeSource, SeccompProfile,
    SecretKeySelector, SecretVolumeSource, SecurityContext, ServiceAccountTokenProjection, Volume,
    VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::error::Error;
use crate::files::Files;
use crate::part::API_TOKEN_DIR;
use crate::plan::Plan;

pub(crate) fn add(plan: &Plan<'_>, files: &mut Files) -> Result<(), Error> {
    plan.parts().into_iter().try_for_each(|part| workload::add(plan, part, files))?;
    fuse::add(plan, files)
}

const SOCKET: &str = "socket";
/// The name of the driver's port.
pub(crate) const METRICS_PORT: &str = "metrics";

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
}

fn empty_dir(name: &str) -> Volume {
    Volume { name: name.to_owned(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() }
}

fn host_path(name: &str, path: &str, kind: &str) -> Volume {
    let host_path = HostPathVolumeSource { path: path.to_owned(), type_: Some(kind.to_owned()) };
    Volume { name: name.to_owned(), host_path: Some(host_path), ..Volume::default() }
}

/// The files of a Secret are readable by the driver's user alone; the kubelet adds the pod's group.
const SECRET_MODE: i32 = 0o400;

fn secret_volume(name: &str, secret: &str) -> Volume {
    let secret = SecretVolumeSource {
        default_mode: Some(SECRET_MODE),
        secret_name: Some(secret.to_owned()),
        ..SecretVolumeSource::default()
    };
    Volume { name: name.to_owned(), secret: Some(secret), ..Volume::default() }
}

fn config_volume(name: &str, config_map: &str) -> Volume {
    let config_map =
        ConfigMapVolumeSource { name: config_map.to_owned(), ..ConfigMapVolumeSource::default() };
    Volume { name: name.to_owned(), config_map: Some(config_map), ..Volume::default() }
}

fn secret_variable(name: &str, secret: &str, key: &str) -> EnvVar {
    let key =
        SecretKeySelector { name: secret.to_owned(), key: key.to_owned(), ..SecretKeySelector::default() };
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource { secret_key_ref: Some(key), ..EnvVarSource::default() }),
        ..EnvVar::default()
    }
}

/// The name of the volume with the token of the pods' service account.
const API_TOKEN: &str = "api-token";
/// How long a token is valid, as in the volume that Kubernetes makes itself; the kubelet renews it.
const API_TOKEN_SECONDS: i64 = 3607;

/// The mount and the volume by which one container calls the API. Kubernetes' own volume would be in every
/// container of the pod.
fn api_token() -> (VolumeMount, Volume) {
    let token = ServiceAccountTokenProjection {
        path: "token".to_owned(),
        expiration_seconds: Some(API_TOKEN_SECONDS),
        ..ServiceAccountTokenProjection::default()
    };
    let certificate = ConfigMapProjection {
        name: "kube-root-ca.crt".to_owned(),
        items: Some(vec![KeyToPath {
            key: "ca.crt".to_owned(),
            path: "ca.crt".to_owned(),
            ..KeyToPath::default()
        }]),
        ..ConfigMapProjection::default()
    };
    let field_ref =
        ObjectFieldSelector { field_path: "metadata.namespace".to_owned(), ..ObjectFieldSelector::default() };
    let namespace = DownwardAPIProjection {
        items: Some(vec![DownwardAPIVolumeFile {
            path: "namespace".to_owned(),
            field_ref: Some(field_ref),
            ..DownwardAPIVolumeFile::default()
        }]),
    };
    let sources = vec![
        VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() },
        VolumeProjection { config_map: Some(certificate), ..VolumeProjection::default() },
        VolumeProjection { downward_api: Some(namespace), ..VolumeProjection::default() },
    ];
    let projected = ProjectedVolumeSource { sources: Some(sources), ..ProjectedVolumeSource::default() };
    let volume = Volume { name: API_TOKEN.to_owned(), projected: Some(projected), ..Volume::default() };
    (VolumeMount { read_only: Some(true), ..mount(API_TOKEN, API_TOKEN_DIR) }, volume)
}

fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), ..EnvVar::default() }
}

fn field(name: &str, path: &str) -> EnvVar {
    let field_ref = ObjectFieldSelector { field_path: path.to_owned(), ..ObjectFieldSelector::default() };
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource { field_ref: Some(field_ref), ..EnvVarSource::default() }),
        ..EnvVar::default()
    }
}

fn port(name: &str, number: u16) -> ContainerPort {
    ContainerPort { name: Some(name.to_owned()), container_port: number.into(), ..ContainerPort::default() }
}

/// Asks this path of the container's own pod. A restart of a driver interrupts calls, so it takes several
/// failures; the driver's own answer has a limit of 5 s.
fn probe(path: &str, port: u16) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(port.into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(10),
        timeout_seconds: Some(5),
        failure_threshold: Some(5),
        ..Probe::default()
    }
}

/// What a container that needs nothing of the host is allowed.
fn restricted() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
        read_only_root_filesystem: Some(true),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            ..SeccompProfile::default()
        }),
        ..SecurityContext::default()
    }
}

/// A container with its volumes; those of the pod are collected from its containers.
struct Built {
    container: Container,
    volumes: Vec<Volume>,
}
