//! What each sidecar is allowed to do, as a table, and the objects made from it.
//!
//! The rules are those of `deploy/kubernetes/rbac.yaml` of each sidecar at its version, without those that
//! its flags make needless, and without verbs that its code never uses. A rule that is not in that file has its
//! reason in the table.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Value, json};

use crate::files::Files;
use crate::options::Controller;
use crate::options::FusePods;
use crate::options::SecretUse;
use crate::part::Part;
use crate::plan::Plan;
use crate::plan::metadata;
use crate::rule::Rule;
use crate::rule::Scope::{self, Cluster, Namespace};
use crate::sidecars::Sidecar;

struct Row {
    sidecar: Sidecar,
    scope: Scope,
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    when: Condition,
}

/// When a sidecar needs a rule, and why; the text is for the table.
struct Condition {
    #[cfg_attr(not(test), expect(dead_code, reason = "the document with the table is compared by a test"))]
    text: &'static str,
    holds: fn(&Plan<'_>) -> bool,
}

const ALWAYS: Condition = Condition { text: "", holds: |_| true };
const SNAPSHOTS: Condition = Condition { text: "the driver snapshots", holds: |plan| plan.snapshots() };
const GROUPS: Condition =
    Condition { text: "the driver snapshots groups", holds: |plan| plan.snapshots_groups() };
const ATTACHES: Condition = Condition {
    text: "the driver has PUBLISH_UNPUBLISH_VOLUME",
    holds: |plan| plan.has(csi_proto::ControllerCapability::PublishUnpublishVolume),
};
/// A provisioner on a node makes its own Node object from NodeGetInfo. One that publishes capacities watches the
/// nodes of a driver without a topology too.
const NODES: Condition = Condition {
    text: "the driver has a topology or GET_CAPACITY, and is not node-local",
    holds: watches_nodes,
};
const SELECTED_NODE: Condition = Condition {
    text: "otherwise: the node that the scheduler chose for a claim",
    holds: |plan| !watches_nodes(plan),
};
const CAPACITY: Condition = Condition {
    text: "`--enable-capacity`: the driver has GET_CAPACITY",
    holds: |plan| plan.publishes_capacity(),
};
const CAPACITY_OF_DEPLOYMENT: Condition = Condition {
    text: "`--enable-capacity` in a Deployment, which is found by the ReplicaSet",
    holds: |plan| plan.publishes_capacity() && plan.options.controller == Controller::Deployment,
};
/// `controller.go` reads the class of the claim; the sidecar's file lacks the rule.
const CLASS_OF_CLAIM: Condition = Condition {
    text: "the driver has MODIFY_VOLUME. Not in the sidecar's file: its code reads the claim's class",
    holds: |plan| plan.has(csi_proto::ControllerCapability::ModifyVolume),
};
const MODIFIES: Condition = Condition { text: "the driver has MODIFY_VOLUME", holds: |plan| plan.modifies() };
const CROSS_NAMESPACE: Condition = Condition {
    text: "`--feature-gates=CrossNamespaceVolumeDataSource=true`",
    holds: |plan| plan.options.cross_namespace_data_sources,
};
const IN_USE: Condition = Condition {
    text: "the driver expands OFFLINE, so without `--handle-volume-inuse-error=false`",
    holds: |plan| !plan.expands_online(),
};

const OFFLINE: Condition =
    Condition { text: "the driver expands OFFLINE", holds: |plan| !plan.expands_online() };
const TOPOLOGY: Condition =
    Condition { text: "the driver has a topology", holds: |plan| plan.has_topology() };
const CHANGES_CLAIMS: Condition = Condition {
    text: "the driver has a topology (a claim goes back to the scheduler) or CLONE_VOLUME (the finalizer of a source)",
    holds: |plan| plan.has_topology() || plan.has(csi_proto::ControllerCapability::CloneVolume),
};

const CONDITION: Condition =
    Condition { text: "the driver has VOLUME_CONDITION, of spec v1.12", holds: |_| true };

fn watches_nodes(plan: &Plan<'_>) -> bool {
    (plan.has_topology() || plan.publishes_capacity()) && !plan.is_node_local()
}

const READ: &[&str] = &["get", "list", "watch"];
const WATCH: &[&str] = &["list", "watch"];
/// What client-go's recorder of events calls; the sidecars' files also allow list, watch and update.
const EVENTS: &[&str] = &["create", "patch"];
/// The sidecar's file also allows update.
const CONTENTS: &[&str] = &["get", "list", "watch", "patch"];
const CHANGE: &[&str] = &["update", "patch"];
const EVENTS_GROUP: &str = "events.k8s.io";
const STORAGE: &str = "storage.k8s.io";
const SNAPSHOT: &str = "snapshot.storage.k8s.io";
const GROUP: &str = "groupsnapshot.storage.k8s.io";

const fn row(
    sidecar: Sidecar,
    scope: Scope,
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    when: Condition,
) -> Row {
    Row { sidecar, scope, group, resource, verbs, when }
}

/// All rules, except that on leases, which all sidecars share, and those on Secrets, which the options name.
#[rustfmt::skip]
const TABLE: [Row; 45] = {
    use Sidecar::*;
    [
        row(Provisioner, Cluster, "", "persistentvolumes", &["get", "list", "watch", "create", "patch", "delete"], ALWAYS),
        row(Provisioner, Cluster, "", "persistentvolumeclaims", &["get", "list", "watch", "update"], ALWAYS),
        row(Provisioner, Cluster, STORAGE, "storageclasses", READ, ALWAYS),
        row(Provisioner, Cluster, "", "events", EVENTS, ALWAYS),
        row(Provisioner, Cluster, SNAPSHOT, "volumesnapshots", &["get", "list", "watch", "update"], SNAPSHOTS),
        row(Provisioner, Cluster, SNAPSHOT, "volumesnapshotcontents", &["get", "list"], SNAPSHOTS),
        row(Provisioner, Cluster, STORAGE, "csinodes", READ, NODES),
        row(Provisioner, Cluster, "", "nodes", READ, NODES),
        row(Provisioner, Cluster, "", "nodes", &["get"], SELECTED_NODE),
        row(Provisioner, Cluster, STORAGE, "volumeattachments", READ, ATTACHES),
        row(Provisioner, Cluster, STORAGE, "volumeattributesclasses", &["get"], CLASS_OF_CLAIM),
        row(Provisioner, Cluster, "gateway.networking.k8s.io", "referencegrants", READ, CROSS_NAMESPACE),
        row(Provisioner, Namespace, STORAGE, "csistoragecapacities", &["get", "list", "watch", "create", "update", "delete"], CAPACITY),
        row(Provisioner, Namespace, "", "pods", &["get"], CAPACITY),
        row(Provisioner, Namespace, "apps", "replicasets", &["get"], CAPACITY_OF_DEPLOYMENT),

        row(Attacher, Cluster, "", "persistentvolumes", &["get", "list", "watch", "patch"], ALWAYS),
        row(Attacher, Cluster, STORAGE, "csinodes", READ, ALWAYS),
        row(Attacher, Cluster, STORAGE, "volumeattachments", &["get", "list", "watch", "patch"], ALWAYS),
        row(Attacher, Cluster, STORAGE, "volumeattachments/status", &["patch"], ALWAYS),

        row(Resizer, Cluster, "", "persistentvolumes", &["get", "list", "watch", "patch"], ALWAYS),
        row(Resizer, Cluster, "", "persistentvolumeclaims", READ, ALWAYS),
        row(Resizer, Cluster, "", "persistentvolumeclaims/status", &["patch"], ALWAYS),
        row(Resizer, Cluster, "", "pods", READ, IN_USE),
        row(Resizer, Cluster, "", "events", EVENTS, ALWAYS),
        row(Resizer, Cluster, STORAGE, "volumeattributesclasses", READ, MODIFIES),

        row(Snapshotter, Cluster, "", "events", EVENTS, ALWAYS),
        row(Snapshotter, Cluster, SNAPSHOT, "volumesnapshotclasses", READ, ALWAYS),
        row(Snapshotter, Cluster, SNAPSHOT, "volumesnapshotcontents", CONTENTS, ALWAYS),
        row(Snapshotter, Cluster, SNAPSHOT, "volumesnapshotcontents/status", CHANGE, ALWAYS),
        row(Snapshotter, Cluster, GROUP, "volumegroupsnapshotclasses", READ, GROUPS),
        row(Snapshotter, Cluster, GROUP, "volumegroupsnapshotcontents", CONTENTS, GROUPS),
        row(Snapshotter, Cluster, GROUP, "volumegroupsnapshotcontents/status", CHANGE, GROUPS),

        // Its file also lets it list and change these objects, which its code only gets.
        row(SnapshotMetadata, Cluster, "cbt.storage.k8s.io", "snapshotmetadataservices", &["get"], ALWAYS),
        row(SnapshotMetadata, Cluster, "authentication.k8s.io", "tokenreviews", &["create"], ALWAYS),
        row(SnapshotMetadata, Cluster, "authorization.k8s.io", "subjectaccessreviews", &["create"], ALWAYS),
        row(SnapshotMetadata, Cluster, SNAPSHOT, "volumesnapshots", &["get"], ALWAYS),
        row(SnapshotMetadata, Cluster, SNAPSHOT, "volumesnapshotcontents", &["get"], ALWAYS),
        row(SnapshotMetadata, Cluster, SNAPSHOT, "volumesnapshotclasses", &["get", "list"], Condition {
            text: "Not in the sidecar's file: its code reads the class to find the secret", holds: |_| true }),

        row(HealthMonitor, Cluster, "", "persistentvolumes", READ, ALWAYS),
        row(HealthMonitor, Cluster, "", "persistentvolumeclaims", READ, ALWAYS),
        row(HealthMonitor, Cluster, "", "persistentvolumeclaims/status", &["patch"], ALWAYS),
        row(HealthMonitor, Cluster, "", "events", EVENTS, ALWAYS),

        row(ConditionMonitor, Cluster, "", "persistentvolumes", READ, ALWAYS),
        row(ConditionMonitor, Cluster, "", "persistentvolumeclaims", READ, ALWAYS),
        // It looks for its own events before it says that a volume is well again. Its file also lets it read nodes
        // and pods, for `--enable-node-watcher`.
        row(ConditionMonitor, Cluster, "", "events", &["list", "watch", "create", "patch"], ALWAYS),
    ]
};

/// What csi-controllers calls in the place of these sidecars. A watch lists and watches; a change is a patch, and an object
/// that somebody else has changed meanwhile is read again.
#[rustfmt::skip]
const BUILT_IN: [Row; 40] = {
    use Sidecar::*;
    [
        row(Provisioner, Cluster, "", "persistentvolumes", &["get", "list", "watch", "create", "patch", "delete"], ALWAYS),
        row(Provisioner, Cluster, "", "persistentvolumeclaims", WATCH, ALWAYS),
        row(Provisioner, Cluster, "", "persistentvolumeclaims", &["get", "patch"], CHANGES_CLAIMS),
        row(Provisioner, Cluster, STORAGE, "storageclasses", WATCH, ALWAYS),
        row(Provisioner, Cluster, EVENTS_GROUP, "events", EVENTS, ALWAYS),
        row(Provisioner, Cluster, SNAPSHOT, "volumesnapshots", CONTENTS, SNAPSHOTS),
        row(Provisioner, Cluster, SNAPSHOT, "volumesnapshotcontents", WATCH, SNAPSHOTS),
        row(Provisioner, Cluster, STORAGE, "csinodes", WATCH, TOPOLOGY),
        row(Provisioner, Cluster, "", "nodes", WATCH, TOPOLOGY),
        row(Provisioner, Cluster, STORAGE, "volumeattachments", WATCH, ATTACHES),
        row(Provisioner, Cluster, STORAGE, "volumeattributesclasses", WATCH, CLASS_OF_CLAIM),
        row(Provisioner, Cluster, "gateway.networking.k8s.io", "referencegrants", &["list"], CROSS_NAMESPACE),
        row(Provisioner, Namespace, "", "configmaps", &["create"], ALWAYS),
        row(Provisioner, Namespace, STORAGE, "csistoragecapacities", &["list", "watch", "create", "patch", "delete"], CAPACITY),
        row(Provisioner, Namespace, "", "pods", &["get"], CAPACITY),
        row(Provisioner, Namespace, "apps", "replicasets", &["get"], CAPACITY_OF_DEPLOYMENT),

        row(Attacher, Cluster, "", "persistentvolumes", CONTENTS, ALWAYS),
        row(Attacher, Cluster, STORAGE, "csinodes", WATCH, ALWAYS),
        row(Attacher, Cluster, STORAGE, "volumeattachments", CONTENTS, ALWAYS),
        row(Attacher, Cluster, STORAGE, "volumeattachments/status", &["patch"], ALWAYS),

        row(Resizer, Cluster, "", "persistentvolumes", &["list", "watch", "patch"], ALWAYS),
        row(Resizer, Cluster, "", "persistentvolumeclaims", READ, ALWAYS),
        row(Resizer, Cluster, "", "persistentvolumeclaims/status", &["patch"], ALWAYS),
        row(Resizer, Cluster, "", "pods", &["list"], OFFLINE),
        row(Resizer, Cluster, EVENTS_GROUP, "events", EVENTS, ALWAYS),
        row(Resizer, Cluster, STORAGE, "volumeattributesclasses", WATCH, MODIFIES),

        row(Snapshotter, Cluster, EVENTS_GROUP, "events", EVENTS, ALWAYS),
        row(Snapshotter, Cluster, SNAPSHOT, "volumesnapshotclasses", WATCH, ALWAYS),
        row(Snapshotter, Cluster, SNAPSHOT, "volumesnapshotcontents", CONTENTS, ALWAYS),
        row(Snapshotter, Cluster, SNAPSHOT, "volumesnapshotcontents/status", &["patch"], ALWAYS),
        row(Snapshotter, Cluster, GROUP, "volumegroupsnapshotclasses", WATCH, GROUPS),
        row(Snapshotter, Cluster, GROUP, "volumegroupsnapshotcontents", CONTENTS, GROUPS),
        row(Snapshotter, Cluster, GROUP, "volumegroupsnapshotcontents/status", &["patch"], GROUPS),

        row(HealthMonitor, Cluster, "", "persistentvolumes", WATCH, ALWAYS),
        row(HealthMonitor, Cluster, "", "persistentvolumeclaims", READ, ALWAYS),
        row(HealthMonitor, Cluster, "", "persistentvolumeclaims/status", &["patch"], ALWAYS),
        row(HealthMonitor, Cluster, EVENTS_GROUP, "events", EVENTS, ALWAYS),

        row(ConditionMonitor, Cluster, "", "persistentvolumes", WATCH, CONDITION),
        row(ConditionMonitor, Cluster, "", "persistentvolumeclaims", WATCH, CONDITION),
        row(ConditionMonitor, Cluster, EVENTS_GROUP, "events", EVENTS, CONDITION),
    ]
};

/// The sidecar that reads a secret from the API; the kubelet reads those of the Node service.
fn reader(used_for: SecretUse) -> Option<Sidecar> {
    match used_for {
        SecretUse::Provisioner => Some(Sidecar::Provisioner),
        SecretUse::ControllerPublish => Some(Sidecar::Attacher),
        SecretUse::ControllerExpand | SecretUse::ControllerModify => Some(Sidecar::Resizer),
        SecretUse::Snapshotter | SecretUse::GroupSnapshotter => Some(Sidecar::Snapshotter),
        SecretUse::NodeStage | SecretUse::NodePublish | SecretUse::NodeExpand => None,
    }
}

/// What is allowed on one resource, and who needs it: sidecars, or the driver.
#[derive(Default)]
struct Grant {
    verbs: BTreeSet<String>,
    owners: BTreeSet<&'static str>,
}

type Grants = BTreeMap<(String, String), Grant>;

#[derive(Default)]
struct Rules {
    cluster: Grants,
    namespace: Grants,
    /// What is allowed on objects by their name, if the driver does the sidecars' work.
    by_name: Vec<Value>,
    /// The names of the Secrets in each namespace.
    secrets: BTreeMap<String, BTreeSet<String>>,
    /// The namespaces with Secrets whose names follow from claims.
    all_secrets: BTreeSet<String>,
}

impl Rules {
    fn new(plan: &Plan<'_>, part: Part) -> Self {
        let mut rules = Self::default();
        if part == Part::Controller || plan.is_node_local() {
            rules.of_sidecars(plan);
        }
        rules.of_driver(driver_rules(plan, part));
        if makes_pods(plan, part) {
            for (group, resource, verbs) in FUSE_PODS {
                rules.add(Cluster, "driver", group, resource, verbs);
            }
        }
        rules
    }

