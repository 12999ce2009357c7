//! The rules that hold for every answer and every status, checked at each call of a run.

use std::collections::BTreeSet;
use std::sync::Mutex;

use csi_proto::{Rpc, Service};
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, MessageDescriptor, ReflectMessage, Value};
use tonic::Code;

use crate::wire::Refusal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Violation {
    MessageEmpty,
    Details,
    Secret,
    Answer,
    Topology,
}

pub(crate) struct AnswerRules {
    pool: DescriptorPool,
    /// The prefix of topology keys, once an answer had one.
    prefix: Mutex<Option<String>>,
}

impl AnswerRules {
    pub(crate) fn new() -> Self {
        let pool = DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET).expect("it was generated");
        Self { pool, prefix: Mutex::default() }
    }

    pub(crate) fn input(&self, rpc: Rpc, bytes: &[u8]) -> Option<DynamicMessage> {
        DynamicMessage::decode(self.method(rpc).input(), bytes).ok()
    }

    /// A request as text: the fields that are set, in protobuf's text format.
    pub(crate) fn request_text(&self, rpc: Rpc, bytes: &[u8]) -> String {
        as_text(self.method(rpc).input(), bytes)
    }

    /// An answer as text, in the same format.
    pub(crate) fn answer_text(&self, rpc: Rpc, bytes: &[u8]) -> String {
        as_text(self.method(rpc).output(), bytes)
    }

    fn method(&self, rpc: Rpc) -> prost_reflect::MethodDescriptor {
        let service = self.pool.get_service_by_name(&format!("csi.v1.{}", rpc.service()));
        let service = service.expect("the descriptor has every service");
        service.methods().find(|method| method.name() == rpc.name()).expect("and every RPC")
    }

    pub(crate) fn status(
        &self,
        rpc: Rpc,
        refusal: &Refusal,
        secrets: &[String],
    ) -> Option<(Violation, String)> {
        if secrets.iter().any(|secret| secret.len() > 3 && refusal.message.contains(secret)) {
            return Some((Violation::Secret, "the status message contains the value of a secret".into()));
        }
        // These codes can come from the transport, so an empty message is accepted.
        if matches!(refusal.code, Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled) {
            return None;
        }
        // A service that is not registered is refused by the RPC library, not by the driver.
        let is_optional = matches!(rpc.service(), Service::GroupController | Service::SnapshotMetadata);
        if refusal.message.is_empty() && !(is_optional && refusal.code == Code::Unimplemented) {
            return Some((Violation::MessageEmpty, format!("{:?} with an empty message", refusal.code)));
        }
        refusal.has_details.then(|| (Violation::Details, format!("{:?} with details", refusal.code)))
    }

    pub(crate) fn answer(
        &self,
        rpc: Rpc,
        request: &[u8],
        bytes: &[u8],
        secrets: &[String],
    ) -> Option<(Violation, String)> {
        let Ok(message) = DynamicMessage::decode(self.method(rpc).output(), bytes) else {
            return Some((Violation::Answer, "bytes that do not decode to this message".into()));
        };
        // The answer to a request that breaks the rules can repeat what the request has.
        let is_lawful = self.input(rpc, request).is_none_or(|request| walk(&request, "").is_none());
        if let Some(what) = walk(&message, "").filter(|_| is_lawful) {
            return Some((Violation::Answer, what));
        }
        if let Some(what) = self.places(&message) {
            return Some((Violation::Topology, what));
        }
        let is_in = |secret: &[u8]| bytes.windows(secret.len()).any(|part| part == secret);
        let tells = secrets.iter().any(|secret| secret.len() > 3 && is_in(secret.as_bytes()));
        tells.then(|| (Violation::Secret, "the answer contains the value of a secret".into()))
    }
}

impl AnswerRules {
    /// Returns what is wrong with the topologies in an answer, if anything.
    fn places(&self, message: &DynamicMessage) -> Option<String> {
        if message.descriptor().full_name() == "csi.v1.Topology" {
            let segments = message.get_field_by_name("segments")?;
            let pairs =
                segments.as_map()?.iter().filter_map(|(key, value)| Some((key.as_str()?, value.as_str()?)));
            let pairs: Vec<_> = pairs.collect();
            let folded: BTreeSet<String> = pairs.iter().map(|(key, _)| key.to_ascii_lowercase()).collect();
            if folded.len() < pairs.len() {
                return Some("two topology keys differ only in case".to_owned());
            }
            return pairs.into_iter().find_map(|(key, value)| self.segment(key, value));
        }
        message.descriptor().fields().filter(|field| message.has_field(field)).find_map(|field| {
            match &*message.get_field(&field) {
                Value::Message(inner) => self.places(inner),
                Value::List(list) => {
                    list.iter().filter_map(Value::as_message).find_map(|one| self.places(one))
                }
                _ => None,
            }
        })
    }

    fn segment(&self, key: &str, value: &str) -> Option<String> {
        let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
        let is_domain = |text: &str| {
            let label =
                |label: &str| is_label(label, "-") && !label.contains(|c: char| c.is_ascii_uppercase());
            text.len() <= 253 && text.split('.').all(label)
        };
        if !is_label(name, "-_.") || prefix.is_some_and(|prefix| !is_domain(&prefix.to_ascii_lowercase())) {
            return Some(format!("the topology key {key:?} does not have the form [prefix/]name"));
        }
        if !is_label(value, "-_.") {
            return Some(format!(
                "the topology value {value:?} is not 1 to 63 characters of the allowed alphabet"
            ));
        }
        let mut first = self.prefix.lock().expect("no panic under it");
        let (Some(prefix), Some(known)) = (prefix, first.as_deref()) else {
            *first = first.take().or(prefix.map(str::to_owned));
            return None;
        };
        (prefix != known).then(|| format!("topology keys have the prefixes {known:?} and {prefix:?}"))
    }
}

