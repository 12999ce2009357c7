//! What not every supported release of Kubernetes has: which release, and which feature gate until when.

use crate::options::Options;

/// Something that an option asks of the cluster.
struct Feature {
    /// The field or feature, in the words of Kubernetes.
    name: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "the document with the table is compared by a test"))]
    flag: &'static str,
    /// The first release, as the number after `1.`.
    since: u8,
    gate: &'static str,
    /// The first release in which the gate is on by default.
    on_since: Option<u8>,
    /// The first release in which the feature is stable: the gate can't be turned off, and later goes.
    #[cfg_attr(not(test), expect(dead_code, reason = "the document with the table is compared by a test"))]
    stable_since: Option<u8>,
    is_used: fn(&Options) -> bool,
}

/// From the OpenAPI of each release, and from the versions of its feature gates.
const FEATURES: [Feature; 3] = [
    Feature {
        name: "nodeAllocatableUpdatePeriodSeconds",
        flag: "node-allocatable-update-period",
        since: 33,
        gate: "MutableCSINodeAllocatableCount",
        on_since: Some(35),
        stable_since: Some(36),
        is_used: |options| options.node_allocatable_update_period.is_some(),
    },
    Feature {
        name: "preventPodSchedulingIfMissing",
        flag: "prevent-pod-scheduling-if-missing",
        since: 36,
        gate: "VolumeLimitScaling",
        on_since: Some(37),
        stable_since: None,
        is_used: |options| options.prevent_pod_scheduling_if_missing,
    },
    Feature {
        name: "serviceAccountTokenInSecrets",
        flag: "service-account-token-in-secrets",
        since: 35,
        gate: "CSIServiceAccountTokenSecrets",
        on_since: Some(35),
        stable_since: Some(36),
        is_used: |options| options.service_account_token_in_secrets,
    },
];

/// What the options ask of the cluster, one sentence each.
pub(crate) fn notes(options: &Options) -> impl Iterator<Item = String> {
    FEATURES.iter().filter(|feature| (feature.is_used)(options)).map(|feature| {
        let Feature { name, since, gate, on_since, .. } = feature;
        let gated = match on_since {
            Some(on) if on == since => String::new(),
            Some(on) => format!(", before 1.{on} with the feature gate {gate}"),
            None => format!(" with the feature gate {gate}"),
        };
        format!("{name} needs Kubernetes 1.{since} or newer{gated}; an older API server drops the field")
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use k8s_openapi::api::storage::v1::{CSIDriverSpec, TokenRequest};

    use super::*;

    /// The fields of CSIDriverSpec in the OpenAPI of each release: those of 1.33, then what each one added.
    const FIELDS: [(u8, &[&str]); 5] = [
        (
            33,
            &[
                "attachRequired",
                "fsGroupPolicy",
                "nodeAllocatableUpdatePeriodSeconds",
                "podInfoOnMount",
                "requiresRepublish",
                "seLinuxMount",
                "storageCapacity",
                "tokenRequests",
                "volumeLifecycleModes",
            ],
        ),
        (34, &[]),
        (35, &["serviceAccountTokenInSecrets"]),
        (36, &["preventPodSchedulingIfMissing"]),
        (37, &[]),
    ];

    fn markdown() -> String {
        let mut table =
            "| field | flag | since | gate | on by default | stable |\n|---|---|---|---|---|---|\n"
                .to_owned();
        let release = |release: Option<u8>| release.map_or("no".to_owned(), |release| format!("1.{release}"));
        for Feature { name, flag, since, gate, on_since, stable_since, .. } in &FEATURES {
            let [on, stable] = [release(*on_since), release(*stable_since)];
            table += &format!("| `{name}` | `--{flag}` | 1.{since} | {gate} | {on} | {stable} |\n");
        }
        table
    }

    #[test]
    fn the_document_has_the_table() {
        let document = include_str!("../docs/releases.md");
        assert!(document.contains(&markdown()), "docs/releases.md lacks this table:\n{}", markdown());
    }

    #[test]
    fn each_field_is_in_the_api_of_its_release_and_not_before() {
        for feature in &FEATURES {
            let release = FIELDS.iter().find(|(_, fields)| fields.contains(&feature.name));
            assert_eq!(release.map(|(release, _)| *release), Some(feature.since), "{}", feature.name);
        }
    }

    #[test]
    fn the_newest_release_has_the_fields_of_the_types_that_are_linked() {
        let all = CSIDriverSpec {
            attach_required: Some(true),
            fs_group_policy: Some(String::new()),
            node_allocatable_update_period_seconds: Some(10),
            pod_info_on_mount: Some(true),
            prevent_pod_scheduling_if_missing: Some(true),
            requires_republish: Some(true),
            se_linux_mount: Some(true),
            service_account_token_in_secrets: Some(true),
            storage_capacity: Some(true),
            token_requests: Some(vec![TokenRequest::default()]),
            volume_lifecycle_modes: Some(Vec::new()),
        };
        let all = serde_json::to_value(all).expect("JSON");
        let linked: BTreeSet<&str> = all.as_object().expect("an object").keys().map(String::as_str).collect();
        let known: BTreeSet<&str> = FIELDS.iter().flat_map(|(_, fields)| fields.iter().copied()).collect();
        assert_eq!(known, linked);
    }
}
