//! What no RPC reports: images, the cluster's side, and what the CSIDriver object declares.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use crate::part::{
    API_TOKEN_DIR, DEVICES_DIR, POD_LOGS_DIR, Part, REGISTRATION_DIR, SOCKET_DIR, TEMPORARY_DIR,
};
use crate::rule::Rule;
use crate::settings::{FilesDirectory, SecretVariable};

/// Where the sidecars' maintainers publish the images. `sidecar_registry` names another place.
const SIDECAR_REGISTRY: &str = "registry.k8s.io/sig-storage";
const NAMESPACE: &str = "kube-system";
pub(crate) const FUSE_MEMORY: &str = "1Gi";
const KUBELET: &str = "/var/lib/kubelet";
/// The port in docs/manifest-objects.md, and livenessprobe's default.
const PORT: u16 = 9808;

/// Declares the options: under each heading of the help a field with its default, if that is not the type's
/// own, and the attributes of its flag.
macro_rules! options {
    ($($heading:literal: $($(#[$doc:meta])+ $field:ident: $type:ty $(= $default:expr)?, [$($flag:tt)*];)+)+) => {
        /// What the manifests need in addition to the facts about the driver. With the feature `clap` these
        /// are flags, and each field's documentation is its help.
        #[derive(Debug, Clone)]
        #[cfg_attr(feature = "clap", derive(clap::Args))]
        #[cfg_attr(feature = "clap", command(about = None, long_about = None))]
        #[non_exhaustive]
        pub struct Options {
            $($(
                $(#[$doc])+
                #[cfg_attr(feature = "clap", arg(long, help_heading = $heading, $($flag)*))]
                pub $field: $type,
            )+)+
        }

        impl Options {
            /// Creates the default options for this image of the driver.
            pub fn new(image: impl Into<String>) -> Self {
                Self { image: image.into(), ..Self::defaults() }
            }

            fn defaults() -> Self {
                Self { $($($field: default!($($default)?),)+)+ }
            }
        }
    };
}

macro_rules! default {
    () => {
        Default::default()
    };
    ($default:expr) => {
        $default
    };
}

options! {
    "Images":
    /// The image of the driver
    image: String, [value_name = "IMAGE"];

    /// The registry and path of the sidecars' images
    sidecar_registry: String = SIDECAR_REGISTRY.to_owned(),
        [value_name = "PATH", default_value = SIDECAR_REGISTRY];

    /// A Secret in the namespace with the credentials of the registry. Can be repeated
    image_pull_secret: Vec<String>, [value_name = "SECRET"];

    "Objects":
    /// The namespace of all objects that have one. A namespace other than kube-system is created too
    namespace: String = NAMESPACE.to_owned(), [value_name = "NAME", default_value = NAMESPACE];

    /// The beginning of the objects' names [default: the driver's name with dashes]
    name: Option<String>, [value_name = "NAME"];

    /// Where the controller runs: a deployment (with leader election), a stateful-set (one replica), or
    /// node-local (in the node's pods, each for its own node's storage)
    controller: Controller = Controller::Deployment, [value_name = "KIND", default_value = "deployment"];

    /// The number of controller pods of a deployment
    replicas: u16 = 1, [value_name = "COUNT", default_value_t = 1];

    "Controller":
    /// The driver does the work of the controller's sidecars itself, as csi-controllers' run does: the pod has one
    /// container, and one leader among all replicas
    no_sidecars: bool, [];

    /// The driver's controller elects a leader itself, as csi-kube's Election does. A process that waits has no
    /// socket, so no probe asks it, and the sidecars elect no leader
    driver_elects: bool, [];

    /// The controller's pods are privileged, for a controller that mounts
    privileged_controller: bool, [];

    /// A directory of the host that the controller's pods get at the same path; they then run as root. Can
    /// be repeated
    controller_host_path: Vec<String>, [value_name = "PATH"];

    /// The controller's pods see the mounts of volumes on their node, and with --devices the host's /dev; they
    /// then run as root. For a controller that freezes a filesystem, or looks for its users, on the only node
    controller_sees_mounts: bool, [];

    /// What the driver itself may do in the API, as [GROUP/]RESOURCE:VERB,VERB such as nodes:get or
    /// storage.k8s.io/csinodes:get,watch; with @namespace at the end only in the driver's own namespace. Can
    /// be repeated
    controller_rule: Vec<Rule>, [value_name = "RULE"];

    "Driver":
    /// The driver does not use csi-core's flags: the sidecars node-driver-registrar and livenessprobe
    /// register and probe it. It gets its socket in CSI_ENDPOINT and the node's name in NODE_ID
    classic: bool, [];

    /// The driver has no HTTP endpoint (it was built without csi-core's feature http): the sidecar
    /// livenessprobe probes it
    livenessprobe: bool, [];

    /// An argument of the driver in all pods. Can be repeated, also the next two
    arg: Vec<String>, [value_name = "ARGUMENT", allow_hyphen_values = true];

    /// An argument of the driver in the controller's pods
    controller_arg: Vec<String>, [value_name = "ARGUMENT", allow_hyphen_values = true];

    /// An argument of the driver in the node's pods
    node_arg: Vec<String>, [value_name = "ARGUMENT", allow_hyphen_values = true];

    /// A variable of the driver's environment in all pods, as KEY=VALUE. Can be repeated. Not for secrets
    env: Vec<(String, String)>, [value_name = "KEY=VALUE", value_parser = pair];

    /// A directory of the driver in which each key of a Secret of its namespace is a file, as PATH=SECRET. Files
    /// follow a change of the Secret. Only the controller's pods get it; @node at the end means only the node's,
    /// @all both. Can be repeated, also the next two
    secret_files: Vec<FilesDirectory>, [value_name = "PATH=SECRET[@PODS]"];

    /// The same with a ConfigMap
    config_files: Vec<FilesDirectory>, [value_name = "PATH=CONFIGMAP[@PODS]"];

    /// A variable of the driver's environment from a Secret of its namespace, as NAME=SECRET/KEY with the same
    /// ends. It keeps its value until the pod ends, and the programs that the driver starts can read it: prefer
    /// --secret-files
    secret_env: Vec<SecretVariable>, [value_name = "NAME=SECRET/KEY[@PODS]"];

    /// The time that the driver's running operations have to end after SIGTERM; the pod gets 30 s more
    grace: Duration = Duration::from_secs(30),
        [value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration];

    /// The port of health and metrics
    port: u16 = PORT, [value_name = "PORT", default_value_t = PORT];

    /// A namespace whose pods can read the driver's health and metrics, such as that of Prometheus. Can be
    /// repeated; without it only the kubelet can
    metrics_from: Vec<String>, [value_name = "NAMESPACE"];

    /// A ServiceMonitor of the Prometheus operator, with the Service that it selects, for the driver and the sidecars
    service_monitor: bool, [];

    /// A PrometheusRule with alerts on the driver's metrics
    prometheus_rule: bool, [];

    "Node":
    /// The node's pods handle block devices: they get the host's /dev
    devices: bool, [];

    /// The node's pods use the host's network, so that network mounts outlive the pod
    host_network: bool, [];

    /// The node's pods see the host's processes (hostPID). A pod that keeps a copy of a volume's mount keeps its
    /// device in use: only then does NodeUnstageVolume name that pod
    host_pid: bool, [];

    /// A directory of the host that the node's pods get at the same path. Can be repeated
    node_host_path: Vec<String>, [value_name = "PATH"];

    /// The kubelet's directory on the host
    kubelet_dir: String = KUBELET.to_owned(), [value_name = "PATH", default_value = KUBELET];

    /// What the node's pods may do in the API, as --controller-rule. Can be repeated
    node_rule: Vec<Rule>, [value_name = "RULE"];

    /// The driver's FUSE programs run in pods of their own: per-node, in one pod on each node, or per-volume, in pods that
    /// the driver's controller makes by csi-kube's FusePods. Their namespace has the name of the driver's objects and
    /// -fuse
    fuse_pods: Option<FusePods>, [value_name = "KIND"];

    /// With --fuse-pods the image of the FUSE programs, if it is not the driver's. The driver's program is copied into
    /// their pods, and must be linked statically
    fuse_image: Option<String>, [value_name = "IMAGE"];

    /// With --fuse-pods the memory that each of their pods reserves and is limited to: per-node that of all FUSE programs
    /// of a node
    fuse_memory: String = FUSE_MEMORY.to_owned(), [value_name = "QUANTITY", default_value = FUSE_MEMORY];

    /// With --fuse-pods the priority class of their pods [default: system-node-critical with per-node, none with
    /// per-volume]
    fuse_priority_class: Option<String>, [value_name = "NAME"];

    "CSIDriver":
    /// The kinds of volumes: persistent, ephemeral (inline in a pod), or both
    lifecycle: Lifecycle = Lifecycle::Persistent, [value_name = "KIND", default_value = "persistent"];

    /// podInfoOnMount: the driver reads the pod's name from NodePublishVolume
    pod_info: bool, [];

    /// fsGroupPolicy: ReadWriteOnceWithFSType, File or None [default: File for a driver with
    /// VOLUME_MOUNT_GROUP, else ReadWriteOnceWithFSType]
    fs_group_policy: Option<FsGroupPolicy>, [value_name = "POLICY"];

    /// tokenRequests: a token of the pod's service account, as AUDIENCE or AUDIENCE=SECONDS. Can be repeated
    token: Vec<TokenRequest>, [value_name = "AUDIENCE[=SECONDS]"];

    /// serviceAccountTokenInSecrets: the tokens are in the secrets of NodePublishVolume, and no longer in its volume
    /// context. Kubernetes 1.35 and newer
    service_account_token_in_secrets: bool, [];

    /// requiresRepublish: the kubelet repeats NodePublishVolume, to renew the content
    requires_republish: bool, [];

    /// seLinuxMount: every volume can be mounted with its own SELinux context
    selinux_mount: bool, [];

    /// preventPodSchedulingIfMissing: a pod with a volume of the driver goes only to a node on which the driver is
    /// registered. Kubernetes 1.36 and newer
    prevent_pod_scheduling_if_missing: bool, [];

    /// nodeAllocatableUpdatePeriodSeconds: how often the kubelet asks for the number of volumes that the
    /// node takes, in seconds; at least 10. Kubernetes 1.33 and newer
    node_allocatable_update_period: Option<u32>, [value_name = "SECONDS"];

    "Classes":
    /// The filesystem of volumes whose StorageClass names none; the kubelet applies fsGroup only to volumes
    /// with one
    default_fstype: Option<String>, [value_name = "TYPE"];

    /// A StorageClass, as NAME or NAME,KEY=VALUE,… with its parameters. This flag and those of the other
    /// classes can be repeated
    storage_class: Vec<Class>, [value_name = "CLASS"];

    /// A claim can name a snapshot or a claim of another namespace as its source, if a ReferenceGrant there allows
    /// it. An alpha feature: the cluster needs the feature gate CrossNamespaceVolumeDataSource
    cross_namespace_data_sources: bool, [];

    /// A VolumeAttributesClass, with mutable parameters
    attributes_class: Vec<Class>, [value_name = "CLASS"];

    /// A VolumeSnapshotClass
    snapshot_class: Vec<Class>, [value_name = "CLASS"];

    /// A VolumeGroupSnapshotClass
    group_snapshot_class: Vec<Class>, [value_name = "CLASS"];

    /// A Secret that the classes refer to, as USE=NAMESPACE/NAME. USE is provisioner, controller-publish,
    /// controller-expand, controller-modify, node-stage, node-publish, node-expand, snapshotter or
    /// group-snapshotter. Can be repeated
    secret: Vec<SecretReference>, [value_name = "REFERENCE"];

    /// The Secret with the certificate (tls.crt, tls.key) by which the sidecar snapshot-metadata serves
    /// backup programs
    snapshot_metadata_secret: Option<String>, [value_name = "SECRET"];

    /// The CA of that certificate, in PEM; the flag takes a file with it. The SnapshotMetadataService object is then
    /// made: from it backup programs read the address, the CA, and the audience of their tokens, the driver's name
    snapshot_metadata_ca: Option<String>, [value_name = "FILE", value_parser = file];
}

/// An enum with a text form for each variant.
macro_rules! choice {
    ($(#[$meta:meta])* $vis:vis $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        $vis enum $name { $($(#[$doc])* $variant),+ }

        impl $name {
            #[allow(dead_code, reason = "not every choice is listed")]
            const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            /// Returns the text form, as on the command line.
            #[allow(dead_code, reason = "not every choice is printed")]
            pub(crate) fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    // clap says what was given.
                    _ => Err(format!("write one of {}", [$($text),+].join(", "))),
                }
            }
        }
    };
}

choice! {
    /// Where the controller runs.
    pub Controller {
        /// A Deployment; the sidecars elect a leader.
        Deployment = "deployment",
        /// A StatefulSet with one replica, which Kubernetes never runs twice; no leader election.
        StatefulSet = "stateful-set",
        /// In the pods of the node's DaemonSet, each for the storage of its own node.
        NodeLocal = "node-local",
    }
}

choice! {
    /// The pods of a driver's FUSE programs.
    pub FusePods {
        /// One on each node, of a DaemonSet.
        PerNode = "per-node",
        /// One for each volume, made by the driver's controller.
        PerVolume = "per-volume",
    }
}

choice! {
    /// The kinds of volumes that pods can use (`volumeLifecycleModes`).
    pub Lifecycle {
        /// Volumes of PersistentVolumeClaims.
        Persistent = "persistent",
        /// Volumes inline in the pod, published without being created.
        Ephemeral = "ephemeral",
        /// Both.
        Both = "both",
    }
}

choice! {
    /// Whether the kubelet gives a volume's files to the pod's group (`fsGroupPolicy`).
    pub FsGroupPolicy {
        /// Only for a volume with a filesystem type that one node writes.
        ReadWriteOnceWithFsType = "ReadWriteOnceWithFSType",
        /// Always.
        File = "File",
        /// Never.
        None = "None",
    }
}

choice! {
    /// Which calls a secret is for.
    pub(crate) SecretUse {
        /// CreateVolume and DeleteVolume.
        Provisioner = "provisioner",
        /// ControllerPublishVolume and ControllerUnpublishVolume.
        ControllerPublish = "controller-publish",
        /// ControllerExpandVolume.
        ControllerExpand = "controller-expand",
        /// ControllerModifyVolume.
        ControllerModify = "controller-modify",
        /// NodeStageVolume.
        NodeStage = "node-stage",
        /// NodePublishVolume.
        NodePublish = "node-publish",
        /// NodeExpandVolume.
        NodeExpand = "node-expand",
        /// CreateSnapshot and DeleteSnapshot.
        Snapshotter = "snapshotter",
        /// The same for groups of volumes.
        GroupSnapshotter = "group-snapshotter",
    }
}

/// A token that the kubelet requests for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRequest {
    /// The audience; empty means the API server's own.
    pub(crate) audience: String,
    /// How long it is valid, in seconds; at least 600.
    pub(crate) seconds: Option<u32>,
}

impl FromStr for TokenRequest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (audience, seconds) = match text.rsplit_once('=') {
            Some((audience, seconds)) => {
                let seconds =
                    seconds.parse().map_err(|_| format!("{seconds:?} is not a number of seconds"))?;
                (audience, Some(seconds))
            }
            None => (text, None),
        };
        Ok(Self { audience: audience.to_owned(), seconds })
    }
}