fn as_text(kind: MessageDescriptor, bytes: &[u8]) -> String {
    let name = kind.name().to_owned();
    match DynamicMessage::decode(kind, bytes) {
        Ok(message) => format!("{{ {message} }}").replace("{  }", "{}"),
        Err(_) => format!("{} bytes that do not decode to {name}", bytes.len()),
    }
}

/// One to 63 characters, alphanumeric at both ends; inside, the characters `between` are allowed too.
fn is_label(text: &str, between: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && edge(text.chars().next())
        && edge(text.chars().last())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || between.contains(c))
}

/// The fields of answers that must not be empty.
const REQUIRED: &str = "
    GetPluginInfoResponse.name GetPluginInfoResponse.vendor_version CreateVolumeResponse.volume
    Volume.volume_id ListVolumesResponse.Entry.volume ControllerGetVolumeResponse.volume
    ControllerGetVolumeResponse.status CreateSnapshotResponse.snapshot Snapshot.snapshot_id
    Snapshot.source_volume_id Snapshot.creation_time ListSnapshotsResponse.Entry.snapshot GetSnapshotResponse.snapshot
    NodeGetInfoResponse.node_id CreateVolumeGroupSnapshotResponse.group_snapshot
    VolumeGroupSnapshot.group_snapshot_id VolumeGroupSnapshot.snapshots VolumeGroupSnapshot.creation_time
    GetVolumeGroupSnapshotResponse.group_snapshot VolumeUsage.unit VolumeHealth.volume_id
    VolumeHealth.VolumeHealthEntry.status VolumeHealth.VolumeHealthEntry.reason VolumeCondition.message
    ControllerGetVolumeHealthResponse.volume_health NodeGetVolumeHealthResponse.volume_health
    BlockMetadata.size_bytes GetMetadataAllocatedResponse.block_metadata_type
    GetMetadataDeltaResponse.block_metadata_type ValidateVolumeCapabilitiesResponse.Confirmed.volume_capabilities
";

/// The lists in which entries must be unique, and the fields that identify an entry.
const UNIQUE: [(&str, &[&str]); 2] = [
    ("VolumeHealth.health_statuses", &["status", "reason"]),
    ("NodeGetStorageHealthResponse.backend_health", &["status", "reason", "volume_capability"]),
];

/// Returns an entry that occurs twice in a list whose entries must be unique.
fn doubled(field: &str, list: &[Value]) -> Option<String> {
    let (_, keys) = UNIQUE.iter().find(|(name, _)| *name == field)?;
    let entry = |one: &Value| -> Option<String> {
        let message = one.as_message()?;
        Some(keys.iter().map(|key| format!("{:?} ", message.get_field_by_name(key))).collect())
    };
    let all: Vec<_> = list.iter().filter_map(entry).collect();
    let distinct: BTreeSet<_> = all.iter().collect();
    (distinct.len() < all.len()).then(|| format!("{field} has the same {} twice", keys.join(" and ")))
}

fn is_camel_case_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase()) && text.chars().all(|c| c.is_ascii_alphanumeric())
}

fn walk(message: &DynamicMessage, path: &str) -> Option<String> {
    for field in message.descriptor().fields() {
        let full = field.full_name().trim_start_matches("csi.v1.");
        let here = if path.is_empty() { field.name().to_owned() } else { format!("{path}.{}", field.name()) };
        let value = message.get_field(&field);
        if !message.has_field(&field) {
            if REQUIRED.split_whitespace().any(|required| required == full) {
                return Some(format!("{here} is required and is not set"));
            }
            continue;
        }
        let wrong = match &*value {
            Value::Map(map) => {
                let bytes: usize = map
                    .iter()
                    .map(|(key, value)| key.as_str().map_or(0, str::len) + value.as_str().map_or(0, str::len))
                    .sum();
                (bytes > 4096).then(|| format!("{here} has {bytes} bytes; a map has at most 4096"))
            }
            Value::List(list) => doubled(full, list).or_else(|| {
                list.iter().enumerate().find_map(|(at, one)| match one {
                    Value::Message(inner) => walk(inner, &format!("{here}[{at}]")),
                    Value::String(text) => too_long(field.name(), text, &here),
                    _ => None,
                })
            }),
            Value::Message(inner) if inner.descriptor().full_name().starts_with("csi.") => walk(inner, &here),
            Value::String(text) if field.name() == "reason" && !is_camel_case_word(text) => {
                Some(format!("{here} is {text:?}, not a CamelCase word"))
            }
            Value::String(text) => too_long(field.name(), text, &here),
            Value::I64(number) if *number < 0 => {
                Some(format!("{here} is {number}, and must not be negative"))
            }
            Value::EnumNumber(number) => match field.kind() {
                Kind::Enum(kind) if kind.get_value(*number).is_none() && !full.contains("Capability") => {
                    Some(format!("{here} is {number}, which the spec does not define"))
                }
                _ => None,
            },
            _ => None,
        };
        if wrong.is_some() {
            return wrong;
        }
    }
    None
}

fn too_long(name: &str, text: &str, here: &str) -> Option<String> {
    let limit = match name {
        "node_id" | "published_node_ids" => 256,
        _ => 128,
    };
    // The spec's size limit is not applied to paths, and to messages for people, which have no other field.
    let exempt = name == "message" || name.ends_with("_path");
    let bytes = text.len();
    (bytes > limit && !exempt).then(|| format!("{here} has {bytes} bytes; the limit is {limit}"))
}
