//! What each sidecar is allowed to do, as a table, and the objects made from it.
//!
//! The rules are those of `deploy/kubernetes/rbac.yaml` of each sidecar at its version, without those that
//! its flags make needless, and without verbs that its code never uses. A rule that is not in that file has its
//! reason in the table.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::error::Error;
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

fn watches_nodes(plan: &Plan<'_>) -> bool {
    (plan.has_topology() || plan.publishes_capacity()) && !plan.is_node_local()
}

const READ: &[&str] = &["get", "list", "watch"];
/// What client-go's recorder of events calls; the sidecars' files also allow list, watch and update.
const EVENTS: &[&str] = &["create", "patch"];
/// The sidecar's file also allows update.
const CONTENTS: &[&str] = &["get", "list", "watch", "patch"];
const CHANGE: &[&str] = &["update", "patch"];
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
const TABLE: [Row; 46] = {
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

        // Its file also lets it change these objects, which its code only reads.
        row(SnapshotMetadata, Cluster, "cbt.storage.k8s.io", "snapshotmetadataservices", &["get", "list"], ALWAYS),
        row(SnapshotMetadata, Cluster, "authentication.k8s.io", "tokenreviews", &["create"], ALWAYS),
        row(SnapshotMetadata, Cluster, "authorization.k8s.io", "subjectaccessreviews", &["create"], ALWAYS),
        row(SnapshotMetadata, Cluster, SNAPSHOT, "volumesnapshots", &["get", "list"], ALWAYS),
        row(SnapshotMetadata, Cluster, SNAPSHOT, "volumesnapshotcontents", &["get", "list"], ALWAYS),
        row(SnapshotMetadata, Cluster, SNAPSHOT, "volumesnapshotclasses", &["get", "list"], Condition {
            text: "Not in the sidecar's file: its code reads the class to find the secret", holds: |_| true }),

        row(HealthMonitor, Cluster, "", "persistentvolumes", READ, ALWAYS),
        row(HealthMonitor, Cluster, "", "persistentvolumeclaims", READ, ALWAYS),
        row(HealthMonitor, Cluster, "", "persistentvolumeclaims/status", CHANGE, Condition {
            text: "It writes `status.healthStatus`; the verbs are assumed", holds: |_| true }),

        row(ConditionMonitor, Cluster, "", "persistentvolumes", READ, ALWAYS),
        row(ConditionMonitor, Cluster, "", "persistentvolumeclaims", READ, ALWAYS),
        row(ConditionMonitor, Cluster, "", "nodes", READ, ALWAYS),
        row(ConditionMonitor, Cluster, "", "pods", READ, ALWAYS),
        row(ConditionMonitor, Cluster, "", "events", EVENTS, ALWAYS),
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
    /// The names of the Secrets in each namespace.
    secrets: BTreeMap<String, BTreeSet<String>>,
}

