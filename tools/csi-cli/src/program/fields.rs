//! The fields of a request as flags, generated from its descriptor.

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, ValueHint};
use csi_proto::Rpc;
use csi_proto::v1;
use prost::Message;
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage as _, Value,
};
use v1::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};

use super::{secrets, show, values};
use csi_proto::internal::Redactor;

enum Form {
    Secrets,
    Pairs,
    Capability,
    Range,
    Source,
    Requirement,
    Topology,
    Flag,
    Bytes,
    Number,
    Text,
}

impl Form {
    fn of(field: &FieldDescriptor) -> Option<Self> {
        Some(match field.kind() {
            _ if field.is_map() && field.name() == "secrets" => Self::Secrets,
            _ if field.is_map() => Self::Pairs,
            Kind::String => Self::Text,
            Kind::Bool => Self::Flag,
            Kind::Int64 => Self::Bytes,
            Kind::Int32 => Self::Number,
            Kind::Message(message) => match message.name() {
                "VolumeCapability" => Self::Capability,
                "CapacityRange" => Self::Range,
                "VolumeContentSource" => Self::Source,
                "TopologyRequirement" => Self::Requirement,
                "Topology" => Self::Topology,
                _ => return None,
            },
            _ => return None,
        })
    }
}

pub(crate) fn arguments(request: &MessageDescriptor) -> Vec<Arg> {
    request.fields().flat_map(|field| of_field(&field)).collect()
}

fn flag(name: impl Into<String>, value: &'static str, help: impl Into<String>) -> Arg {
    let name = name.into();
    Arg::new(name.clone()).long(name).value_name(value).help(help.into())
}

/// Where a published volume is: the name in the requests for usage and expansion. The request for health has
/// another one for the same.
const VOLUME_PATH: &str = "volume-path";
const HEALTH_PATH: &str = "volume-publish-path";

/// A path on the node. Drivers need absolute paths, so a relative one is resolved against the current
/// directory.
fn path(name: impl Into<String>, help: impl Into<String>) -> Arg {
    let absolute = |text: &str| {
        let path = std::path::absolute(text).map_err(|error| error.to_string())?;
        path.into_os_string().into_string().map_err(|_| "the current directory is not UTF-8".to_owned())
    };
    flag(name, "PATH", help).value_hint(ValueHint::AnyPath).value_parser(ValueParser::from(absolute))
}

fn of_field(field: &FieldDescriptor) -> Vec<Arg> {
    let name = field.name().replace('_', "-");
    let words = field.name().replace('_', " ");
    let place = ValueParser::from(values::topology);
    match Form::of(field) {
        Some(Form::Secrets) => secrets::arguments().into(),
        Some(Form::Pairs) => vec![
            flag(name, "KEY=VALUE", format!("A pair of the {words} (repeatable)"))
                .action(ArgAction::Append)
                .value_parser(ValueParser::from(values::pair)),
        ],
        Some(Form::Capability) => {
            let help = "The capability: rwo,mount,ext4 or rwx,block";
            let more = if field.is_list() { " (repeatable)" } else { "" };
            let action = if field.is_list() { ArgAction::Append } else { ArgAction::Set };
            vec![
                flag("capability", "MODE,TYPE[,FS]", format!("{help}{more}"))
                    .action(action)
                    .long_help(format!("{help}{more}\n{}", values::CAPABILITY_HELP))
                    .value_parser(ValueParser::from(values::capability)),
            ]
        }
        Some(Form::Range) => vec![
            flag("size", "SIZE", "The minimum size: 1Gi, 500M, 4096")
                .visible_alias("required-bytes")
                .value_parser(ValueParser::from(values::size)),
            flag("limit", "SIZE", "The maximum size")
                .visible_alias("limit-bytes")
                .value_parser(ValueParser::from(values::size)),
        ],
        Some(Form::Source) => vec![
            flag("from-snapshot", "ID", "Restore this snapshot"),
            flag("from-volume", "ID", "Clone this volume").conflicts_with("from-snapshot"),
        ],
        Some(Form::Requirement) => ["requisite", "preferred"]
            .map(|name| {
                let help = format!("One of the {name} topologies: zone=a,rack=7 (repeatable)");
                flag(name, "KEY=VALUE,…", help).action(ArgAction::Append).value_parser(place.clone())
            })
            .into(),
        Some(Form::Topology) => vec![flag(name, "KEY=VALUE,…", "The topology: zone=a").value_parser(place)],
        Some(Form::Flag) => {
            vec![Arg::new(name.clone()).long(name).action(ArgAction::SetTrue).help("Read-only")]
        }
        Some(Form::Bytes) => vec![
            flag(name, "BYTES", format!("The {words}: bytes, or a size such as 4Mi"))
                .value_parser(ValueParser::from(values::size)),
        ],
        Some(Form::Number) => {
            vec![flag(name, "NUMBER", "The maximum number").value_parser(clap::value_parser!(i32))]
        }
        Some(Form::Text) if field.is_list() => {
            vec![flag(name, "ID", format!("One of the {words} (repeatable)")).action(ArgAction::Append)]
        }
        Some(Form::Text) if name == HEALTH_PATH => {
            vec![path(VOLUME_PATH, "The volume path, where it is published").visible_alias(HEALTH_PATH)]
        }
        Some(Form::Text) if name.ends_with("-path") => vec![path(name, format!("The {words}"))],
        Some(Form::Text) => vec![flag(name, "TEXT", format!("The {words}"))],
        None => Vec::new(),
    }
}

