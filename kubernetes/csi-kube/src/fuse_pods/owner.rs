//! Whose a pod is, and which volumes use it: its name and its annotations.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;

use super::annotation;

/// The volume of a pod. The volumes of a shared pod have this with their hash, so that each is added by itself.
const VOLUME: &str = "csi-kube/volume";
const SHARE: &str = "csi-kube/share";

/// Whose a pod is on its node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner<'a> {
    Volume(&'a str),
    /// The volumes that have this value of the parameter.
    Share(&'a str),
}

impl<'a> Owner<'a> {
    pub(super) fn of(pod: &'a Pod) -> Option<Self> {
        let share = annotation(pod, SHARE).map(Self::Share);
        share.or_else(|| annotation(pod, VOLUME).map(Self::Volume))
    }

    /// The same in every version. Another owner with the same hash is refused.
    pub(super) fn pod_name(self, driver: &str, node_uid: &str) -> String {
        let sum = match self {
            Self::Volume(volume) => hash(&[driver, node_uid, volume]),
            // The id of a volume is not empty.
            Self::Share(value) => hash(&[driver, node_uid, "", value]),
        };
        format!("fuse-{sum:016x}")
    }

    /// The annotations of a pod with these users.
    pub(super) fn annotations(self, users: &BTreeSet<&str>) -> impl Iterator<Item = (String, String)> {
        let share = match self {
            Self::Volume(_) => None,
            Self::Share(value) => Some((SHARE.to_owned(), value.to_owned())),
        };
        let users = users.iter().map(move |volume| (self.user_key(volume), (*volume).to_owned()));
        users.chain(share)
    }

    /// The annotation of a volume that uses the pod.
    pub(super) fn user_key(self, volume: &str) -> String {
        match self {
            Self::Volume(_) => VOLUME.to_owned(),
            Self::Share(_) => format!("{VOLUME}-{:016x}", hash(&[volume])),
        }
    }
}

/// The volumes that use a pod, each with its annotation.
pub(super) fn users(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
    let annotations = pod.metadata.annotations.iter().flatten();
    annotations
        .filter(|(key, _)| key.starts_with(VOLUME))
        .map(|(key, volume)| (key.as_str(), volume.as_str()))
}

/// FNV-1a.
fn hash(texts: &[&str]) -> u64 {
    let bytes = texts.join("\0");
    bytes
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
