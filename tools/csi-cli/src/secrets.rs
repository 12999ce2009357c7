//! Secrets: read from a file, sent in the right calls, and never printed.

#[cfg(any(test, feature = "program"))]
use std::collections::BTreeMap;

use csi_proto::internal::Redactor;
use csi_proto::{Pairs, RpcRequest};

/// Parses the text form of [`Pairs`], or a JSON object whose values are strings.
///
/// # Errors
/// Names the line that is neither, and never shows its text.
#[cfg(any(test, feature = "program"))]
pub(crate) fn parse(text: &str) -> Result<Pairs, String> {
    if !text.trim_start().starts_with('{') {
        return Pairs::parse(text).map_err(|error| error.to_string());
    }
    // The parser's own message can quote the input.
    let parsed: Result<BTreeMap<String, String>, serde_json::Error> = serde_json::from_str(text);
    let parsed = parsed
        .map_err(|error| format!("line {}: not a JSON object whose values are strings", error.line()))?;
    Ok(parsed.into_iter().collect())
}

/// The request with the secrets of its RPC, if it has a field for them.
pub(crate) fn with<R: RpcRequest>(secrets: &Pairs, mut request: R) -> R {
    if let Some(field) = request.secrets_mut() {
        *field = secrets.of(R::RPC);
    }
    request
}

pub(crate) fn hidden(secrets: &Pairs) -> Redactor {
    let mut hidden = Redactor::default();
    hidden.add(secrets.values());
    hidden
}

#[cfg(test)]
mod tests {
    use csi_proto::Rpc;

    use super::*;

    #[test]
    fn both_forms_are_read_and_headings_are_for_one_rpc() {
        let due =
            BTreeMap::from([("user".to_owned(), "ann".to_owned()), ("key".to_owned(), "a=b".to_owned())]);
        for text in [r#"{"user": "ann", "key": "a=b"}"#, "# comment\nuser = ann\n\nkey=a=b\n"] {
            assert_eq!(parse(text).unwrap().of(Rpc::DeleteVolume), due);
        }
        let secrets = parse("user=ann\n[CreateVolume]\nuser=bob\n").unwrap();
        assert_eq!(secrets.of(Rpc::CreateVolume)["user"], "bob");
        assert_eq!(secrets.of(Rpc::DeleteVolume)["user"], "ann");
        assert!(format!("{secrets:?}").contains("user") && !format!("{secrets:?}").contains("ann"));
    }

    #[test]
    fn errors_do_not_show_what_is_there() {
        for text in
            [r#"{"user": ["canary"]}"#, r#"{"user": canary"#, "canary\n", "[canary]", "{\"a\": \"b\"} canary"]
        {
            let error = parse(text).unwrap_err();
            assert!(error.contains("line 1") && !error.contains("canary"), "{error}");
        }
    }
}