    fn add(
        &mut self,
        scope: Scope,
        owner: &'static str,
        group: &str,
        resource: &str,
        verbs: &[impl ToString],
    ) {
        let scope = match scope {
            Cluster => &mut self.cluster,
            Namespace => &mut self.namespace,
        };
        let grant = scope.entry((group.to_owned(), resource.to_owned())).or_default();
        grant.owners.insert(owner);
        grant.verbs.extend(verbs.iter().map(ToString::to_string));
    }

    fn of_sidecars(&mut self, plan: &Plan<'_>) {
        let sidecars = plan.sidecars();
        let rows = TABLE.iter().filter(|row| sidecars.contains(&row.sidecar) && (row.when.holds)(plan));
        for row in rows {
            self.add(row.scope, row.sidecar.image().0, row.group, row.resource, row.verbs);
        }
        for sidecar in sidecars.iter().filter(|sidecar| plan.elects_leader(**sidecar)) {
            self.add(Namespace, sidecar.image().0, "coordination.k8s.io", "leases", LEASES);
        }
        let built_in = plan.built_in();
        let rows = BUILT_IN.iter().filter(|row| built_in.contains(&row.sidecar) && (row.when.holds)(plan));
        for row in rows {
            self.add(row.scope, "driver", row.group, row.resource, row.verbs);
        }
        if !built_in.is_empty() {
            // A rule with names can't allow the creation.
            self.add(Namespace, "driver", "coordination.k8s.io", "leases", &["create"]);
            let leases = leases(&plan.driver.name);
            self.by_name.push(rule("coordination.k8s.io", "leases", Some(&leases), ["get", "update"]));
        }
        if built_in.contains(&Sidecar::Provisioner) {
            let name = format!("{}-volume-creations", plain_name(&plan.driver.name));
            self.by_name.push(rule("", "configmaps", Some(&[name]), ["get", "patch"]));
        }
        for secret in &plan.options.secret {
            let Some(reader) = reader(secret.used_for) else { continue };
            let owner = if built_in.contains(&reader) {
                "driver"
            } else if sidecars.contains(&reader) {
                reader.image().0
            } else {
                continue;
            };
            // With the claim's name in it, a name is known only when the claim exists.
            if secret.namespace.contains("${") {
                self.add(Cluster, owner, "", "secrets", &["get"]);
                continue;
            }
            self.secrets.entry(secret.namespace.clone()).or_default().insert(secret.name.clone());
            if secret.name.contains("${") {
                self.all_secrets.insert(secret.namespace.clone());
            }
        }
    }

