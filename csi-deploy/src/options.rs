//! What no RPC reports: images, the cluster's side, and what the CSIDriver object declares.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use crate::rule::Rule;

/// What the manifests need in addition to the facts about the driver. With the feature `clap` these are flags,
/// and each field's documentation is its help.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[non_exhaustive]
pub struct Options {
    /// The image of the driver
    #[cfg_attr(feature = "clap", arg(long, value_name = "IMAGE", help_heading = "Images"))]
    pub image: String,

    /// The registry and path of the sidecars' images
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "PATH", help_heading = "Images", default_value = SIDECAR_REGISTRY)
    )]
    pub sidecar_registry: String,

    /// A Secret in the namespace with the credentials of the registry. Can be repeated
    #[cfg_attr(feature = "clap", arg(long, value_name = "SECRET", help_heading = "Images"))]
    pub image_pull_secret: Vec<String>,

    /// The namespace of all objects that have one. A namespace other than kube-system is created too
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "NAME", help_heading = "Objects", default_value = NAMESPACE)
    )]
    pub namespace: String,

    /// The beginning of the objects' names [default: the driver's name with dashes]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME", help_heading = "Objects"))]
    pub name: Option<String>,

    /// Where the controller runs: a deployment (with leader election), a stateful-set (one replica), or
    /// node-local (in the node's pods, each for its own node's storage)
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "KIND", help_heading = "Objects", default_value = "deployment")
    )]
    pub controller: Controller,

    /// The number of controller pods of a deployment
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "COUNT", help_heading = "Objects", default_value_t = 1)
    )]
    pub replicas: u16,

    /// The driver's controller elects a leader itself, as csi-kube's Election does. A process that waits has no
    /// socket, so no probe asks it, and the sidecars elect no leader
    #[cfg_attr(feature = "clap", arg(long, help_heading = "Controller"))]
    pub driver_elects: bool,

    /// The driver does not use csi-core's flags: the sidecars node-driver-registrar and livenessprobe
    /// register and probe it. It gets its socket in CSI_ENDPOINT and the node's name in NODE_ID
    #[cfg_attr(feature = "clap", arg(long, help_heading = "Driver"))]
    pub classic: bool,

    /// The driver has no HTTP endpoint (it was built without csi-core's feature http): the sidecar
    /// livenessprobe probes it
    #[cfg_attr(feature = "clap", arg(long, help_heading = "Driver"))]
    pub livenessprobe: bool,

    /// An argument of the driver in all pods. Can be repeated, also the next two
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "ARGUMENT", help_heading = "Driver", allow_hyphen_values = true)
    )]
    pub arg: Vec<String>,

    /// An argument of the driver in the controller's pods
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "ARGUMENT", help_heading = "Driver", allow_hyphen_values = true)
    )]
    pub controller_arg: Vec<String>,

    /// An argument of the driver in the node's pods
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "ARGUMENT", help_heading = "Driver", allow_hyphen_values = true)
    )]
    pub node_arg: Vec<String>,

    /// A variable of the driver's environment in all pods, as KEY=VALUE. Can be repeated. Not for secrets
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "KEY=VALUE", help_heading = "Driver", value_parser = pair)
    )]
    pub env: Vec<(String, String)>,

    /// The time that the driver's running operations have to end after SIGTERM; the pod gets 30 s more
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "TIME", help_heading = "Driver", default_value = "30s", value_parser = humantime::parse_duration)
    )]
    pub grace: Duration,

    /// The port of health and metrics
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "PORT", help_heading = "Driver", default_value_t = PORT)
    )]
    pub port: u16,

    /// The node's pods handle block devices: they get the host's /dev
    #[cfg_attr(feature = "clap", arg(long, help_heading = "Node"))]
    pub devices: bool,

    /// The node's pods use the host's network, so that network mounts outlive the pod
    #[cfg_attr(feature = "clap", arg(long, help_heading = "Node"))]
    pub host_network: bool,

    /// The node's pods see the host's processes
    #[cfg_attr(feature = "clap", arg(long, help_heading = "Node"))]
    pub host_pid: bool,

    /// A directory of the host that the node's pods get at the same path. Can be repeated
    #[cfg_attr(feature = "clap", arg(long, value_name = "PATH", help_heading = "Node"))]
    pub node_host_path: Vec<String>,

    /// The kubelet's directory on the host
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "PATH", help_heading = "Node", default_value = KUBELET)
    )]
    pub kubelet_dir: String,

    /// The controller's pods are privileged, for a controller that mounts
    #[cfg_attr(feature = "clap", arg(long, help_heading = "Controller"))]
    pub privileged_controller: bool,

    /// A directory of the host that the controller's pods get at the same path; they then run as root. Can
    /// be repeated
    #[cfg_attr(feature = "clap", arg(long, value_name = "PATH", help_heading = "Controller"))]
    pub controller_host_path: Vec<String>,

    /// What the driver itself may do in the API, as [GROUP/]RESOURCE:VERB,VERB such as nodes:get or
    /// storage.k8s.io/csinodes:get,watch; with @namespace at the end only in the driver's own namespace. Can
    /// be repeated, also the next one
    #[cfg_attr(feature = "clap", arg(long, value_name = "RULE", help_heading = "Controller"))]
    pub controller_rule: Vec<Rule>,

    /// The same for the node's pods
    #[cfg_attr(feature = "clap", arg(long, value_name = "RULE", help_heading = "Node"))]
    pub node_rule: Vec<Rule>,

    /// The kinds of volumes: persistent, ephemeral (inline in a pod), or both
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "KIND", help_heading = "CSIDriver", default_value = "persistent")
    )]
    pub lifecycle: Lifecycle,

    /// podInfoOnMount: the driver reads the pod's name from NodePublishVolume
    #[cfg_attr(feature = "clap", arg(long, help_heading = "CSIDriver"))]
    pub pod_info: bool,

    /// fsGroupPolicy: ReadWriteOnceWithFSType, File or None [default: File for a driver with
    /// VOLUME_MOUNT_GROUP, else ReadWriteOnceWithFSType]
    #[cfg_attr(feature = "clap", arg(long, value_name = "POLICY", help_heading = "CSIDriver"))]
    pub fs_group_policy: Option<FsGroupPolicy>,

    /// tokenRequests: a token of the pod's service account, as AUDIENCE or AUDIENCE=SECONDS. Can be repeated
    #[cfg_attr(feature = "clap", arg(long, value_name = "AUDIENCE[=SECONDS]", help_heading = "CSIDriver"))]
    pub token: Vec<TokenRequest>,

    /// requiresRepublish: the kubelet repeats NodePublishVolume, to renew the content
    #[cfg_attr(feature = "clap", arg(long, help_heading = "CSIDriver"))]
    pub requires_republish: bool,

    /// seLinuxMount: every volume can be mounted with its own SELinux context
    #[cfg_attr(feature = "clap", arg(long, help_heading = "CSIDriver"))]
    pub selinux_mount: bool,

    /// nodeAllocatableUpdatePeriodSeconds: how often the kubelet asks for the number of volumes that the
    /// node takes, in seconds; at least 10
    #[cfg_attr(feature = "clap", arg(long, value_name = "SECONDS", help_heading = "CSIDriver"))]
    pub node_allocatable_update_period: Option<u32>,

    /// The filesystem of volumes whose StorageClass names none; the kubelet applies fsGroup only to volumes
    /// with one
    #[cfg_attr(feature = "clap", arg(long, value_name = "TYPE", help_heading = "Classes"))]
    pub default_fstype: Option<String>,

    /// A StorageClass, as NAME or NAME,KEY=VALUE,… with its parameters. This flag and those of the other
    /// classes can be repeated
    #[cfg_attr(feature = "clap", arg(long, value_name = "CLASS", help_heading = "Classes"))]
    pub storage_class: Vec<Class>,

    /// A VolumeAttributesClass, with mutable parameters
    #[cfg_attr(feature = "clap", arg(long, value_name = "CLASS", help_heading = "Classes"))]
    pub attributes_class: Vec<Class>,

    /// A VolumeSnapshotClass
    #[cfg_attr(feature = "clap", arg(long, value_name = "CLASS", help_heading = "Classes"))]
    pub snapshot_class: Vec<Class>,

    /// A VolumeGroupSnapshotClass
    #[cfg_attr(feature = "clap", arg(long, value_name = "CLASS", help_heading = "Classes"))]
    pub group_snapshot_class: Vec<Class>,

    /// A Secret that the classes refer to, as USE=NAMESPACE/NAME. USE is provisioner, controller-publish,
    /// controller-expand, controller-modify, node-stage, node-publish, node-expand, snapshotter or
    /// group-snapshotter. Can be repeated
    #[cfg_attr(feature = "clap", arg(long, value_name = "REFERENCE", help_heading = "Classes"))]
    pub secret: Vec<SecretReference>,

    /// The Secret with the certificate (tls.crt, tls.key) by which the sidecar snapshot-metadata serves
    /// backup programs
    #[cfg_attr(feature = "clap", arg(long, value_name = "SECRET", help_heading = "Classes"))]
    pub snapshot_metadata_secret: Option<String>,
}

