use std::collections::BTreeMap;
use std::fmt;

use crate::Rpc;
use crate::redact::SecretMap;

/// Keys and values for the maps in requests, for all RPCs or for one: secrets, parameters, contexts.
///
/// The text form has one `key=value` per line, `#` before comments, and a line `[CreateVolume]` before the
/// pairs for that RPC alone. The values can be secrets: `Debug` shows only the keys.
///
/// ```
/// use csi_proto::{Pairs, Rpc};
///
/// let pairs: Pairs = "user=ann\n[CreateVolume]\nuser=bob\n".parse()?;
/// assert_eq!(pairs.of(Rpc::CreateVolume)["user"], "bob");
/// assert_eq!(pairs.of(Rpc::DeleteVolume)["user"], "ann");
/// assert!(!format!("{pairs:?}").contains("ann"));
/// assert_eq!(Pairs::from([("user", "ann")]).of(Rpc::DeleteVolume), pairs.of(Rpc::DeleteVolume));
/// # Ok::<(), csi_proto::PairsError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Pairs(BTreeMap<String, BTreeMap<String, String>>);

/// A line that [`Pairs`] can't read. It can be a secret, so its text is not in the error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairsError {
    line: usize,
    reason: &'static str,
}

impl fmt::Display for PairsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

impl std::error::Error for PairsError {}

impl std::str::FromStr for Pairs {
    type Err = PairsError;

    fn from_str(text: &str) -> Result<Self, PairsError> {
        let mut pairs = Self::default();
        let mut rpc = String::new();
        for (at, line) in text.lines().enumerate() {
            let wrong = |reason| PairsError { line: at + 1, reason };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                if !Rpc::ALL.iter().any(|known| known.name() == name) {
                    return Err(wrong("no RPC has the name between its brackets"));
                }
                rpc = name.to_owned();
                continue;
            }
            match line.split_once('=') {
                Some((key, value)) if !key.trim().is_empty() => {
                    let part = pairs.0.entry(rpc.clone()).or_default();
                    part.insert(key.trim().to_owned(), value.trim().to_owned());
                }
                _ => return Err(wrong("write key=value, or [RPC] as a heading")),
            }
        }
        Ok(pairs)
    }
}

impl Pairs {
    /// Reads the text form, as [`str::parse`].
    ///
    /// # Errors
    /// The number of the first line that is neither a pair nor a heading with the name of an RPC.
    pub fn parse(text: &str) -> Result<Self, PairsError> {
        text.parse()
    }

    /// Adds or replaces a pair for all RPCs.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.0.entry(String::new()).or_default().insert(key.into(), value.into());
    }

    /// The pairs for this RPC: those for all RPCs, overridden by its own.
    pub fn of(&self, rpc: Rpc) -> BTreeMap<String, String> {
        let part = |name: &str| self.0.get(name).cloned().unwrap_or_default();
        let mut all = part("");
        all.extend(part(rpc.name()));
        all
    }

    /// Whether there is no pair for any RPC.
    pub fn is_empty(&self) -> bool {
        self.values().next().is_none()
    }

    /// The values for all RPCs and for each.
    pub fn values(&self) -> impl Iterator<Item = &String> {
        self.0.values().flat_map(BTreeMap::values)
    }
}

/// Pairs for all RPCs.
impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Pairs {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let all = pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        Self(BTreeMap::from([(String::new(), all)]))
    }
}

/// Pairs for all RPCs.
impl<K: Into<String>, V: Into<String>, const N: usize> From<[(K, V); N]> for Pairs {
    fn from(pairs: [(K, V); N]) -> Self {
        pairs.into_iter().collect()
    }
}

impl fmt::Debug for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(rpc, part)| (rpc, SecretMap(part)))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_for_all_rpcs_or_for_one() {
        let pairs = Pairs::parse("# who\nuser = me\n[CreateVolume]\nuser=other\nkey=a=b\n").unwrap();
        assert_eq!(pairs.of(Rpc::DeleteVolume), [("user".into(), "me".into())].into());
        assert_eq!(pairs.of(Rpc::CreateVolume)["user"], "other");
        assert_eq!(pairs.of(Rpc::CreateVolume)["key"], "a=b");
        let shown = format!("{pairs:?}");
        assert!(shown.contains("user") && !shown.contains("other"), "{shown}");
    }

    #[test]
    fn errors_do_not_show_the_line() {
        for text in ["a=b\nhunter2", "a=b\n[hunter2]", "a=b\n=hunter2"] {
            let error = Pairs::parse(text).unwrap_err().to_string();
            assert!(error.starts_with("line 2: ") && !error.contains("hunter2"), "{error}");
        }
    }
}
