//! The CSIDriver object: every field from a capability, or from what is declared.

use csi_proto::{ControllerCapability, NodeCapability};
use serde_json::{Value, json};

use crate::files::Files;
use crate::options::{FsGroupPolicy, Lifecycle, Options, TokenRequest};
use crate::plan::Plan;
use crate::plan::labels;

pub(crate) fn add(plan: &Plan<'_>, files: &mut Files) {
    let options = plan.options;
    let Options { fs_group_policy, lifecycle, .. } = options;
    let mut comments = Vec::new();
    let mut by_capability = |field: &str, has: bool, capability: &str| {
        let verb = if has { "has" } else { "lacks" };
        comments.push(format!("{field}: the driver {verb} {capability}"));
        has
    };
    let attach_required = by_capability(
        "attachRequired",
        plan.has(ControllerCapability::PublishUnpublishVolume),
        "PUBLISH_UNPUBLISH_VOLUME",
    );
    let storage_capacity = by_capability("storageCapacity", plan.publishes_capacity(), "GET_CAPACITY");
    let groups_are_its_own = plan.driver.has_node(NodeCapability::VolumeMountGroup);
    let fs_group_policy = fs_group_policy.unwrap_or_else(|| {
        if groups_are_its_own {
            comments.push(
                "fsGroupPolicy: the driver has VOLUME_MOUNT_GROUP, and gets the group itself".to_owned(),
            );
            FsGroupPolicy::File
        } else {
            comments.push(
                "fsGroupPolicy: no RPC reports it; the default of Kubernetes (--fs-group-policy)".to_owned(),
            );
            FsGroupPolicy::ReadWriteOnceWithFsType
        }
    });
    comments.push(
        "No RPC reports the other fields: --lifecycle, --pod-info, --requires-republish, --selinux-mount, --token, \
         --service-account-token-in-secrets, --prevent-pod-scheduling-if-missing, --node-allocatable-update-period"
            .to_owned(),
    );
    let modes: &[&str] = match lifecycle {
        Lifecycle::Persistent => &["Persistent"],
        Lifecycle::Ephemeral => &["Ephemeral"],
        Lifecycle::Both => &["Persistent", "Ephemeral"],
    };
    let token =
        |token: &TokenRequest| json!({ "audience": token.audience, "expirationSeconds": token.seconds });
    let tokens: Vec<Value> = options.token.iter().map(token).collect();
    let spec = json!({
        "attachRequired": attach_required,
        "fsGroupPolicy": fs_group_policy.as_str(),
        "nodeAllocatableUpdatePeriodSeconds": options.node_allocatable_update_period,
        "podInfoOnMount": plan.pod_info(),
        "preventPodSchedulingIfMissing": options.prevent_pod_scheduling_if_missing.then_some(true),
        "requiresRepublish": options.requires_republish,
        "seLinuxMount": options.selinux_mount,
        "serviceAccountTokenInSecrets": options.service_account_token_in_secrets.then_some(true),
        "storageCapacity": storage_capacity,
        "tokenRequests": (!tokens.is_empty()).then_some(tokens),
        "volumeLifecycleModes": modes,
    });
    let metadata = json!({ "labels": labels(plan, None), "name": plan.driver.name });
    let object = json!({ "metadata": metadata, "spec": spec });
    files.add("csidriver.yaml", comments, ("storage.k8s.io/v1", "CSIDriver"), object);
}