/// Where the sidecars' maintainers publish the images. `sidecar_registry` names another place.
const SIDECAR_REGISTRY: &str = "registry.k8s.io/sig-storage";
const NAMESPACE: &str = "kube-system";
const KUBELET: &str = "/var/lib/kubelet";
/// The port in docs/deployment.md, and livenessprobe's default.
const PORT: u16 = 9808;

impl Options {
    /// Creates the default options for this image of the driver.
    pub fn new(image: impl Into<String>) -> Self {
        Self {
            image: image.into(),
            sidecar_registry: SIDECAR_REGISTRY.to_owned(),
            image_pull_secret: Vec::new(),
            namespace: NAMESPACE.to_owned(),
            name: None,
            controller: Controller::Deployment,
            replicas: 1,
            driver_elects: false,
            classic: false,
            livenessprobe: false,
            arg: Vec::new(),
            controller_arg: Vec::new(),
            node_arg: Vec::new(),
            env: Vec::new(),
            grace: Duration::from_secs(30),
            port: PORT,
            devices: false,
            host_network: false,
            host_pid: false,
            node_host_path: Vec::new(),
            kubelet_dir: KUBELET.to_owned(),
            privileged_controller: false,
            controller_host_path: Vec::new(),
            controller_rule: Vec::new(),
            node_rule: Vec::new(),
            lifecycle: Lifecycle::Persistent,
            pod_info: false,
            fs_group_policy: None,
            token: Vec::new(),
            requires_republish: false,
            selinux_mount: false,
            node_allocatable_update_period: None,
            default_fstype: None,
            storage_class: Vec::new(),
            attributes_class: Vec::new(),
            snapshot_class: Vec::new(),
            group_snapshot_class: Vec::new(),
            secret: Vec::new(),
            snapshot_metadata_secret: None,
        }
    }
}