impl Rules {
    fn new(plan: &Plan<'_>, part: Part) -> Self {
        let mut rules = Self::default();
        if part == Part::Controller || plan.is_node_local() {
            rules.of_sidecars(plan);
        }
        rules.of_driver(driver_rules(plan, part));
        if makes_pods(plan, part) {
            for (group, resource, verb) in FUSE_PODS {
                rules.add(Cluster, "driver", group, resource, &[verb]);
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
        for secret in &plan.options.secret {
            let Some(reader) = reader(secret.used_for).filter(|reader| sidecars.contains(reader)) else {
                continue;
            };
            // With the claim's name in it, the name is known only when the claim exists.
            if secret.name.contains("${") || secret.namespace.contains("${") {
                self.add(Cluster, reader.image().0, "", "secrets", &["get"]);
            } else {
                self.secrets.entry(secret.namespace.clone()).or_default().insert(secret.name.clone());
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

fn comments(grants: &Grants) -> Vec<String> {
    let owners = |grant: &Grant| grant.owners.iter().copied().collect::<Vec<_>>().join(", ");
    grants.iter().map(|((_, resource), grant)| format!("{resource}: {}", owners(grant))).collect()
}

/// What client-go's leader election calls; the sidecars' files also allow list, watch and delete.
const LEASES: &[&str] = &["get", "create", "update"];

/// `FUSE_PODS` and `FUSE_PODS_NAMESPACE` of csi-kube.
const FUSE_PODS: [(&str, &str, &str); 3] = [
    ("", "nodes", "get"),
    ("", "persistentvolumes", "list"),
    ("storage.k8s.io", "volumeattachments", "list"),
];
const FUSE_PODS_VERBS: [&str; 4] = ["get", "list", "create", "delete"];

/// In the order in which people write them.
fn ordered(verbs: &BTreeSet<String>) -> Vec<String> {
    let place = |verb: &String| crate::names::VERBS.iter().position(|known| known == verb);
    let mut verbs: Vec<String> = verbs.iter().cloned().collect();
    verbs.sort_by_key(place);
    verbs
}

fn policy(grants: &Grants) -> Vec<PolicyRule> {
    let rule = |((group, resource), grant): (&(String, String), &Grant)| PolicyRule {
        api_groups: Some(vec![group.clone()]),
        resources: Some(vec![resource.clone()]),
        verbs: ordered(&grant.verbs),
        ..PolicyRule::default()
    };
    grants.iter().map(rule).collect()
}

pub(crate) fn sidecar_calls_api(sidecar: Sidecar) -> bool {
    TABLE.iter().any(|row| row.sidecar == sidecar)
}

pub(crate) fn driver_calls_api(plan: &Plan<'_>, part: Part) -> bool {
    !driver_rules(plan, part).is_empty() || makes_pods(plan, part)
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

pub(crate) fn add(plan: &Plan<'_>, files: &mut Files) -> Result<(), Error> {
    for part in plan.parts() {
        let rules = Rules::new(plan, part);
        let comment = if rules.is_empty() {
            vec!["Nothing in these pods calls the API.".to_owned()]
        } else {
            Vec::new()
        };
        let account =
            ServiceAccount { metadata: metadata(plan, part.name(plan), part), ..ServiceAccount::default() };
        files.add(part.rbac_file(), comment, &account)?;
        cluster_role(plan, part, &rules, files)?;
        role(plan, part, &rules, files)?;
        if makes_pods(plan, part) {
            fuse_pods(plan, part, files)?;
        }
        secrets(plan, part, &rules, files)?;
    }
    Ok(())
}

fn cluster_role(plan: &Plan<'_>, part: Part, rules: &Rules, files: &mut Files) -> Result<(), Error> {
    if rules.cluster.is_empty() {
        return Ok(());
    }
    let name = part.name(plan);
    let metadata = || ObjectMeta { namespace: None, ..metadata(plan, name.clone(), part) };
    let role =
        ClusterRole { metadata: metadata(), rules: Some(policy(&rules.cluster)), ..ClusterRole::default() };
    files.add(part.rbac_file(), comments(&rules.cluster), &role)?;
    let binding = ClusterRoleBinding {
        metadata: metadata(),
        role_ref: reference("ClusterRole", &name),
        subjects: Some(vec![subject(plan, part)]),
    };
    files.add(part.rbac_file(), Vec::new(), &binding)
}

fn role(plan: &Plan<'_>, part: Part, rules: &Rules, files: &mut Files) -> Result<(), Error> {
    if rules.namespace.is_empty() {
        return Ok(());
    }
    let name = part.name(plan);
    let role = Role { metadata: metadata(plan, name.clone(), part), rules: Some(policy(&rules.namespace)) };
    files.add(part.rbac_file(), comments(&rules.namespace), &role)?;
    bind(plan, part, metadata(plan, name.clone(), part), &name, files)
}

/// The role in the namespace of the pods.
fn fuse_pods(plan: &Plan<'_>, part: Part, files: &mut Files) -> Result<(), Error> {
    let name = plan.fuse_name();
    let metadata = || ObjectMeta { namespace: Some(name.clone()), ..metadata(plan, name.clone(), part) };
    let rule = PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["pods".to_owned()]),
        verbs: FUSE_PODS_VERBS.map(str::to_owned).into(),
        ..PolicyRule::default()
    };
    let comment = vec!["The pods of the FUSE programs, and no others.".to_owned()];
    files.add(part.rbac_file(), comment, &Role { metadata: metadata(), rules: Some(vec![rule]) })?;
    bind(plan, part, metadata(), &name, files)
}

/// Each Secret by its name, in a role in its namespace.
fn secrets(plan: &Plan<'_>, part: Part, rules: &Rules, files: &mut Files) -> Result<(), Error> {
    for (namespace, names) in &rules.secrets {
        let name = format!("{}-secrets", part.name(plan));
        let metadata =
            || ObjectMeta { namespace: Some(namespace.clone()), ..metadata(plan, name.clone(), part) };
        let rule = PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(vec!["secrets".to_owned()]),
            resource_names: Some(names.iter().cloned().collect()),
            verbs: vec!["get".to_owned()],
            ..PolicyRule::default()
        };
        let comment = vec!["The Secrets that the classes refer to, and no other.".to_owned()];
        files.add(part.rbac_file(), comment, &Role { metadata: metadata(), rules: Some(vec![rule]) })?;
        bind(plan, part, metadata(), &name, files)?;
    }
    Ok(())
}

fn bind(
    plan: &Plan<'_>,
    part: Part,
    metadata: ObjectMeta,
    role: &str,
    files: &mut Files,
) -> Result<(), Error> {
    let binding = RoleBinding {
        metadata,
        role_ref: reference("Role", role),
        subjects: Some(vec![subject(plan, part)]),
    };
    files.add(part.rbac_file(), Vec::new(), &binding)
}

fn reference(kind: &str, name: &str) -> RoleRef {
    RoleRef {
        api_group: Some("rbac.authorization.k8s.io".to_owned()),
        kind: kind.to_owned(),
        name: name.to_owned(),
    }
}

fn subject(plan: &Plan<'_>, part: Part) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        name: part.name(plan),
        namespace: Some(plan.options.namespace.clone()),
        ..Subject::default()
    }
}

/// The table as Markdown, for the document that is compared with it.
#[cfg(test)]
fn markdown() -> String {
    let mut text = String::from(
        "| sidecar | API group | resource | verbs | where | only if |\n|---|---|---|---|---|---|\n",
    );
    let group = |group: &'static str| if group.is_empty() { "core" } else { group };
    for Row { sidecar, scope, group: of, resource, verbs, when } in &TABLE {
        let scope = if *scope == Cluster { "cluster" } else { "namespace" };
        let project = sidecar.project();
        let version = sidecar.image().1;
        let verbs = verbs.join(", ");
        text += &format!(
            "| {project} {version} | {} | {resource} | {verbs} | {scope} | {} |\n",
            group(of),
            when.text
        );
    }
    text + &format!(
        "| all except external-snapshot-metadata | coordination.k8s.io | leases | {} | namespace | `--leader-election` |\n\
         | the sidecar that reads it | core | secrets, by name | get | the Secret's namespace | `--secret` |\n",
        LEASES.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_the_table() {
        let document = include_str!("../docs/rbac.md");
        assert!(document.contains(&markdown()), "docs/rbac.md lacks this table:\n{}", markdown());
    }

    #[test]
    fn every_sidecar_that_calls_the_api_has_rules() {
        for sidecar in Sidecar::ALL {
            assert!(sidecar_calls_api(sidecar), "{sidecar:?}");
        }
    }
}
