//! Messages for people and for programs, without secrets.

use std::sync::LazyLock;

use csi_proto::escape;
use csi_proto::internal::{HIDDEN, MountFlags, Redactor, TOKENS_KEY};
use prost_reflect::{
    DynamicMessage, EnumDescriptor, ExtensionDescriptor, FieldDescriptor, Kind, MapKey, ReflectMessage as _,
    SerializeOptions, Value,
};

use super::values;

/// The only field that can hold secrets without being marked `csi_secret`.
const MOUNT_FLAGS: &str = "mount_flags";
/// The message that is printed in its own form.
const CAPABILITY: &str = "VolumeCapability";

/// Hides what `Debug` of csi-proto's messages hides: secrets, tokens, and mount flags not known to be
/// harmless. In all other text it hides the values in `hidden`, because a driver can return what it was sent.
pub(crate) fn redact(message: &mut DynamicMessage, hidden: &Redactor) {
    for (field, value) in message.fields_mut() {
        match value {
            Value::Map(entries) => {
                for (key, mut value) in std::mem::take(entries) {
                    if is_secret(&field) || is_tokens(&key) {
                        value = Value::String(HIDDEN.to_owned());
                    }
                    redact_value(&mut value, hidden);
                    let key = match key {
                        MapKey::String(key) => MapKey::String(hidden.scrub(&key)),
                        other => other,
                    };
                    entries.insert(key, value);
                }
            }
            Value::List(values) if field.name() == MOUNT_FLAGS => values.iter_mut().for_each(hide_flag),
            value if is_secret(&field) => *value = Value::String(HIDDEN.to_owned()),
            value => redact_value(value, hidden),
        }
    }
}

pub(crate) fn hide(message: &DynamicMessage, hidden: &mut Redactor) {
    for (field, value) in message.fields() {
        match value {
            Value::Map(entries) => {
                let secret = entries.iter().filter(|(key, _)| is_secret(&field) || is_tokens(key));
                hidden.add(secret.filter_map(|(_, value)| value.as_str()));
            }
            Value::List(values) if field.name() == MOUNT_FLAGS => {
                let flags = values.iter().filter_map(Value::as_str).filter(|flag| shown(flag) != *flag);
                hidden
                    .add(flags.flat_map(|flag| [flag, flag.split_once('=').map_or("", |(_, value)| value)]));
            }
            Value::List(values) => {
                values.iter().filter_map(Value::as_message).for_each(|inner| hide(inner, hidden));
            }
            Value::Message(inner) => hide(inner, hidden),
            _ => {}
        }
    }
}

fn is_secret(field: &FieldDescriptor) -> bool {
    static MARK: LazyLock<Option<ExtensionDescriptor>> =
        LazyLock::new(|| super::rpcs::POOL.get_extension_by_name("csi.v1.csi_secret"));
    MARK.as_ref().is_some_and(|mark| *field.options().get_extension(mark) == Value::Bool(true))
}

fn is_tokens(key: &MapKey) -> bool {
    key.as_str() == Some(TOKENS_KEY)
}

fn redact_value(value: &mut Value, hidden: &Redactor) {
    match value {
        Value::Message(inner) => redact(inner, hidden),
        Value::List(values) => values.iter_mut().for_each(|value| redact_value(value, hidden)),
        Value::String(text) => *text = hidden.scrub(text),
        _ => {}
    }
}

fn hide_flag(value: &mut Value) {
    if let Value::String(flag) = value {
        *flag = shown(flag);
    }
}

fn shown(flag: &str) -> String {
    let list = format!("{:?}", MountFlags(&[flag.to_owned()]));
    list.trim_start_matches('[').trim_end_matches(']').to_owned()
}

/// Protobuf JSON, including fields with the value 0. Redact the message first.
pub(crate) fn json(message: &DynamicMessage) -> serde_json::Value {
    let options = SerializeOptions::new().skip_default_fields(false);
    message.serialize_with_options(serde_json::value::Serializer, &options).unwrap_or_default()
}

/// The fields to print: those that are set, and all numbers and booleans.
pub(crate) fn visible(message: &DynamicMessage) -> Vec<(FieldDescriptor, Value)> {
    let descriptor = message.descriptor();
    let told = descriptor.fields().filter(|field| {
        message.has_field(field)
            || (!field.is_list() && matches!(field.kind(), Kind::Bool | Kind::Int32 | Kind::Int64))
    });
    told.map(|field| {
        let value = message.get_field(&field).into_owned();
        (field, value)
    })
    .collect()
}