/// The name and the parameters of a class.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Class {
    /// The name of the object.
    pub name: String,
    /// What the driver gets with CreateVolume, ControllerModifyVolume or CreateSnapshot.
    pub parameters: BTreeMap<String, String>,
}

impl Class {
    /// Creates a class without parameters.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), parameters: BTreeMap::new() }
    }
}

impl FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let mut class = Self::new(parts.next().unwrap_or_default());
        for part in parts {
            let (key, value) = pair(part)?;
            if class.parameters.insert(key.clone(), value).is_some() {
                return Err(format!("the parameter {key:?} is given twice"));
            }
        }
        Ok(class)
    }
}

/// A Secret of the cluster, and what it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretReference {
    /// Which calls get it.
    pub(crate) used_for: SecretUse,
    /// Its namespace.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
}

impl FromStr for SecretReference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Without the text: it can be a secret, written in place of a reference to one.
        let form = || "write USE=NAMESPACE/NAME, such as provisioner=kube-system/storage".to_owned();
        let (used_for, place) = text.split_once('=').ok_or_else(form)?;
        let (namespace, name) = place.split_once('/').ok_or_else(form)?;
        let used_for = used_for.parse().map_err(|_: String| {
            let uses = SecretUse::ALL.map(SecretUse::as_str).join(", ");
            format!("its USE is not one of {uses}")
        })?;
        Ok(Self { used_for, namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

/// The text of a file.
#[cfg(feature = "clap")]
fn file(path: &str) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not KEY=VALUE")),
    }
}

