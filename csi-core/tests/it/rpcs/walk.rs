//! Every valid request, changed in one field at a time, with the expected answer. The descriptor gives
//! the fields.

use csi_core::Rpc;
use prost::Message;
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value,
};
use tonic::Code;

use super::samples::samples;

/// A request, what was changed in it, and the expected answer: a code, and the field that its message names.
#[derive(Debug)]
pub struct Case {
    pub rpc: Rpc,
    pub change: String,
    pub request: Vec<u8>,
    pub due: Result<(), (Code, String)>,
}

/// Fields without which a request is INVALID_ARGUMENT.
const REQUIRED: &str = "
    CreateVolumeRequest.name CreateVolumeRequest.volume_capabilities
    DeleteVolumeRequest.volume_id
    ControllerPublishVolumeRequest.volume_id ControllerPublishVolumeRequest.node_id
    ControllerPublishVolumeRequest.volume_capability
    ControllerUnpublishVolumeRequest.volume_id
    ValidateVolumeCapabilitiesRequest.volume_id ValidateVolumeCapabilitiesRequest.volume_capabilities
    ControllerGetVolumeHealthRequest.volume_id ControllerGetVolumeRequest.volume_id
    CreateSnapshotRequest.source_volume_id CreateSnapshotRequest.name
    DeleteSnapshotRequest.snapshot_id GetSnapshotRequest.snapshot_id
    ControllerExpandVolumeRequest.volume_id ControllerExpandVolumeRequest.capacity_range
    ControllerModifyVolumeRequest.volume_id ControllerModifyVolumeRequest.mutable_parameters
    CreateVolumeGroupSnapshotRequest.name CreateVolumeGroupSnapshotRequest.source_volume_ids
    DeleteVolumeGroupSnapshotRequest.group_snapshot_id DeleteVolumeGroupSnapshotRequest.snapshot_ids
    GetVolumeGroupSnapshotRequest.group_snapshot_id GetVolumeGroupSnapshotRequest.snapshot_ids
    GetMetadataAllocatedRequest.snapshot_id
    GetMetadataDeltaRequest.base_snapshot_id GetMetadataDeltaRequest.target_snapshot_id
    NodeStageVolumeRequest.volume_id NodeStageVolumeRequest.staging_target_path
    NodeStageVolumeRequest.volume_capability
    NodeUnstageVolumeRequest.volume_id NodeUnstageVolumeRequest.staging_target_path
    NodePublishVolumeRequest.volume_id NodePublishVolumeRequest.target_path
    NodePublishVolumeRequest.volume_capability
    NodeUnpublishVolumeRequest.volume_id NodeUnpublishVolumeRequest.target_path
    NodeGetVolumeStatsRequest.volume_id NodeGetVolumeStatsRequest.volume_path
    NodeGetVolumeHealthRequest.volume_id
    NodeExpandVolumeRequest.volume_id NodeExpandVolumeRequest.volume_path
    VolumeCapability.AccessMode.mode
    VolumeContentSource.SnapshotSource.snapshot_id VolumeContentSource.VolumeSource.volume_id
";

/// Names, in which control characters are refused.
const NAMES: &str =
    "CreateVolumeRequest.name CreateSnapshotRequest.name CreateVolumeGroupSnapshotRequest.name";

/// Fields that contain a path. They have no size limit and must be absolute, except `volume_path`, which
/// gives NOT_FOUND.
const PATHS: &str = "staging_target_path target_path volume_publish_path volume_path";

fn lists(table: &str, word: &str) -> bool {
    table.split_whitespace().any(|listed| listed == word)
}

/// `Message.field`, without the package.
fn short(field: &FieldDescriptor) -> String {
    field.full_name().trim_start_matches("csi.v1.").to_owned()
}

fn invalid(field: impl Into<String>) -> Result<(), (Code, String)> {
    Err((Code::InvalidArgument, field.into()))
}

/// The expected answer when a field is left out. `parent` is the path of the message that contains it.
fn due_without(field: &FieldDescriptor, parent: &str, path: &str) -> Result<(), (Code, String)> {
    let name = short(field);
    match name.as_str() {
        required if lists(REQUIRED, required) => invalid(path),
        "NodePublishVolumeRequest.staging_target_path" => Err((Code::FailedPrecondition, path.to_owned())),
        "VolumeCapability.access_mode" => invalid(format!("{path}.mode")),
        "VolumeCapability.mount" | "VolumeCapability.block" => invalid(format!("{parent}.access_type")),
        // The chosen field of a oneof, or the only one set of two fields of which one is required.
        "VolumeContentSource.snapshot"
        | "VolumeContentSource.volume"
        | "TopologyRequirement.requisite"
        | "TopologyRequirement.preferred" => invalid(parent),
        _ => Ok(()),
    }
}

