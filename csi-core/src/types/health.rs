//! Health of volumes and backends, in the form of spec v1.13.0.

use std::collections::BTreeSet;

use csi_proto::v1;

use super::id::STRING_MAX;
use super::{VolumeCapability, VolumeId};
use crate::error::{Error, Result};

/// How severe a volume's problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VolumeHealthStatus {
    /// Usable, but degraded.
    Degraded,
    /// Not usable: from anywhere if the controller reports it; from this node if the node reports it.
    Inaccessible,
    /// Data is known or strongly suspected to be lost.
    DataLoss,
}

/// One problem of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeHealthEntry {
    /// How severe the problem is.
    pub status: VolumeHealthStatus,
    /// One CamelCase word for programs, for example `PoolFull`; unique together with the status.
    pub reason: String,
    /// Text for people; cut off after 128 bytes.
    pub message: String,
}

/// A volume and its problems; a healthy volume has none.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeHealth {
    /// The volume.
    pub volume_id: VolumeId,
    /// The problems. An entry stays until its condition is gone.
    pub entries: Vec<VolumeHealthEntry>,
}

/// How severe a backend's problem is, as one node sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StorageHealthStatus {
    /// Usable, but degraded.
    Degraded,
    /// Not reachable from this node.
    Unreachable,
}

/// One problem of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StorageHealthEntry {
    /// How severe the problem is.
    pub status: StorageHealthStatus,
    /// One CamelCase word for programs, unique together with the status and the capability.
    pub reason: String,
    /// Text for people; cut off after 128 bytes.
    pub message: String,
    /// The kind of volumes that the problem affects; `None` means all.
    pub capability: Option<VolumeCapability>,
}

impl VolumeHealthEntry {
    /// Creates a problem: its severity, one CamelCase word for programs, and a text for people.
    pub fn new(status: VolumeHealthStatus, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), message: message.into() }
    }
}

impl VolumeHealth {
    /// Creates the health of a volume with these problems; none means healthy.
    pub fn new(volume_id: VolumeId, entries: impl IntoIterator<Item = VolumeHealthEntry>) -> Self {
        Self { volume_id, entries: entries.into_iter().collect() }
    }
}

impl StorageHealthEntry {
    /// Creates a problem that affects all kinds of volumes: its severity, one CamelCase word for programs,
    /// and a text for people.
    pub fn new(status: StorageHealthStatus, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), message: message.into(), capability: None }
    }
}

impl VolumeHealthStatus {
    fn wire(self) -> i32 {
        (match self {
            Self::Degraded => v1::VolumeHealthErrorType::Degraded,
            Self::Inaccessible => v1::VolumeHealthErrorType::Inaccessible,
            Self::DataLoss => v1::VolumeHealthErrorType::DataLoss,
        }) as i32
    }
}

impl StorageHealthStatus {
    fn wire(self) -> i32 {
        (match self {
            Self::Degraded => v1::StorageHealthErrorType::StorageDegraded,
            Self::Unreachable => v1::StorageHealthErrorType::StorageUnreachable,
        }) as i32
    }
}

impl VolumeHealth {
    /// Checks the spec's rules and returns the wire's form.
    // spec: controller-get-volume-health.current, volume-health.unique, node-get-volume-health.current
    pub(crate) fn answer(self) -> Result<v1::VolumeHealth> {
        let mut seen = BTreeSet::new();
        let mut entry = |entry: VolumeHealthEntry| {
            check_reason("health_statuses.reason", &entry.reason)?;
            let status = entry.status.wire();
            if !seen.insert((status, entry.reason.clone())) {
                let VolumeHealthEntry { status, reason, .. } = entry;
                return Err(Error::broken(format!(
                    "health_statuses: {status:?} and {reason} are there twice"
                )));
            }
            let message = shortened(entry.message);
            Ok(v1::volume_health::VolumeHealthEntry { status, reason: entry.reason, message })
        };
        let health_statuses = self.entries.into_iter().map(&mut entry).collect::<Result<_>>()?;
        Ok(v1::VolumeHealth { volume_id: self.volume_id.into(), health_statuses })
    }

