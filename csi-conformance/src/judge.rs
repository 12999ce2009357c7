//! What holds for every answer and every status, judged at each call of a run.

use csi_core::{Rpc, Service};
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, ReflectMessage, Value};
use tonic::Code;

use crate::wire::Refusal;

/// A rule that some call of the run broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Breach {
    MessageEmpty,
    Details,
    Secret,
    Answer,
}

pub(crate) struct Judge {
    pool: DescriptorPool,
}

impl Judge {
    pub(crate) fn new() -> Self {
        Self { pool: DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET).expect("it was generated") }
    }

    pub(crate) fn input(&self, rpc: Rpc, bytes: &[u8]) -> Option<DynamicMessage> {
        DynamicMessage::decode(self.method(rpc).input(), bytes).ok()
    }

    fn method(&self, rpc: Rpc) -> prost_reflect::MethodDescriptor {
        let service = self.pool.get_service_by_name(&format!("csi.v1.{}", rpc.service()));
        let service = service.expect("the descriptor has every service");
        service.methods().find(|method| method.name() == rpc.name()).expect("and every RPC")
    }

    /// What is wrong with a status.
    pub(crate) fn status(&self, rpc: Rpc, refusal: &Refusal, secrets: &[String]) -> Option<(Breach, String)> {
        // The transport's own.
        if matches!(refusal.code, Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled) {
            return None;
        }
        if secrets.iter().any(|secret| secret.len() > 3 && refusal.message.contains(secret)) {
            return Some((Breach::Secret, "the status's message has a secret's value in it".into()));
        }
        // A service that is not registered is refused by the RPC library, and not by the driver.
        let is_optional = matches!(rpc.service(), Service::GroupController | Service::SnapshotMetadata);
        if refusal.message.is_empty() && !(is_optional && refusal.code == Code::Unimplemented) {
            return Some((Breach::MessageEmpty, format!("{:?} with an empty message", refusal.code)));
        }
        refusal.has_details.then(|| (Breach::Details, format!("{:?} with details", refusal.code)))
    }

    /// What is wrong with an answer.
    pub(crate) fn answer(&self, rpc: Rpc, bytes: &[u8], secrets: &[String]) -> Option<(Breach, String)> {
        let Ok(message) = DynamicMessage::decode(self.method(rpc).output(), bytes) else {
            return Some((Breach::Answer, "bytes that are no such message".into()));
        };
        if let Some(what) = walk(&message, "") {
            return Some((Breach::Answer, what));
        }
        let text = message.to_string();
        let tells = secrets.iter().any(|secret| secret.len() > 3 && text.contains(secret.as_str()));
        tells.then(|| (Breach::Secret, "the answer has a secret's value in it".into()))
    }
}

/// Fields of answers that may not be empty.
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
                (bytes > 4096).then(|| format!("{here} has {bytes} bytes, at most 4096 may be in a map"))
            }
            Value::List(list) => list.iter().enumerate().find_map(|(at, one)| match one {
                Value::Message(inner) => walk(inner, &format!("{here}[{at}]")),
                Value::String(text) => too_long(field.name(), text, &here),
                _ => None,
            }),
            Value::Message(inner) if inner.descriptor().full_name().starts_with("csi.") => walk(inner, &here),
            Value::String(text) => too_long(field.name(), text, &here),
            Value::I64(number) if *number < 0 => Some(format!("{here} is {number}, and may not be negative")),
            Value::EnumNumber(number) => match field.kind() {
                Kind::Enum(kind) if kind.get_value(*number).is_none() && !full.contains("Capability") => {
                    Some(format!("{here} is {number}, which the spec does not have"))
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
    // What is told to people has no better place to be than one string.
    let exempt = name == "message";
    let bytes = text.len();
    (bytes > limit && !exempt).then(|| format!("{here} has {bytes} bytes, at most {limit} may be"))
}