/// The expected answer when a message is present and empty.
fn due_when_empty(message: &MessageDescriptor, path: &str) -> Result<(), (Code, String)> {
    match message.full_name().trim_start_matches("csi.v1.") {
        "VolumeCapability" => invalid(format!("{path}.access_mode.mode")),
        "VolumeCapability.AccessMode" => invalid(format!("{path}.mode")),
        "VolumeContentSource.SnapshotSource" => invalid(format!("{path}.snapshot_id")),
        "VolumeContentSource.VolumeSource" => invalid(format!("{path}.volume_id")),
        "CapacityRange" | "VolumeContentSource" | "TopologyRequirement" => invalid(path),
        "VolumeCapability.MountVolume" | "VolumeCapability.BlockVolume" | "Topology" => Ok(()),
        other => panic!("say what is due for an empty {other}"),
    }
}

/// 64 strings of 64 bytes, 4 KiB in total, plus `more` bytes.
fn four_kib(more: usize) -> impl Iterator<Item = (String, String)> {
    (0..64).map(move |at| (format!("k{at:04}"), "v".repeat(if at == 0 { 59 + more } else { 59 })))
}

type Due = Result<(), (Code, String)>;

/// Other values for a single string, and the expected answer to each.
fn strings(field: &FieldDescriptor, path: &str) -> Vec<(&'static str, Value, Due)> {
    let text = |text: &str| Value::String(text.to_owned());
    if lists(PATHS, field.name()) {
        let relative = match field.name() {
            "volume_path" => {
                Err((Code::NotFound, "volume v does not exist, or is not at this path".to_owned()))
            }
            _ => invalid(path),
        };
        let mut cases = vec![
            ("relative", text("here"), relative),
            ("with a NUL", text("/a\0b"), invalid(path)),
            ("5,000 bytes", text(&"/deep".repeat(1000)), Ok(())),
        ];
        if field.name() != "volume_path" {
            cases.push(("climbing", text("/a/../b"), invalid(path)));
        }
        return cases;
    }
    let limit = if field.name() == "node_id" { 256 } else { 128 };
    let mut cases = vec![
        ("of the largest size", Value::String("x".repeat(limit)), Ok(())),
        ("a byte too large", Value::String("x".repeat(limit + 1)), invalid(path)),
        ("a byte too large, of wide characters", Value::String("é".repeat(limit / 2) + "x"), invalid(path)),
    ];
    if lists(NAMES, &short(field)) {
        for banned in ["\0", "\u{8}", "\u{b}", "\u{c}", "\u{e}", "\u{1f}", "\u{7f}", "\u{9f}"] {
            cases.push(("with a banned character", Value::String(format!("a{banned}b")), invalid(path)));
        }
        cases.push(("with white space", text("a\tb\nc\rd e"), Ok(())));
    }
    cases
}

/// Other values of a field, and the expected answer to each.
fn changes(field: &FieldDescriptor, value: &Value, path: &str) -> Vec<(&'static str, Value, Due)> {
    if field.is_map() {
        let map = |more| {
            Value::Map(
                four_kib(more).map(|(key, value)| (MapKey::String(key), Value::String(value))).collect(),
            )
        };
        return vec![("4 KiB", map(0), Ok(())), ("4 KiB and a byte", map(1), invalid(path))];
    }
    if field.name() == "mount_flags" {
        let flags = |more| {
            Value::List(four_kib(more).map(|(key, value)| Value::String(format!("{key}{value}"))).collect())
        };
        return vec![
            ("4 KiB", flags(0), Ok(())),
            ("4 KiB and a byte", flags(1), invalid(path)),
            ("one of 4 KiB", Value::List(vec![Value::String("x".repeat(4096))]), Ok(())),
        ];
    }
    if let Value::List(list) = value {
        let first = format!("{path}[0]");
        let with_first = |value: Value| {
            let mut list = list.clone();
            list[0] = value;
            Value::List(list)
        };
        return match field.kind() {
            Kind::String => [("empty first", Value::String(String::new()), invalid(&first))]
                .into_iter()
                .chain(strings(field, &first))
                .map(|(what, value, due)| (what, with_first(value), due))
                .collect(),
            Kind::Message(message) => {
                let empty = Value::Message(DynamicMessage::new(message.clone()));
                vec![("empty first", with_first(empty), due_when_empty(&message, &first))]
            }
            kind => panic!("say what is due for a list of {kind:?}"),
        };
    }
    match field.kind() {
        Kind::String => strings(field, path),
        Kind::Int32 => {
            vec![("negative", Value::I32(-1), invalid(path)), ("largest", Value::I32(i32::MAX), Ok(()))]
        }
        Kind::Int64 => {
            vec![("negative", Value::I64(-1), invalid(path)), ("least", Value::I64(i64::MIN), invalid(path))]
        }
        Kind::Enum(_) => vec![
            ("unknown", Value::EnumNumber(0), invalid(path)),
            ("of a newer spec", Value::EnumNumber(99), invalid(path)),
            ("negative", Value::EnumNumber(-1), invalid(path)),
        ],
        Kind::Message(message) => {
            let empty = Value::Message(DynamicMessage::new(message.clone()));
            vec![("empty", empty, due_when_empty(&message, path))]
        }
        Kind::Bool => vec![],
        kind => panic!("say what is due for {kind:?}"),
    }
}

