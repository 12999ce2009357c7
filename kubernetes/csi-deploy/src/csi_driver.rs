//! The CSIDriver object: every field from a capability, or from what is declared.

use csi_proto::{ControllerCapability, NodeCapability};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIDriverSpec, TokenRequest};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::error::Error;
use crate::files::Files;
use crate::options::Options;
use crate::options::{FsGroupPolicy, Lifecycle};
use crate::plan::Plan;
use crate::plan::labels;

pub(crate) fn add(plan: &Plan<'_>, files: &mut Files) -> Result<(), Error> {
    let options = plan.options;
    let Options { fs_group_policy, lifecycle, .. } = options;
    let mut comments = Vec::new();
    let mut by_capability = |field: &str, has: bool, capability: &str| {
        let verb = if has { "has" } else { "lacks" };
        comments.push(format!("{field}: the driver {verb} {capability}"));
        Some(has)
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
    let token = |token: &crate::TokenRequest| TokenRequest {
        audience: token.audience.clone(),
        expiration_seconds: token.seconds.map(i64::from),
    };
    let tokens: Vec<TokenRequest> = options.token.iter().map(token).collect();
    let spec = CSIDriverSpec {
        attach_required,
        service_account_token_in_secrets: options.service_account_token_in_secrets.then_some(true),
        storage_capacity,
        fs_group_policy: Some(fs_group_policy.as_str().to_owned()),
        node_allocatable_update_period_seconds: options.node_allocatable_update_period.map(i64::from),
        pod_info_on_mount: Some(plan.pod_info()),
        prevent_pod_scheduling_if_missing: options.prevent_pod_scheduling_if_missing.then_some(true),
        requires_republish: Some(options.requires_republish),
        se_linux_mount: Some(options.selinux_mount),
        token_requests: (!tokens.is_empty()).then_some(tokens),
        volume_lifecycle_modes: Some(modes.iter().map(|mode| (*mode).to_owned()).collect()),
    };
    let metadata = ObjectMeta {
        name: Some(plan.driver.name.clone()),
        labels: Some(labels(plan, None)),
        ..ObjectMeta::default()
    };
    files.add("csidriver.yaml", comments, &CSIDriver { metadata, spec })
}