    fn of_driver(&mut self, rules: &[Rule]) {
        for rule in rules {
            self.add(rule.scope, "driver", &rule.group, &rule.resource, &rule.verbs);
        }
    }

    fn is_empty(&self) -> bool {
        self.cluster.is_empty() && self.namespace.is_empty() && self.secrets.is_empty()
    }
}

/// A rule for the objects of these names, or for all.
fn rule(group: &str, resource: &str, names: Option<&[String]>, verbs: impl Serialize) -> Value {
    json!({ "apiGroups": [group], "resourceNames": names, "resources": [resource], "verbs": verbs })
}

fn comments(grants: &Grants) -> Vec<String> {
    let owners = |grant: &Grant| grant.owners.iter().copied().collect::<Vec<_>>().join(", ");
    grants.iter().map(|((_, resource), grant)| format!("{resource}: {}", owners(grant))).collect()
}

/// What client-go's leader election calls; the sidecars' files also allow list, watch and delete.
const LEASES: &[&str] = &["get", "create", "update"];

/// The leases of the four sidecars, which csi-controllers holds in their place.
fn leases(driver: &str) -> [String; 4] {
    let name = plain_name(driver);
    let of = |sidecar: &str| format!("{sidecar}-{name}");
    [name.clone(), of("external-attacher-leader"), of("external-resizer"), of("external-snapshotter-leader")]
}

fn plain_name(driver: &str) -> String {
    driver.replace('.', "-")
}

/// `FUSE_PODS` and `FUSE_PODS_NAMESPACE` of csi-kube.
const FUSE_PODS: [(&str, &str, &[&str]); 5] = [
    ("", "nodes", &["get"]),
    ("", "persistentvolumes", &["list"]),
    ("storage.k8s.io", "volumeattachments", &["list"]),
    ("", "pods", &["list"]),
    ("events.k8s.io", "events", &["create", "patch"]),
];
const FUSE_PODS_NAMESPACE: [(&str, &[&str]); 2] =
    [("pods", &["get", "list", "create", "patch", "delete"]), ("podtemplates", &["get"])];

/// In the order in which people write them.
fn ordered(verbs: &BTreeSet<String>) -> Vec<String> {
    let place = |verb: &String| crate::names::VERBS.iter().position(|known| known == verb);
    let mut verbs: Vec<String> = verbs.iter().cloned().collect();
    verbs.sort_by_key(place);
    verbs
}

fn policy(grants: &Grants) -> Vec<Value> {
    let rule = |((group, resource), grant): (&(String, String), &Grant)| {
        rule(group, resource, None, ordered(&grant.verbs))
    };
    grants.iter().map(rule).collect()
}

pub(crate) fn sidecar_calls_api(sidecar: Sidecar) -> bool {
    TABLE.iter().any(|row| row.sidecar == sidecar)
}

pub(crate) fn driver_calls_api(plan: &Plan<'_>, part: Part) -> bool {
    let works = part == Part::Controller && plan.options.no_sidecars;
    works || !driver_rules(plan, part).is_empty() || makes_pods(plan, part)
}

/// Whether this part makes a pod for each volume's FUSE program.
fn makes_pods(plan: &Plan<'_>, part: Part) -> bool {
    part == Part::Controller && plan.options.fuse_pods == Some(FusePods::PerVolume)
}

fn driver_rules<'a>(plan: &Plan<'a>, part: Part) -> &'a [Rule] {
    match part {
        Part::Controller => &plan.options.controller_rule,
        Part::Node => &plan.options.node_rule,
    }
}