    /// Like [`answer`](Self::answer), and checks that the answer is for this volume.
    pub(crate) fn answer_for(self, volume_id: &str) -> Result<v1::VolumeHealth> {
        if self.volume_id.as_str() != volume_id {
            let other = self.volume_id;
            return Err(Error::broken(format!(
                "volume_health.volume_id is {other}, not the volume asked about"
            )));
        }
        self.answer()
    }

    /// The health in the form of spec v1.12.0: whether there is a problem, and which.
    #[allow(deprecated, reason = "this is the form of v1.12.0")]
    pub(crate) fn condition(&self) -> v1::VolumeCondition {
        let told: Vec<String> =
            self.entries.iter().map(|entry| format!("{}: {}", entry.reason, entry.message)).collect();
        let message = if told.is_empty() { "nothing is wrong".to_owned() } else { told.join("; ") };
        v1::VolumeCondition { abnormal: !self.entries.is_empty(), message: shortened(message) }
    }
}

/// A volume's health in the form of spec v1.12.0. `None` for a volume that disappeared meanwhile. If the
/// health cannot be determined, the condition is abnormal.
#[allow(deprecated, reason = "this is the form of v1.12.0")]
pub(crate) fn condition(health: Result<VolumeHealth>) -> Option<v1::VolumeCondition> {
    match health {
        Ok(health) => Some(health.condition()),
        Err(Error::VolumeNotFound(_)) => None,
        Err(error) => {
            tracing::warn!("a volume's health is unknown: {error}");
            let message = shortened(format!("its health is unknown: {error}"));
            Some(v1::VolumeCondition { abnormal: true, message })
        }
    }
}

/// Checks the spec's rules and returns the wire's form of the backends' health.
// spec: node-get-storage-health.unique
pub(crate) fn storage_health(
    entries: Vec<StorageHealthEntry>,
) -> Result<Vec<v1::node_get_storage_health_response::StorageBackendHealth>> {
    let mut seen: Vec<(StorageHealthStatus, String, Option<VolumeCapability>)> = Vec::new();
    let mut entry = |entry: StorageHealthEntry| {
        check_reason("backend_health.reason", &entry.reason)?;
        let key = (entry.status, entry.reason.clone(), entry.capability.clone());
        if seen.contains(&key) {
            let (status, reason, _) = key;
            let text =
                format!("backend_health: {status:?} and {reason} are there twice for one volume_capability");
            return Err(Error::broken(text));
        }
        seen.push(key);
        Ok(v1::node_get_storage_health_response::StorageBackendHealth {
            status: entry.status.wire(),
            reason: entry.reason,
            message: shortened(entry.message),
            volume_capability: entry.capability.as_ref().map(Into::into),
        })
    };
    entries.into_iter().map(&mut entry).collect()
}

/// Checks that the reason is one CamelCase word.
// spec: volume-health.reason
fn check_reason(field: &str, reason: &str) -> Result<()> {
    let is_word = reason.starts_with(|c: char| c.is_ascii_uppercase())
        && reason.chars().all(|c| c.is_ascii_alphanumeric())
        && reason.len() <= STRING_MAX;
    if is_word {
        Ok(())
    } else {
        Err(Error::broken(format!("{field} {reason:?} is not one CamelCase word of at most 128 bytes")))
    }
}

/// Text for people, cut to the spec's size limit for a string field.
pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > STRING_MAX {
        const END: &str = "…";
        let mut length = STRING_MAX - END.len();
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        text.truncate(length);
        text.push_str(END);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_people_are_cut_between_characters() {
        assert_eq!(shortened("x".repeat(128)), "x".repeat(128));
        assert_eq!(shortened("x".repeat(129)), "x".repeat(125) + "…");
        let cut = shortened("é".repeat(100));
        assert_eq!(cut, "é".repeat(62) + "…");
        assert!(cut.len() <= 128);
    }

    // spec: volume-health.reason
    #[test]
    fn a_reason_is_one_camel_case_word() {
        for good in ["PoolFull", "A", "Raid5Degraded"] {
            assert!(check_reason("reason", good).is_ok(), "{good}");
        }
        for bad in ["", "poolFull", "Pool Full", "Pool-Full", "Pool_Full", &"A".repeat(129)] {
            assert!(check_reason("reason", bad).is_err(), "{bad}");
        }
    }
}
