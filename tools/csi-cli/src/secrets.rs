//! Secrets: read from a file, sent in the right calls, and never printed.

use std::collections::BTreeMap;
use std::fmt;

use csi_proto::{Pairs, Redactor, Rpc, RpcRequest};

/// The secrets of calls, for every RPC or for one.
///
/// Its `Debug` shows only the keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Secrets(Pairs);

impl Secrets {
    /// Parses the text form of [`Pairs`], or a JSON object whose values are strings.
    ///
    /// # Errors
    /// Names the line that is neither, and never shows its text.
    #[cfg(any(test, feature = "program"))]
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if !text.trim_start().starts_with('{') {
            return Pairs::parse(text).map(Self).map_err(|error| error.to_string());
        }
        // The parser's own message can quote the input.
        let parsed: Result<BTreeMap<String, String>, serde_json::Error> = serde_json::from_str(text);
        let parsed = parsed
            .map_err(|error| format!("line {}: not a JSON object whose values are strings", error.line()))?;
        Ok(Self(parsed.into_iter().collect()))
    }

    #[cfg(feature = "program")]
    pub(crate) fn set(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.0.set(key, value);
    }

    /// The secrets for this RPC: those for all RPCs, overridden by its own.
    pub(crate) fn of(&self, rpc: Rpc) -> BTreeMap<String, String> {
        self.0.of(rpc)
    }

    /// The request with the secrets of its RPC, if it has a field for them.
    pub(crate) fn added_to<R: RpcRequest>(&self, mut request: R) -> R {
        if let Some(secrets) = request.secrets_mut() {
            *secrets = self.of(R::RPC);
        }
        request
    }

    pub(crate) fn hidden(&self) -> Redactor {
        let mut hidden = Redactor::default();
        hidden.add(self.0.values());
        hidden
    }
}

impl From<Pairs> for Secrets {
    fn from(pairs: Pairs) -> Self {
        Self(pairs)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
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
}
