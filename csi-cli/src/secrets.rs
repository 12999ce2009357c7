//! Secrets: from a file, sent where they belong, and in no output.

use std::collections::BTreeMap;
use std::fmt;

use csi_core::Rpc;
use csi_proto::redact::{HIDDEN, SecretMap};

/// What calls carry of secrets: for every RPC, or for one.
///
/// Its `Debug` shows the keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(BTreeMap<String, BTreeMap<String, String>>);

impl Secrets {
    /// Reads lines of `key=value`, with `#` before comments, and a line `[CreateVolume]` before those that are for that
    /// RPC alone; or a JSON object whose values are strings.
    ///
    /// # Errors
    /// Which line is neither; never what it holds.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim_start().starts_with('{') {
            // The parser's own words may quote what it found.
            let parsed = serde_json::from_str(text);
            let for_all = parsed.map_err(|error: serde_json::Error| {
                format!("line {}: not a JSON object whose values are strings", error.line())
            })?;
            return Ok(Self(BTreeMap::from([(String::new(), for_all)])));
        }
        let (mut secrets, mut rpc) = (Self::default(), String::new());
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                if !Rpc::ALL.iter().any(|known| known.name() == name) {
                    return Err(format!("line {}: no RPC has the name between its brackets", at + 1));
                }
                rpc = name.to_owned();
                continue;
            }
            match line.split_once('=') {
                Some((key, value)) if !key.trim().is_empty() => {
                    let part = secrets.0.entry(rpc.clone()).or_default();
                    part.insert(key.trim().to_owned(), value.trim().to_owned());
                }
                _ => return Err(format!("line {}: write key=value, or [RPC] as a heading", at + 1)),
            }
        }
        Ok(secrets)
    }

    /// Adds one for every RPC, or changes it.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.0.entry(String::new()).or_default().insert(key.into(), value.into());
    }

    /// Those that this RPC is sent: the ones for all, and its own over them.
    pub fn of(&self, rpc: Rpc) -> BTreeMap<String, String> {
        let part = |name: &str| self.0.get(name).cloned().unwrap_or_default();
        let mut all = part("");
        all.extend(part(rpc.name()));
        all
    }

    /// What hides their values.
    pub fn hidden(&self) -> Hidden {
        let mut hidden = Hidden::default();
        hidden.add(self.0.values().flat_map(BTreeMap::values));
        hidden
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(rpc, part)| (rpc, SecretMap(part)))).finish()
    }
}

/// Values that must not be printed.
#[derive(Default, Clone)]
pub struct Hidden(Vec<String>);

/// A shorter value is hidden as a word, not within one: any text may hold its letters.
const SHORTEST: usize = 4;

impl Hidden {
    /// Hides these values from now on.
    pub fn add<V: AsRef<str>>(&mut self, values: impl IntoIterator<Item = V>) {
        let values: Vec<V> = values.into_iter().collect();
        let values = values.iter().map(AsRef::as_ref).flat_map(|value| [value, value.trim()]);
        self.0.extend(values.filter(|value| !value.is_empty()).map(str::to_owned));
        // Of a value within another one, the longer is hidden first.
        self.0.sort_by_key(|value| std::cmp::Reverse(value.len()));
        self.0.dedup();
    }

    /// Hides what the other one hides, too.
    pub fn add_all(&mut self, other: &Self) {
        self.add(&other.0);
    }

    /// The text without them: a driver may put what it was sent into its answers.
    pub fn scrub(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, value| match value.len() < SHORTEST {
            false => text.replace(value, HIDDEN),
            true => without_word(&text, value),
        })
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values", self.0.len())
    }
}

fn without_word(text: &str, word: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, after) = (&rest[..at], &rest[at + word.len()..]);
        let joins = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
        let before_it = before.chars().next_back().or_else(|| result.chars().next_back());
        let is_word = !joins(before_it) && !joins(after.chars().next());
        result.push_str(before);
        result.push_str(if is_word { HIDDEN } else { word });
        rest = after;
    }
    result + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_and_headings_are_for_one_rpc() {
        let due =
            BTreeMap::from([("user".to_owned(), "ann".to_owned()), ("key".to_owned(), "a=b".to_owned())]);
        for text in [r#"{"user": "ann", "key": "a=b"}"#, "# comment\nuser = ann\n\nkey=a=b\n"] {
            assert_eq!(Secrets::parse(text).unwrap().of(Rpc::DeleteVolume), due);
        }
        let secrets = Secrets::parse("user=ann\n[CreateVolume]\nuser=bob\n").unwrap();
        assert_eq!(secrets.of(Rpc::CreateVolume)["user"], "bob");
        assert_eq!(secrets.of(Rpc::DeleteVolume)["user"], "ann");
        assert!(format!("{secrets:?}").contains("user") && !format!("{secrets:?}").contains("ann"));
    }

    #[test]
    fn errors_do_not_show_what_is_there() {
        for text in
            [r#"{"user": ["canary"]}"#, r#"{"user": canary"#, "canary\n", "[canary]", "{\"a\": \"b\"} canary"]
        {
            let error = Secrets::parse(text).unwrap_err();
            assert!(error.contains("line 1") && !error.contains("canary"), "{error}");
        }
    }

    #[test]
    fn values_are_hidden_wherever_they_stand() {
        let secrets = Secrets::parse("a=canary\nb=canary-and-more\nc=abc\nd=").unwrap();
        let hidden = secrets.hidden();
        assert_eq!(hidden.scrub("xcanaryx canary-and-more"), "x***x ***");
        assert_eq!(hidden.scrub("abc 'abc' abcabc abcd"), "*** '***' abcabc abcd");
        assert!(!format!("{hidden:?}").contains("canary"));
    }
}