/// The paths in the pods.
impl Options {
    /// The directories of the host that are given to the driver of this part, with the option's name.
    pub(crate) fn host_paths(&self, part: Part) -> (&'static str, &[String]) {
        match part {
            Part::Controller => ("controller-host-path", &self.controller_host_path),
            Part::Node => ("node-host-path", &self.node_host_path),
        }
    }

    /// All paths at which something is given to the driver of this part, each with the option's name.
    pub(crate) fn given_paths(&self, part: Part) -> Vec<(&'static str, &str)> {
        let (field, host_paths) = self.host_paths(part);
        let mut paths: Vec<_> = host_paths.iter().map(|path| (field, path.as_str())).collect();
        for (field, directories) in
            [("secret-files", &self.secret_files), ("config-files", &self.config_files)]
        {
            let directories = directories.iter().filter(|directory| directory.pods.have(part));
            paths.extend(directories.map(|directory| (field, directory.path.as_str())));
        }
        paths
    }

    /// Where the driver of this part has other mounts. Kubernetes refuses two mounts at one path.
    pub(crate) fn own_paths(&self, part: Part) -> Vec<&str> {
        let mut paths = vec![SOCKET_DIR, TEMPORARY_DIR, API_TOKEN_DIR];
        if part == Part::Node {
            paths.push(REGISTRATION_DIR);
            paths.extend(self.fuse_pods.map(|_| POD_LOGS_DIR));
        }
        if part == Part::Node || self.controller_sees_mounts {
            paths.push(&self.kubelet_dir);
            paths.extend(self.devices.then_some(DEVICES_DIR));
        }
        paths
    }
}
