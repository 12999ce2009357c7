//! Every field of every request, as listed in the descriptor: unset, too large, negative.

use csi_proto::Rpc;
use prost::Message;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind as Wire, MapKey, ReflectMessage, Value};
use tonic::Code;

use crate::context::TestContext;
use crate::failure::{Failure, Outcome};

mod samples;

crate::test::tests! { "fields", "Required/Optional Fields, Size Limits";
    Must "A request to the controller without a required field is INVALID_ARGUMENT", controller_required = refuse_all(false, without, invalid_or_missing), ["fields.required"], [];
    Must "A request to the node without a required field is INVALID_ARGUMENT", node_required = refuse_all(true, without, invalid_or_missing), ["fields.required"], [NodeService];
    Practice "A field that is too large in a request to the controller is INVALID_ARGUMENT", controller_limits = refuse_all(false, too_large, invalid), ["size-limits.string", "size-limits.map", "size-limits.mount-flags"], [];
    Practice "A field that is too large in a request to the node is INVALID_ARGUMENT", node_limits = refuse_all(true, too_large, invalid), ["size-limits.string", "size-limits.map", "size-limits.mount-flags"], [NodeService];
    Practice "A negative size or number of entries is refused", negative = refuse_all(false, below_zero, invalid_or_no_size), ["fields.not-negative"], [];
    Practice "A negative size is refused by the node", node_negative = refuse_all(true, below_zero, invalid_or_no_size), ["fields.not-negative"], [NodeService];
    Should "An RPC that is not offered is UNIMPLEMENTED", not_offered, ["services.unsupported-is-unimplemented"], [];
}

/// The fields without which a request must return INVALID_ARGUMENT.
const REQUIRED: &str = "
    CreateVolumeRequest.name CreateVolumeRequest.volume_capabilities DeleteVolumeRequest.volume_id
    ControllerPublishVolumeRequest.volume_id ControllerPublishVolumeRequest.node_id
    ControllerPublishVolumeRequest.volume_capability ControllerUnpublishVolumeRequest.volume_id
    ValidateVolumeCapabilitiesRequest.volume_id ValidateVolumeCapabilitiesRequest.volume_capabilities
    ControllerGetVolumeHealthRequest.volume_id ControllerGetVolumeRequest.volume_id
    CreateSnapshotRequest.source_volume_id CreateSnapshotRequest.name DeleteSnapshotRequest.snapshot_id
    GetSnapshotRequest.snapshot_id ControllerExpandVolumeRequest.volume_id
    ControllerExpandVolumeRequest.capacity_range ControllerModifyVolumeRequest.volume_id
    ControllerModifyVolumeRequest.mutable_parameters CreateVolumeGroupSnapshotRequest.name
    CreateVolumeGroupSnapshotRequest.source_volume_ids DeleteVolumeGroupSnapshotRequest.group_snapshot_id
    DeleteVolumeGroupSnapshotRequest.snapshot_ids GetVolumeGroupSnapshotRequest.group_snapshot_id
    GetVolumeGroupSnapshotRequest.snapshot_ids GetMetadataAllocatedRequest.snapshot_id
    GetMetadataDeltaRequest.base_snapshot_id GetMetadataDeltaRequest.target_snapshot_id
    NodeStageVolumeRequest.volume_id NodeStageVolumeRequest.staging_target_path
    NodeStageVolumeRequest.volume_capability NodeUnstageVolumeRequest.volume_id
    NodeUnstageVolumeRequest.staging_target_path NodePublishVolumeRequest.volume_id
    NodePublishVolumeRequest.target_path NodePublishVolumeRequest.volume_capability
    NodeUnpublishVolumeRequest.volume_id NodeUnpublishVolumeRequest.target_path
    NodeGetVolumeStatsRequest.volume_id NodeGetVolumeStatsRequest.volume_path
    NodeGetVolumeHealthRequest.volume_id NodeExpandVolumeRequest.volume_id NodeExpandVolumeRequest.volume_path
";

/// What is changed, and the message with the change.
type Change = (String, DynamicMessage);
type Changes = fn(&DynamicMessage, &FieldDescriptor) -> Vec<Change>;

/// The fields that identify what a request is about. What the samples identify does not exist.
const IDS: [&str; 6] = [
    "volume_id",
    "snapshot_id",
    "group_snapshot_id",
    "source_volume_id",
    "base_snapshot_id",
    "target_snapshot_id",
];

/// All changes of a message in which one field, of it or of a nested message, is changed.
fn everywhere(sample: &DynamicMessage, changes: Changes) -> Vec<Change> {
    let mut all = Vec::new();
    for field in sample.descriptor().fields() {
        all.extend(changes(sample, &field));
        let inner = match &*sample.get_field(&field) {
            Value::Message(inner) if sample.has_field(&field) => inner.clone(),
            Value::List(list) => match list.first().and_then(Value::as_message) {
                Some(inner) => inner.clone(),
                None => continue,
            },
            _ => continue,
        };
        for (what, inner) in everywhere(&inner, changes) {
            let mut changed = sample.clone();
            let inner = Value::Message(inner);
            changed.set_field(&field, if field.is_list() { Value::List(vec![inner]) } else { inner });
            all.push((what, changed));
        }
    }
    all
}

