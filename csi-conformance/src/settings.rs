//! The settings of a run: the driver's endpoint, the directories for volumes, and what requests contain.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use csi_proto::Endpoint;
use csi_proto::v1::volume_capability::MountVolume;

/// Keys and values, for all RPCs or for one.
///
/// The text form has one `key=value` per line, `#` before comments, and a line `[CreateVolume]` before the
/// pairs for that RPC alone. Secrets are passed in this type only; its `Debug` shows only the keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Pairs(BTreeMap<String, BTreeMap<String, String>>);

impl Pairs {
    /// Parses the text form.
    ///
    /// # Errors
    /// The number of a line that is neither a pair nor a heading. The line can be a secret and is not shown.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut pairs, mut rpc) = (Self::default(), String::new());
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                if !csi_proto::Rpc::ALL.iter().any(|known| known.name() == name) {
                    return Err(format!("line {}: the spec has no RPC named {name:?}", at + 1));
                }
                rpc = name.to_owned();
                continue;
            }
            let (key, value) = line
                .split_once('=')
                .ok_or_else(|| format!("line {}: write key=value, or [RPC] as a heading", at + 1))?;
            pairs.0.entry(rpc.clone()).or_default().insert(key.trim().to_owned(), value.trim().to_owned());
        }
        Ok(pairs)
    }

    /// The pairs for this RPC: those for all RPCs, overridden by its own.
    pub(crate) fn of(&self, rpc: csi_proto::Rpc) -> BTreeMap<String, String> {
        let part = |name: &str| self.0.get(name).cloned().unwrap_or_default();
        let mut all = part("");
        all.extend(part(rpc.name()));
        all
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values().next().is_none()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &String> {
        self.0.values().flat_map(BTreeMap::values)
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Pairs {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let all = pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        Self(BTreeMap::from([(String::new(), all)]))
    }
}

impl std::fmt::Debug for Pairs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.values().flat_map(BTreeMap::keys)).finish()
    }
}

/// Whether the kit sees the mounts that the driver makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MountAccess {
    /// The kit is in the node's mount namespace: it checks mounts, and writes and reads files.
    #[default]
    Here,
    /// The kit is elsewhere: volumes are staged and published, but not checked.
    Elsewhere,
}

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) endpoint: Endpoint,
    pub(crate) controller_endpoint: Option<Endpoint>,
    pub(crate) second_node: Option<Endpoint>,
    pub(crate) staging: Option<PathBuf>,
    pub(crate) target: Option<PathBuf>,
    pub(crate) mount_access: MountAccess,
    pub(crate) secrets: Pairs,
    pub(crate) parameters: Pairs,
    pub(crate) mutable_parameters: Pairs,
    /// A volume that exists before the run.
    pub(crate) volume: Option<(String, Pairs)>,
    pub(crate) unwell_volume: Option<String>,
    /// The attributes of inline ephemeral volumes, if the driver supports them.
    pub(crate) ephemeral: Option<Pairs>,
    /// The filesystem of volumes, and their mount flags. The Debug of this type shows no flags.
    pub(crate) mount: MountVolume,
    pub(crate) size: i64,
    pub(crate) enforces_size: bool,
    pub(crate) deadline: Duration,
    pub(crate) journal: Option<PathBuf>,
    pub(crate) strict: bool,
    pub(crate) only: Vec<String>,
    pub(crate) skip: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_for_all_rpcs_or_for_one() {
        let pairs = Pairs::parse("# who\nuser = me\n[CreateVolume]\nuser=other\nkey=a=b\n").unwrap();
        assert_eq!(pairs.of(csi_proto::Rpc::DeleteVolume), [("user".into(), "me".into())].into());
        assert_eq!(pairs.of(csi_proto::Rpc::CreateVolume)["user"], "other");
        assert_eq!(pairs.of(csi_proto::Rpc::CreateVolume)["key"], "a=b");
        assert!(!format!("{pairs:?}").contains("me"), "{pairs:?}");
        let error = Pairs::parse("a=b\nhunter2").unwrap_err();
        assert!(error.contains("line 2") && !error.contains("hunter2"), "{error}");
        assert!(Pairs::parse("[NoSuchRpc]").is_err());
    }

    #[test]
    fn nobody_is_shown_the_mount_flags() {
        let kit = crate::Kit::new("/csi.sock".parse().unwrap()).mount_flags(["password=hunter2"]);
        assert!(!format!("{kit:?}").contains("hunter2"), "{kit:?}");
    }
}
