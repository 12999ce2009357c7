//! The two parts of a driver, and the paths that its containers have.

/// The path of its directory in the containers.
pub(crate) const SOCKET_DIR: &str = "/csi";
/// The path of the kubelet's directory for registration, in the containers that register.
pub(crate) const REGISTRATION_DIR: &str = "/registration";
/// The driver's own files, which end with the pod.
pub(crate) const TEMPORARY_DIR: &str = "/tmp";
pub(crate) const DEVICES_DIR: &str = "/dev";
/// Where the kubelet has a directory for each pod.
pub(crate) const POD_LOGS_DIR: &str = "/var/log/pods";
/// Where client libraries look for it.
pub(crate) const API_TOKEN_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The pods: those of the controller and those of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Controller,
    Node,
}

impl Part {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Controller => "controller",
            Self::Node => "node",
        }
    }

    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Controller => "controller.yaml",
            Self::Node => "node.yaml",
        }
    }

    pub(crate) fn rbac_file(self) -> &'static str {
        match self {
            Self::Controller => "rbac-controller.yaml",
            Self::Node => "rbac-node.yaml",
        }
    }
}