/// Fills the request from the command line. Secrets are added to `hidden`.
///
/// # Errors
/// When a secret is on the command line itself, or can't be read.
pub(crate) fn fill(
    rpc: Rpc,
    request: &mut DynamicMessage,
    matches: &ArgMatches,
    hidden: &mut Redactor,
) -> Result<(), String> {
    for field in request.descriptor().fields() {
        let value = match Form::of(&field) {
            Some(Form::Secrets) => {
                let given = secrets::read(matches)?;
                Some(given.of(rpc)).filter(|given| !given.is_empty()).map(map)
            }
            Some(form) => value_of(&form, &field, request, matches),
            None => None,
        };
        if let Some(value) = value {
            request.set_field(&field, value);
        }
    }
    show::hide(request, hidden);
    Ok(())
}

fn value_of(
    form: &Form,
    field: &FieldDescriptor,
    request: &DynamicMessage,
    matches: &ArgMatches,
) -> Option<Value> {
    let name = field.name().replace('_', "-");
    let inner = || match field.kind() {
        Kind::Message(message) => message,
        _ => unreachable!("the field of this form is a message"),
    };
    Some(match form {
        Form::Secrets => return None,
        Form::Pairs => map(matches.get_many::<(String, String)>(&name)?.cloned()),
        Form::Capability if field.is_list() => {
            let given = matches.get_many::<v1::VolumeCapability>("capability")?;
            Value::List(given.map(|one| dynamic(&inner(), one)).collect())
        }
        Form::Capability => dynamic(&inner(), matches.get_one::<v1::VolumeCapability>("capability")?),
        Form::Range => {
            let size = matches.get_one::<i64>("size");
            let limit = matches.get_one::<i64>("limit");
            size.or(limit)?;
            let mut range = match request.get_field(field).as_ref() {
                Value::Message(range) => range.clone(),
                _ => DynamicMessage::new(inner()),
            };
            for (name, value) in [("required_bytes", size), ("limit_bytes", limit)] {
                if let Some(value) = value {
                    range.set_field_by_name(name, Value::I64(*value));
                }
            }
            Value::Message(range)
        }
        Form::Source => {
            let text = |name| matches.get_one::<String>(name).cloned();
            let snapshot =
                text("from-snapshot").map(|snapshot_id| Source::Snapshot(SnapshotSource { snapshot_id }));
            let volume = text("from-volume").map(|volume_id| Source::Volume(VolumeSource { volume_id }));
            dynamic(&inner(), &v1::VolumeContentSource { r#type: Some(snapshot.or(volume)?) })
        }
        Form::Requirement => {
            let places =
                |name| matches.get_many::<v1::Topology>(name).map(|all| all.cloned().collect::<Vec<_>>());
            let requisite = places("requisite");
            let preferred = places("preferred");
            if requisite.is_none() && preferred.is_none() {
                return None;
            }
            let requisite = requisite.unwrap_or_default();
            let preferred = preferred.unwrap_or_default();
            dynamic(&inner(), &v1::TopologyRequirement { requisite, preferred })
        }
        Form::Topology => dynamic(&inner(), matches.get_one::<v1::Topology>(&name)?),
        Form::Flag => matches.get_flag(&name).then_some(Value::Bool(true))?,
        Form::Bytes => Value::I64(*matches.get_one(&name)?),
        Form::Number => Value::I32(*matches.get_one(&name)?),
        Form::Text if field.is_list() => {
            Value::List(matches.get_many::<String>(&name)?.cloned().map(Value::String).collect())
        }
        Form::Text if name == HEALTH_PATH => Value::String(matches.get_one::<String>(VOLUME_PATH)?.clone()),
        Form::Text => Value::String(matches.get_one::<String>(&name)?.clone()),
    })
}

fn map(pairs: impl IntoIterator<Item = (String, String)>) -> Value {
    Value::Map(pairs.into_iter().map(|(key, value)| (MapKey::String(key), Value::String(value))).collect())
}

fn dynamic(descriptor: &MessageDescriptor, message: &impl Message) -> Value {
    let decoded = DynamicMessage::decode(descriptor.clone(), message.encode_to_vec().as_slice());
    Value::Message(decoded.expect("both have the same descriptor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_every_request_has_a_flag() {
        for rpc in Rpc::ALL {
            for field in crate::program::rpcs::method(*rpc).input().fields() {
                assert!(!of_field(&field).is_empty(), "{}", field.full_name());
            }
        }
    }
}