/// Sends each change of each sample. All that are not refused as bad input are reported in one failure.
async fn refuse_all(
    ctx: &TestContext,
    is_node: bool,
    changes: Changes,
    codes: fn(Rpc, &DynamicMessage) -> &'static [Code],
) -> Outcome {
    let mut wrong: Vec<Failure> = Vec::new();
    for (rpc, bytes) in samples::samples(ctx) {
        if (rpc.service() == csi_proto::Service::Node) != is_node || !ctx.offers.serves(rpc) {
            continue;
        }
        let sample = ctx.judge.input(rpc, &bytes).expect("it was just encoded");
        for (what, changed) in everywhere(&sample, changes) {
            let codes = codes(rpc, &changed);
            let came = match ctx.raw(rpc, changed.encode_to_vec(), ctx.settings.deadline).await {
                Err(refusal) if codes.contains(&refusal.code) => continue,
                Err(refusal) => ctx.refusal_text(&refusal),
                Ok(_) if codes.contains(&Code::Ok) => continue,
                Ok(messages) => {
                    format!(
                        "OK {}",
                        messages.first().map_or_else(String::new, |bytes| ctx.redacted_answer(rpc, bytes))
                    )
                }
            };
            let due = codes.iter().map(|code| format!("{code:?}")).collect::<Vec<_>>().join(" or ");
            wrong.push(Failure::new(due, came).sent(format!("{rpc} with {what}")));
        }
    }
    let Some(first) = wrong.first() else { return Ok(()) };
    let others: String =
        wrong.iter().skip(1).map(|one| format!("; {}, with the result {}", one.sent, one.actual)).collect();
    Err(Box::new(Failure { sent: format!("{}{others}", first.sent), ..first.clone() }))
}

fn name(field: &FieldDescriptor) -> String {
    field.full_name().trim_start_matches("csi.v1.").to_owned()
}

fn without(sample: &DynamicMessage, field: &FieldDescriptor) -> Vec<Change> {
    let is_required = REQUIRED.split_whitespace().any(|required| required == name(field));
    if !sample.has_field(field) {
        return vec![];
    }
    let mut changed = sample.clone();
    changed.clear_field(field);
    if is_required { vec![(format!("{} left out", name(field)), changed)] } else { vec![] }
}

/// Fields that samples leave unset, and that can still be too large.
const UNSET: [&str; 4] = ["parameters", "fs_type", "mount_flags", "volume_mount_group"];

fn too_large(sample: &DynamicMessage, field: &FieldDescriptor) -> Vec<Change> {
    let is_path = field.name().ends_with("_path");
    if !sample.has_field(field) && !UNSET.contains(&field.name()) {
        return vec![];
    }
    let value = if field.name() == "mount_flags" {
        Value::List((0..40).map(|at| Value::String(format!("flag{at}{}", "x".repeat(120)))).collect())
    } else if field.is_map() {
        let pair = |at| (MapKey::String(format!("key-{at}")), Value::String("v".repeat(120)));
        Value::Map((0..40).map(pair).collect())
    } else if field.kind() == Wire::String
        && !field.is_list()
        && !is_path
        && !field.name().ends_with("_token")
    {
        Value::String("x".repeat(if field.name() == "node_id" { 257 } else { 129 }))
    } else {
        return vec![];
    };
    // Deleting or detaching an object that can't exist can return OK.
    if sample.descriptor().name().starts_with("Delete") || sample.descriptor().name().contains("Un") {
        return vec![];
    }
    let mut changed = sample.clone();
    changed.set_field(field, value);
    vec![(format!("{} too large", name(field)), changed)]
}

fn below_zero(sample: &DynamicMessage, field: &FieldDescriptor) -> Vec<Change> {
    let value = match field.kind() {
        Wire::Int32 => Value::I32(-1),
        Wire::Int64 => Value::I64(-1),
        _ => return vec![],
    };
    let mut changed = sample.clone();
    changed.set_field(field, value);
    vec![(format!("{} of -1", name(field)), changed)]
}

fn invalid(_: Rpc, _: &DynamicMessage) -> &'static [Code] {
    &[Code::InvalidArgument]
}

/// Two conditions hold for a request without a field, about something that does not exist. The spec has a code for
/// each of them, and no order.
fn invalid_or_missing(rpc: Rpc, request: &DynamicMessage) -> &'static [Code] {
    let descriptor = request.descriptor();
    let is_given = |field: FieldDescriptor| IDS.contains(&field.name()) && request.has_field(&field);
    let is_about_something = descriptor.fields().any(is_given);
    match rpc {
        _ if !is_about_something => &[Code::InvalidArgument],
        Rpc::DeleteVolumeGroupSnapshot => &[Code::InvalidArgument, Code::Ok],
        _ => &[Code::InvalidArgument, Code::NotFound],
    }
}

/// A size can also be out of range. The samples' volumes do not exist, which a driver can detect first.
fn invalid_or_no_size(rpc: Rpc, _: &DynamicMessage) -> &'static [Code] {
    match rpc {
        Rpc::ControllerExpandVolume | Rpc::NodeExpandVolume => {
            &[Code::InvalidArgument, Code::OutOfRange, Code::NotFound]
        }
        _ => &[Code::InvalidArgument, Code::OutOfRange],
    }
}

async fn not_offered(ctx: &TestContext) -> Outcome {
    for (rpc, bytes) in samples::samples(ctx) {
        if ctx.offers.serves(rpc) || (rpc.service() == csi_proto::Service::Node && !ctx.offers.has_node) {
            continue;
        }
        match ctx.raw(rpc, bytes, ctx.settings.deadline).await {
            Err(refusal) if refusal.code == Code::Unimplemented => {}
            other => {
                let came = other.map_or_else(|refusal| ctx.refusal_text(&refusal), |_| "OK".to_owned());
                return Err(Box::new(
                    Failure::new("Unimplemented: the driver does not offer it", came).sent(rpc.to_string()),
                ));
            }
        }
    }
    Ok(())
}