pub(crate) fn add(plan: &Plan<'_>, files: &mut Files) {
    for part in plan.parts() {
        let rules = Rules::new(plan, part);
        let comment = if rules.is_empty() {
            vec!["Nothing in these pods calls the API.".to_owned()]
        } else {
            Vec::new()
        };
        let name = part.name(plan);
        let account = json!({ "metadata": metadata(plan, &name, part) });
        files.add(part.rbac_file(), comment, ("v1", "ServiceAccount"), account);
        let mut role = |namespace: Option<&str>, name: &str, comment: Vec<String>, rules: Vec<Value>| {
            if !rules.is_empty() {
                add_role(plan, part, files, namespace, name, comment, &rules);
            }
        };
        let own = Some(&*plan.options.namespace);
        role(None, &name, comments(&rules.cluster), policy(&rules.cluster));
        if !rules.namespace.is_empty() {
            let policy = [policy(&rules.namespace), rules.by_name.clone()].concat();
            role(own, &name, comments(&rules.namespace), policy);
        }
        if makes_pods(plan, part) {
            let comment = vec!["The pods of the FUSE programs, and no others.".to_owned()];
            let rules = FUSE_PODS_NAMESPACE.map(|(resource, verbs)| rule("", resource, None, verbs));
            role(Some(&plan.fuse_name()), &plan.fuse_name(), comment, rules.into());
        }
        // Each Secret by its name, in a role in its namespace.
        for (namespace, names) in &rules.secrets {
            let names: Vec<String> = names.iter().cloned().collect();
            let (names, comment) = if rules.all_secrets.contains(namespace) {
                (None, "All Secrets of this namespace, because their names follow from the claims.")
            } else {
                (Some(names.as_slice()), "The Secrets that the classes refer to, and no other.")
            };
            let rules = vec![rule("", "secrets", names, ["get"])];
            role(Some(namespace), &format!("{name}-secrets"), vec![comment.to_owned()], rules);
        }
    }
}