/// Adds a field, and the fields nested in it, to the list as name and text.
pub(crate) fn flatten(
    path: &str,
    field: &FieldDescriptor,
    value: &Value,
    parent: &DynamicMessage,
    into: &mut Vec<(String, String)>,
) {
    match value {
        Value::Message(inner) if !is_well_known(inner) && inner.descriptor().name() != CAPABILITY => {
            for (field, value) in visible(inner) {
                flatten(&format!("{path}.{}", field.name()), &field, &value, inner, into);
            }
        }
        value => into.push((path.to_owned(), text(field, value, parent))),
    }
}

fn is_well_known(message: &DynamicMessage) -> bool {
    message.descriptor().full_name().starts_with("google.protobuf.")
}

fn text(field: &FieldDescriptor, value: &Value, parent: &DynamicMessage) -> String {
    match value {
        Value::List(values) => {
            values.iter().map(|value| text(field, value, parent)).collect::<Vec<_>>().join("; ")
        }
        Value::Map(entries) => {
            let pairs = entries.iter().map(|(key, value)| {
                let key = key.as_str().map_or_else(|| format!("{key:?}"), str::to_owned);
                format!("{}={}", escape::terminal(&key), text(field, value, parent))
            });
            let mut pairs: Vec<_> = pairs.collect();
            pairs.sort();
            pairs.join(",")
        }
        Value::EnumNumber(number) => match field.kind() {
            Kind::Enum(known) => enum_name(&known, *number),
            _ => number.to_string(),
        },
        Value::I64(count) if is_bytes(field, parent) => values::bytes(*count),
        Value::Message(inner) if inner.descriptor().name() == "Int64Value" => {
            match inner.get_field_by_name("value").as_deref() {
                Some(Value::I64(count)) => values::bytes(*count),
                _ => String::new(),
            }
        }
        Value::Message(inner) if is_well_known(inner) => match json(inner) {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        },
        Value::Message(inner) if inner.descriptor().name() == CAPABILITY => capability(inner),
        Value::Message(inner) => match texts(inner).as_slice() {
            [(_, only)] => only.clone(),
            several => {
                several.iter().map(|(name, text)| format!("{name}={text}")).collect::<Vec<_>>().join(" ")
            }
        },
        Value::String(text) => escape::terminal(text).into_owned(),
        Value::Bool(value) => value.to_string(),
        Value::I32(value) => value.to_string(),
        Value::I64(value) => value.to_string(),
        other => format!("{other:?}"),
    }
}

/// A volume capability as the command line takes it: `SINGLE_NODE_WRITER,mount,ext4,noatime`.
fn capability(message: &DynamicMessage) -> String {
    let mut words = vec![String::new()];
    for (field, value) in visible(message) {
        let fields = value.as_message().map(texts).unwrap_or_default();
        let text = |name| fields.iter().find(|(other, _)| other == name).map(|(_, text)| text.clone());
        if let Some(mode) = text("mode") {
            words[0] = mode;
            continue;
        }
        words.push(field.name().to_owned());
        // The position of the filesystem is kept, even if empty, when flags follow.
        if !fields.is_empty() {
            words.push(text("fs_type").unwrap_or_default());
        }
        words.extend(text(MOUNT_FLAGS).map(|flags| flags.replace("; ", ",")));
        words.extend(text("volume_mount_group").map(|group| format!("group={group}")));
    }
    words.join(",")
}

pub(crate) fn texts(message: &DynamicMessage) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    for (field, value) in visible(message) {
        flatten(field.name(), &field, &value, message, &mut fields);
    }
    fields
}

fn is_bytes(field: &FieldDescriptor, parent: &DynamicMessage) -> bool {
    let name = field.name();
    let of_usage = || matches!(parent.get_field_by_name("unit").as_deref(), Some(Value::EnumNumber(1)));
    name.ends_with("_bytes") || name.ends_with("_capacity") || name == "byte_offset" || of_usage()
}