/// An enum with a text form for each variant.
macro_rules! choice {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $name { $($(#[$doc])* $variant),+ }

        impl $name {
            /// Returns the text form, as on the command line.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(format!("{text:?} is not one of {}", [$($text),+].join(", "))),
                }
            }
        }
    };
}

choice! {
    /// Where the controller runs.
    Controller {
        /// A Deployment; the sidecars elect a leader.
        Deployment = "deployment",
        /// A StatefulSet with one replica, which Kubernetes never runs twice; no leader election.
        StatefulSet = "stateful-set",
        /// In the pods of the node's DaemonSet, each for the storage of its own node.
        NodeLocal = "node-local",
    }
}

choice! {
    /// The kinds of volumes that pods can use (`volumeLifecycleModes`).
    Lifecycle {
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
    FsGroupPolicy {
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
    SecretUse {
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
#[non_exhaustive]
pub struct TokenRequest {
    /// The audience; empty means the API server's own.
    pub audience: String,
    /// How long it is valid, in seconds; at least 600.
    pub seconds: Option<u32>,
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
                return Err(format!("the parameter {key} is given twice"));
            }
        }
        Ok(class)
    }
}

/// A Secret of the cluster, and what it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SecretReference {
    /// Which calls get it.
    pub used_for: SecretUse,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl FromStr for SecretReference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("{text:?} is not USE=NAMESPACE/NAME, such as provisioner=kube-system/storage");
        let (used_for, place) = text.split_once('=').ok_or_else(form)?;
        let (namespace, name) = place.split_once('/').ok_or_else(form)?;
        Ok(Self { used_for: used_for.parse()?, namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not KEY=VALUE")),
    }
}