/// A role in a namespace or of the whole cluster, and its binding to the account of the part's pods.
fn add_role(
    plan: &Plan<'_>,
    part: Part,
    files: &mut Files,
    namespace: Option<&str>,
    name: &str,
    comment: Vec<String>,
    rules: &[Value],
) {
    const API: &str = "rbac.authorization.k8s.io/v1";
    let [role, binding] = match namespace {
        Some(_) => ["Role", "RoleBinding"],
        None => ["ClusterRole", "ClusterRoleBinding"],
    };
    let mut metadata = metadata(plan, name, part);
    metadata["namespace"] = json!(namespace);
    let object = json!({ "metadata": metadata, "rules": rules });
    files.add(part.rbac_file(), comment, (API, role), object);
    let account =
        json!({ "kind": "ServiceAccount", "name": part.name(plan), "namespace": plan.options.namespace });
    let object = json!({
        "metadata": metadata,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": name },
        "subjects": [account],
    });
    files.add(part.rbac_file(), Vec::new(), (API, binding), object);
}

/// Both tables as Markdown, for the document that is compared with them.
#[cfg(test)]
fn markdown() -> [String; 2] {
    let versioned = |sidecar: Sidecar| format!("{} {}", sidecar.project(), sidecar.image().1);
    let leases = LEASES.join(", ");
    let of_sidecars = format!(
        "| sidecar | API group | resource | verbs | where | only if |\n|---|---|---|---|---|---|\n{}\
         | all except external-snapshot-metadata | coordination.k8s.io | leases | {leases} | namespace | `--leader-election` |\n\
         | the sidecar that reads it | core | secrets, by name | get | the Secret's namespace | `--secret` |\n",
        lines(&TABLE, versioned),
    );
    let built_in = format!(
        "| in the place of | API group | resource | verbs | where | only if |\n|---|---|---|---|---|---|\n{}\
         | all | coordination.k8s.io | leases | create | namespace |  |\n\
         | all | coordination.k8s.io | leases, by name | get, update | namespace |  |\n\
         | external-provisioner | core | configmaps, by name | get, patch | namespace |  |\n\
         | the sidecar that reads it | core | secrets, by name | get | the Secret's namespace | `--secret` |\n",
        lines(&BUILT_IN, |sidecar| sidecar.project().to_owned()),
    );
    [of_sidecars, built_in]
}

#[cfg(test)]
fn lines(table: &[Row], name: impl Fn(Sidecar) -> String) -> String {
    let mut text = String::new();
    for Row { sidecar, scope, group, resource, verbs, when } in table {
        let group = if group.is_empty() { "core" } else { group };
        let scope = if *scope == Cluster { "cluster" } else { "namespace" };
        let name = name(*sidecar);
        let verbs = verbs.join(", ");
        text += &format!("| {name} | {group} | {resource} | {verbs} | {scope} | {} |\n", when.text);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_the_tables() {
        let document = include_str!("../docs/rbac.md");
        for table in markdown() {
            assert!(document.contains(&table), "docs/rbac.md lacks this table:\n{table}");
        }
    }

    #[test]
    fn every_sidecar_that_calls_the_api_has_rules() {
        for sidecar in Sidecar::ALL {
            assert!(sidecar_calls_api(sidecar), "{sidecar:?}");
            let is_built_in = BUILT_IN.iter().any(|row| row.sidecar == sidecar);
            assert_eq!(is_built_in, sidecar != Sidecar::SnapshotMetadata, "{sidecar:?}");
        }
    }
}
