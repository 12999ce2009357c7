//! Which rules of role-based access control each part of this crate needs: plain data, from which manifests
//! are made.
//!
//! ```
//! use csi_kube::rules;
//! let texts: Vec<String> = rules::STARTUP_TAINT.iter().map(ToString::to_string).collect();
//! assert_eq!(texts, ["nodes:get,patch", "storage.k8s.io/csinodes:get"]);
//! ```
//!
//! With the feature `manifests` a driver declares them for its manifests:
//!
//! ```
//! # #[cfg(feature = "manifests")] {
//! use csi_core::Plugin;
//! use csi_kube::rules;
//!
//! let plugin = Plugin::new("dirs.csi.example.org", "1").declare(|options| {
//!     options.node_rule.extend(rules::NODE_LABELS.iter().map(Into::into));
//!     options.node_rule.extend(rules::STARTUP_TAINT.iter().map(Into::into));
//!     options.controller_rule.extend(rules::LEADER_ELECTION.iter().map(Into::into));
//! });
//! # drop(plugin); }
//! ```

use std::fmt;

/// One rule of a Role or ClusterRole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The resource, in the plural as in a rule: `nodes`.
    pub resource: &'static str,
    /// The verbs: `get`, `list` …
    pub verbs: &'static [&'static str],
    /// Whether a Role in the driver's namespace is enough.
    pub scope: Scope,
    /// What the driver does with it.
    pub reason: &'static str,
}

/// The form in which `csi manifests` takes a rule: `[GROUP/]RESOURCE:VERB,VERB`, with `@namespace` at the end for
/// [`Scope::Namespace`].
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.group.is_empty() { "" } else { "/" };
        let at = if self.scope == Scope::Namespace { "@namespace" } else { "" };
        write!(f, "{}{slash}{}:{}{at}", self.group, self.resource, self.verbs.join(","))
    }
}

/// The rule as a driver declares it for its manifests.
#[cfg(feature = "manifests")]
impl From<&Rule> for csi_core::deploy::Rule {
    fn from(rule: &Rule) -> Self {
        let declared = Self::new(rule.group, rule.resource, rule.verbs.iter().copied());
        if rule.scope == Scope::Namespace { declared.in_namespace() } else { declared }
    }
}

/// Where a rule must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// In the whole cluster: a ClusterRole.
    Cluster,
    /// In the driver's own namespace: a Role.
    Namespace,
}

const fn cluster(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    reason: &'static str,
) -> Rule {
    Rule { group, resource, verbs, scope: Scope::Cluster, reason }
}

const GET: &[&str] = &["get"];
const LIST: &[&str] = &["list"];
const CACHE: &[&str] = &["get", "list", "watch"];
const STORAGE: &str = "storage.k8s.io";

/// [`NodeLabels`](crate::NodeLabels).
pub const NODE_LABELS: &[Rule] = &[cluster("", "nodes", GET, "read the labels of the own node")];

/// [`StartupTaint`](crate::StartupTaint).
pub const STARTUP_TAINT: &[Rule] = &[
    cluster("", "nodes", &["get", "patch"], "remove the start-up taint of the own node"),
    cluster(STORAGE, "csinodes", GET, "see that the driver is registered"),
];

/// [`Election`](crate::Election).
pub const LEADER_ELECTION: &[Rule] = &[Rule {
    group: "coordination.k8s.io",
    resource: "leases",
    verbs: &["get", "create", "update"],
    scope: Scope::Namespace,
    reason: "elect the leader",
}];

/// [`Events`](crate::Events).
pub const EVENTS: &[Rule] =
    &[cluster("events.k8s.io", "events", &["create", "patch"], "write and count events of objects")];

/// [`NodeEvents`](crate::NodeEvents).
pub const NODE_EVENTS: &[Rule] = &[
    cluster("events.k8s.io", "events", &["create", "patch"], "write and count events of the own node"),
    cluster("", "pods", &["list"], "name the pod that keeps a volume in use"),
];

/// [`Drain`](crate::Drain).
pub const DRAIN: &[Rule] = &[
    cluster("", "nodes", GET, "see whether the own node is being drained"),
    cluster(STORAGE, "volumeattachments", &["list", "watch"], "wait until the volumes are detached"),
];

