//! A valid request for every RPC, made from the descriptor, with every field set. Two requests where a field is a
//! choice.

use csi_core::Rpc;
use csi_proto::internal::TOKENS_KEY;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value,
};

/// The text that must not appear in any log or status.
pub const CANARY: &str = "canary-5f2b";

/// Fields of which a message has one (a oneof, or two lists of which one is given): those of the first request of an
/// RPC, and those of the second.
const CHOICES: [[&str; 3]; 2] = [["mount", "snapshot", "requisite"], ["block", "volume", "preferred"]];

fn texts(field: &str) -> Vec<String> {
    let text = match field {
        "volume_id" | "source_volume_id" => "v",
        "node_id" => "n",
        "name" => "new",
        "snapshot_id" | "base_snapshot_id" | "snapshot_ids" => "s",
        "group_snapshot_id" => "g",
        "starting_token" | "target_snapshot_id" => "t",
        "staging_target_path" => "/staging",
        "target_path" | "volume_path" | "volume_publish_path" => "/target",
        "fs_type" => "ext4",
        "volume_mount_group" => "1000",
        "source_volume_ids" => return vec!["v".to_owned(), "w".to_owned()],
        "mount_flags" => {
            return vec!["noatime".to_owned(), format!("password={CANARY}"), format!("{CANARY} {CANARY}")];
        }
        other => panic!("say what a {other} is"),
    };
    vec![text.to_owned()]
}

fn pairs(field: &str) -> Vec<(&'static str, String)> {
    let pair = match field {
        "secrets" => ("password", CANARY),
        "parameters" => ("pool", "fast"),
        "mutable_parameters" => ("iops", "9"),
        "publish_context" => ("device", "sdx"),
        "segments" => ("zone", "a"),
        "volume_context" => {
            let tokens = format!(r#"{{"aud":{{"token":"{CANARY}"}}}}"#);
            return vec![("made", "here".to_owned()), (TOKENS_KEY, tokens)];
        }
        other => panic!("say what is in {other}"),
    };
    vec![(pair.0, pair.1.to_owned())]
}

fn number(field: &str) -> i32 {
    match field {
        "max_entries" | "max_results" => 2,
        "starting_offset" | "required_bytes" => 5,
        "limit_bytes" => 50,
        "mode" => 7,
        other => panic!("say which number {other} is"),
    }
}

fn value(field: &FieldDescriptor, choice: &[&str]) -> Value {
    let name = field.name();
    if field.is_map() {
        let pairs = pairs(name).into_iter();
        return Value::Map(
            pairs.map(|(key, text)| (MapKey::String(key.to_owned()), Value::String(text))).collect(),
        );
    }
    let mut values: Vec<Value> = match field.kind() {
        Kind::String => texts(name).into_iter().map(Value::String).collect(),
        Kind::Bool => vec![Value::Bool(true)],
        Kind::Int32 => vec![Value::I32(number(name))],
        Kind::Int64 => vec![Value::I64(number(name).into())],
        Kind::Enum(_) => vec![Value::EnumNumber(number(name))],
        Kind::Message(message) => vec![Value::Message(sample(message, choice))],
        kind => panic!("say what a {kind:?} is"),
    };
    if field.is_list() { Value::List(values) } else { values.remove(0) }
}

fn sample(message: MessageDescriptor, choice: &[&str]) -> DynamicMessage {
    let mut sample = DynamicMessage::new(message.clone());
    for field in message.fields() {
        if choice.contains(&field.name()) || !CHOICES.as_flattened().contains(&field.name()) {
            sample.set_field(&field, value(&field, choice));
        }
    }
    sample
}

/// Each RPC with a valid request.
pub fn samples() -> Vec<(Rpc, DynamicMessage)> {
    let pool = DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET).unwrap();
    let mut samples = Vec::new();
    for rpc in Rpc::ALL {
        let service = pool.get_service_by_name(&format!("csi.v1.{}", rpc.service())).unwrap();
        let method = service.methods().find(|method| method.name() == rpc.name()).unwrap();
        let [first, second] = CHOICES.map(|choice| sample(method.input(), &choice));
        let has_choice = second != first;
        samples.push((*rpc, first));
        samples.extend(has_choice.then_some((*rpc, second)));
    }
    samples
}
