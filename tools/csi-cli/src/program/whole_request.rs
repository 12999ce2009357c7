//! A whole request, given as protobuf JSON.

use std::path::Path;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::Value;

use super::secrets::{hide, text_of};
use csi_proto::internal::Redactor;

/// Reads a request from a file, or from standard input for `-`. Secrets are added to `hidden`.
///
/// # Errors
/// Says what is wrong and where, and never shows a secret.
pub(crate) fn read(
    path: &Path,
    message: &MessageDescriptor,
    hidden: &mut Redactor,
) -> Result<DynamicMessage, String> {
    let name = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
    let failed = |reason: &dyn std::fmt::Display| format!("the request in {name}: {reason}");
    let text = text_of(path).map_err(|error| failed(&error))?;
    parse(&text, message, hidden).map_err(|reason| failed(&reason))
}

fn parse(text: &str, message: &MessageDescriptor, hidden: &mut Redactor) -> Result<DynamicMessage, String> {
    // The parser's own message can quote the input.
    let value: Value = serde_json::from_str(text)
        .map_err(|error| format!("line {}, column {}: not JSON", error.line(), error.column()))?;
    hide(&value, hidden);
    check(&value, message, "").map_err(|reason| hidden.scrub(&reason))?;
    DynamicMessage::deserialize(message.clone(), value).map_err(|error| hidden.scrub(&error.to_string()))
}

/// Finds unknown field names, to list the known ones.
fn check(value: &Value, message: &MessageDescriptor, path: &str) -> Result<(), String> {
    let Value::Object(fields) = value else { return Ok(()) };
    if message.full_name().starts_with("google.protobuf.") {
        return Ok(());
    }
    for (name, value) in fields {
        let known = message.fields().find(|field| field.json_name() == name || field.name() == name);
        let Some(field) = known else {
            let known: Vec<_> = message.fields().map(|field| field.json_name().to_owned()).collect();
            return Err(format!("unknown field {path}{name}: {} has {}", message.name(), known.join(", ")));
        };
        check_field(value, &field, &format!("{path}{name}"))?;
    }
    Ok(())
}

fn check_field(value: &Value, field: &FieldDescriptor, path: &str) -> Result<(), String> {
    match (value, field.kind()) {
        (Value::Array(values), _) => values
            .iter()
            .enumerate()
            .try_for_each(|(at, value)| check_field(value, field, &format!("{path}[{at}]"))),
        _ if field.is_map() => Ok(()),
        (value, Kind::Message(message)) => check(value, &message, &format!("{path}.")),
        (Value::String(name), Kind::Enum(known)) if known.get_value_by_name(name).is_none() => {
            let known: Vec<_> = known.values().map(|value| value.name().to_owned()).collect();
            Err(format!("{path}: unknown value {name:?}: the known values are {}", known.join(", ")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let message = crate::program::rpcs::method(csi_proto::Rpc::CreateVolume).input();
        parse(text, &message, &mut Redactor::default()).unwrap_err()
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_known() {
        for (text, says) in [
            ("{", "line 1, column 1: not JSON"),
            (r#"{"nam": "x"}"#, "unknown field nam: CreateVolumeRequest has name, capacityRange"),
            (
                r#"{"volumeCapabilities": [{"accessMode": {"mode": "RWO"}}]}"#,
                "volumeCapabilities[0].accessMode.mode: unknown value \"RWO\": the known values are UNKNOWN, \
                 SINGLE_NODE_WRITER",
            ),
        ] {
            let error = error(text);
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn no_error_shows_a_secret() {
        for text in [
            r#"{"secrets": "canary"}"#,
            r#"{"secrets": ["canary"]}"#,
            r#"{"secrets": {"a": {"b": "canary"}}}"#,
        ] {
            assert!(!error(text).contains("canary"), "{}", error(text));
        }
    }
}