/// [`FusePods`](crate::FusePods).
pub const FUSE_PODS: &[Rule] = &[
    cluster("", "nodes", GET, "see which node a volume is attached to"),
    cluster("", "persistentvolumes", LIST, "find the volumes of the attachments"),
    cluster(STORAGE, "volumeattachments", LIST, "find pods of volumes that are not attached"),
    cluster("", "pods", LIST, "find the pods that use a volume whose pod has ended"),
    cluster("events.k8s.io", "events", &["create", "patch"], "write why a pod has ended"),
];
/// [`FusePods`](crate::FusePods), in the namespace of the pods, which is not the driver's: `--fuse-pods` of the manifests
/// makes this Role.
pub const FUSE_PODS_NAMESPACE: &[Rule] = &[
    Rule {
        group: "",
        resource: "pods",
        verbs: &["get", "list", "create", "patch", "delete"],
        scope: Scope::Namespace,
        reason: "make and delete the pods of volumes, and note which volumes share one",
    },
    Rule {
        group: "",
        resource: "podtemplates",
        verbs: GET,
        scope: Scope::Namespace,
        reason: "read what these pods are made from",
    },
];

/// [`Objects::claim`](crate::Objects::claim).
pub const CLAIMS: &[Rule] = &[cluster("", "persistentvolumeclaims", GET, "read the claim of a volume")];
/// [`Objects::volume`](crate::Objects::volume).
pub const VOLUMES: &[Rule] = &[cluster("", "persistentvolumes", GET, "read the object of a volume")];
/// [`Objects::pod`](crate::Objects::pod).
pub const PODS: &[Rule] = &[cluster("", "pods", GET, "read the pod of a volume")];
/// [`Objects::storage_class`](crate::Objects::storage_class).
pub const STORAGE_CLASSES: &[Rule] = &[cluster(STORAGE, "storageclasses", GET, "read the class of a volume")];
/// [`Objects::namespace`](crate::Objects::namespace).
pub const NAMESPACES: &[Rule] = &[cluster("", "namespaces", GET, "read the namespace of a claim or pod")];

/// [`Objects::cache_claims`](crate::Objects::cache_claims), with what [`CLAIMS`] has.
pub const CACHED_CLAIMS: &[Rule] =
    &[cluster("", "persistentvolumeclaims", CACHE, "keep the claims in memory")];
/// [`Objects::cache_volumes`](crate::Objects::cache_volumes), with what [`VOLUMES`] has.
pub const CACHED_VOLUMES: &[Rule] =
    &[cluster("", "persistentvolumes", CACHE, "keep the objects of volumes in memory")];
/// [`Objects::cache_pods_of`](crate::Objects::cache_pods_of), with what [`PODS`] has.
pub const CACHED_PODS: &[Rule] = &[cluster("", "pods", CACHE, "keep the pods of the own node in memory")];
/// [`Objects::cache_storage_classes`](crate::Objects::cache_storage_classes), with what
/// [`STORAGE_CLASSES`] has.
pub const CACHED_STORAGE_CLASSES: &[Rule] =
    &[cluster(STORAGE, "storageclasses", CACHE, "keep the classes in memory")];
/// [`Objects::cache_namespaces`](crate::Objects::cache_namespaces), with what [`NAMESPACES`] has.
pub const CACHED_NAMESPACES: &[Rule] = &[cluster("", "namespaces", CACHE, "keep the namespaces in memory")];

/// All parts by the names of their constants, for a program that lets its user choose.
pub const ALL: &[(&str, &[Rule])] = &[
    ("NODE_LABELS", NODE_LABELS),
    ("STARTUP_TAINT", STARTUP_TAINT),
    ("LEADER_ELECTION", LEADER_ELECTION),
    ("EVENTS", EVENTS),
    ("NODE_EVENTS", NODE_EVENTS),
    ("DRAIN", DRAIN),
    ("FUSE_PODS", FUSE_PODS),
    ("FUSE_PODS_NAMESPACE", FUSE_PODS_NAMESPACE),
    ("CLAIMS", CLAIMS),
    ("CACHED_CLAIMS", CACHED_CLAIMS),
    ("VOLUMES", VOLUMES),
    ("CACHED_VOLUMES", CACHED_VOLUMES),
    ("PODS", PODS),
    ("CACHED_PODS", CACHED_PODS),
    ("STORAGE_CLASSES", STORAGE_CLASSES),
    ("CACHED_STORAGE_CLASSES", CACHED_STORAGE_CLASSES),
    ("NAMESPACES", NAMESPACES),
    ("CACHED_NAMESPACES", CACHED_NAMESPACES),
];