/// Returns the encoded request after a change to one of its messages.
type Put<'a> = &'a dyn Fn(Box<dyn FnOnce(&mut DynamicMessage)>) -> Vec<u8>;

fn walk(rpc: Rpc, message: &DynamicMessage, parent: &str, put: Put<'_>, cases: &mut Vec<Case>) {
    let fields: Vec<FieldDescriptor> =
        message.descriptor().fields().filter(|field| message.has_field(field)).collect();
    for field in fields {
        let path =
            if parent.is_empty() { field.name().to_owned() } else { format!("{parent}.{}", field.name()) };
        let mut add = |what: &str, request: Vec<u8>, due| {
            cases.push(Case { rpc, change: format!("{path} {what}"), request, due });
        };
        let left_out = field.clone();
        add(
            "left out",
            put(Box::new(move |message| message.clear_field(&left_out))),
            due_without(&field, parent, &path),
        );
        let value = message.get_field(&field).into_owned();
        for (what, other, due) in changes(&field, &value, &path) {
            let field = field.clone();
            add(what, put(Box::new(move |message| message.set_field(&field, other))), due);
        }
        match &value {
            Value::Message(inner) => {
                let put_inner = |change: Box<dyn FnOnce(&mut DynamicMessage)>| {
                    let field = field.clone();
                    put(Box::new(move |message: &mut DynamicMessage| match message.get_field_mut(&field) {
                        Value::Message(inner) => change(inner),
                        _ => unreachable!("it was a message"),
                    }))
                };
                walk(rpc, inner, &path, &put_inner, cases);
            }
            Value::List(list) if matches!(list.first(), Some(Value::Message(_))) => {
                let Some(Value::Message(inner)) = list.first() else { continue };
                let put_inner = |change: Box<dyn FnOnce(&mut DynamicMessage)>| {
                    let field = field.clone();
                    put(Box::new(move |message: &mut DynamicMessage| match message.get_field_mut(&field) {
                        Value::List(list) => match &mut list[0] {
                            Value::Message(inner) => change(inner),
                            _ => unreachable!("it was a list of messages"),
                        },
                        _ => unreachable!("it was a list"),
                    }))
                };
                walk(rpc, inner, &format!("{path}[0]"), &put_inner, cases);
            }
            _ => {}
        }
    }
}

/// The field with another wire type: a number instead of bytes, bytes instead of a number. The codec
/// refuses it and names the field.
fn of_a_wrong_kind(rpc: Rpc, sample: &DynamicMessage, cases: &mut Vec<Case>) {
    for field in sample.descriptor().fields() {
        let mut request = sample.encode_to_vec();
        let is_number = matches!(field.kind(), Kind::Int32 | Kind::Int64 | Kind::Bool) && !field.is_list();
        if is_number {
            request.extend([field.number() as u8 * 8 + 2, 1, b'x']);
        } else {
            request.extend([field.number() as u8 * 8, 1]);
        }
        let due = Err((Code::InvalidArgument, field.name().to_owned()));
        cases.push(Case { rpc, change: format!("{} of a wrong kind", field.name()), request, due });
    }
}

/// All cases, including the valid requests.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rpc, sample) in samples() {
        let request = sample.encode_to_vec();
        cases.push(Case { rpc, change: "as it is".to_owned(), request, due: Ok(()) });
        let put = |change: Box<dyn FnOnce(&mut DynamicMessage)>| {
            let mut message = sample.clone();
            change(&mut message);
            message.encode_to_vec()
        };
        walk(rpc, &sample, "", &put, &mut cases);
        of_a_wrong_kind(rpc, &sample, &mut cases);
    }
    cases
}