fn enum_name(known: &EnumDescriptor, number: i32) -> String {
    match known.get_value(number) {
        Some(value) => value.name().to_owned(),
        None => {
            let names: Vec<_> = known.values().map(|value| value.name().to_owned()).collect();
            format!("{number} (unknown; the known values are {})", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::rpcs;
    use crate::program::table::Shown;
    use csi_proto::v1;

    fn dynamic(name: &str, message: &impl prost::Message) -> DynamicMessage {
        let descriptor = rpcs::POOL.get_message_by_name(name).unwrap();
        DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice()).unwrap()
    }

    #[test]
    fn nothing_secret_is_shown() {
        let request = v1::NodeStageVolumeRequest {
            volume_id: "shown\x1b[2J".into(),
            secrets: [("key".into(), "canary-1".into())].into(),
            publish_context: [(TOKENS_KEY.into(), "canary-2".into())].into(),
            volume_capability: Some(v1::VolumeCapability {
                access_type: Some(v1::volume_capability::AccessType::Mount(
                    v1::volume_capability::MountVolume {
                        mount_flags: vec!["noatime".into(), "password=canary-3".into()],
                        ..Default::default()
                    },
                )),
                ..Default::default()
            }),
            ..Default::default()
        };
        let mut message = dynamic("csi.v1.NodeStageVolumeRequest", &request);
        let mut hidden = Redactor::default();
        hide(&message, &mut hidden);
        assert_eq!(hidden.scrub("canary-1 canary-2 canary-3 noatime"), "*** *** *** noatime");
        redact(&mut message, &hidden);
        for text in [json(&message).to_string(), Shown::default().lines(&message).join("\n")] {
            assert!(!text.contains("canary") && !text.contains('\x1b'), "{text}");
            assert!(
                text.contains("shown") && text.contains("noatime") && text.contains("password=***"),
                "{text}"
            );
        }
    }

    #[test]
    fn what_a_driver_answers_of_a_secret_is_hidden_too() {
        let volume = v1::Volume {
            volume_id: "pvc-1".into(),
            volume_context: [("login".into(), "ann:canary".into()), ("canary".into(), "x".into())].into(),
            ..Default::default()
        };
        let answer = v1::CreateVolumeResponse { volume: Some(volume) };
        let mut message = dynamic("csi.v1.CreateVolumeResponse", &answer);
        let mut hidden = Redactor::default();
        hidden.add(["canary"]);
        redact(&mut message, &hidden);
        let text = json(&message).to_string();
        assert!(!text.contains("canary") && text.contains("ann:***") && text.contains("pvc-1"), "{text}");
    }

    #[test]
    fn a_list_is_a_table_and_an_unknown_number_says_what_is_known() {
        let usage = v1::VolumeUsage { total: 1 << 30, unit: 1, ..Default::default() };
        let other = v1::VolumeUsage { total: 7, unit: 9, ..Default::default() };
        let answer = v1::NodeGetVolumeStatsResponse { usage: vec![usage, other], ..Default::default() };
        let lines = Shown::default().lines(&dynamic("csi.v1.NodeGetVolumeStatsResponse", &answer));
        assert!(lines[0].starts_with("AVAILABLE"), "{lines:#?}");
        assert!(lines[1].contains("1 GiB (1073741824)") && lines[1].ends_with("BYTES"), "{lines:#?}");
        assert!(lines[2].ends_with("9 (unknown; the known values are UNKNOWN, BYTES, INODES)"), "{lines:#?}");
    }

    #[test]
    fn the_next_message_has_no_heading_and_only_what_is_new() {
        let block = |byte_offset| v1::BlockMetadata { byte_offset, size_bytes: 4096 };
        let answer = |at| v1::GetMetadataAllocatedResponse {
            block_metadata_type: 2,
            volume_capacity_bytes: 1 << 20,
            block_metadata: vec![block(at), block(at + 8192)],
        };
        let mut shown = Shown::default();
        let name = "csi.v1.GetMetadataAllocatedResponse";
        let first = shown.lines(&dynamic(name, &answer(0)));
        let second = shown.lines(&dynamic(name, &answer(1 << 19)));
        assert_eq!((first.len(), second.len()), (5, 2), "{first:#?} {second:#?}");
        assert!(
            first[0].starts_with("BYTE_OFFSET") && second[0].starts_with("512 KiB (524288)"),
            "{second:#?}"
        );
    }
}
