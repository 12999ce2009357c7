//! The pods of the driver: the controller's and the node's.
//!
//! | file | has |
//! |---|---|
//! | `driver` | the container of the driver: arguments, probes, what it needs of the host |
//! | `sidecar` | the containers next to it |
//! | `workload` | Deployment, StatefulSet, DaemonSet around the pods |

mod driver;
mod sidecar;
mod workload;

pub(crate) use sidecar::SNAPSHOT_METADATA_PORT;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource, HTTPGetAction,
    HostPathVolumeSource, ObjectFieldSelector, Probe, SeccompProfile, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::manifests::Files;
use crate::plan::Plan;
use crate::{Error, Options};

/// The pods: those of the controller and those of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Controller,
    Node,
}

impl Part {
    fn as_str(self) -> &'static str {
        match self {
            Self::Controller => "controller",
            Self::Node => "node",
        }
    }

    /// The name of its objects.
    pub(crate) fn name(self, plan: &Plan<'_>) -> String {
        format!("{}-{}", plan.name, self.as_str())
    }

    /// The directories of the host that the options give to its driver, with the option's name.
    pub(crate) fn host_paths(self, options: &Options) -> (&'static str, &[String]) {
        match self {
            Self::Controller => ("controller-host-path", &options.controller_host_path),
            Self::Node => ("node-host-path", &options.node_host_path),
        }
    }

    /// Where its driver has other mounts. Kubernetes refuses two mounts at one path.
    pub(crate) fn own_paths(self, options: &Options) -> Vec<&str> {
        let mut paths = vec![SOCKET_DIR, TEMPORARY_DIR];
        if self == Self::Node {
            paths.extend([REGISTRATION_DIR, &options.kubelet_dir]);
            paths.extend(options.devices.then_some(DEVICES_DIR));
        }
        paths
    }

    pub(crate) fn rbac_file(self) -> &'static str {
        match self {
            Self::Controller => "rbac-controller.yaml",
            Self::Node => "rbac-node.yaml",
        }
    }
}

impl Plan<'_> {
    /// The kinds of pods that the driver has.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let controller = self.has_controller_pods().then_some(Part::Controller);
        controller.into_iter().chain([Part::Node]).collect()
    }
}

pub(crate) fn add(plan: &Plan<'_>, files: &mut Files) -> Result<(), Error> {
    plan.parts().into_iter().try_for_each(|part| workload::add(plan, part, files))
}

/// The labels of an object; those of a part's pods also select them.
pub(crate) fn labels(plan: &Plan<'_>, part: Option<Part>) -> BTreeMap<String, String> {
    let name = ("app.kubernetes.io/name".to_owned(), plan.name.clone());
    let part = part.map(|part| ("app.kubernetes.io/component".to_owned(), part.as_str().to_owned()));
    std::iter::once(name).chain(part).collect()
}

/// The metadata of an object of a part, in the namespace.
pub(crate) fn metadata(plan: &Plan<'_>, name: String, part: Part) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(plan.options.namespace.clone()),
        labels: Some(labels(plan, Some(part))),
        ..ObjectMeta::default()
    }
}

/// The name of the volume with the driver's socket.
const SOCKET: &str = "socket";
/// The path of its directory in the containers.
const SOCKET_DIR: &str = "/csi";
/// The path of the kubelet's directory for registration, in the containers that register.
const REGISTRATION_DIR: &str = "/registration";
/// The driver's own files, which end with the pod.
const TEMPORARY_DIR: &str = "/tmp";
const DEVICES_DIR: &str = "/dev";

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

fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), ..EnvVar::default() }
}

/// A variable with a field of the pod.
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
