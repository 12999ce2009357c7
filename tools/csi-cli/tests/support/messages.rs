//! Messages by their descriptor, for tests that handle all of them alike.

use std::sync::LazyLock;

use csi_core::Rpc;
use csi_proto::v1;
use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, MethodDescriptor, Value,
};

pub(crate) static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET).unwrap());

pub(crate) fn method(rpc: Rpc) -> MethodDescriptor {
    let service = POOL.get_service_by_name(&format!("csi.v1.{}", rpc.service())).unwrap();
    service.methods().find(|method| method.name() == rpc.name()).unwrap()
}

pub(crate) fn dynamic(descriptor: &MessageDescriptor, bytes: &[u8]) -> DynamicMessage {
    DynamicMessage::decode(descriptor.clone(), bytes).unwrap()
}

/// A message with every field set. In each oneof the first field is set.
pub(crate) fn filled(descriptor: &MessageDescriptor) -> DynamicMessage {
    filled_with(descriptor, "", Alternative::First)
}

/// Which field of a oneof is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alternative {
    First,
    Last,
}

/// The same, with `end` at the end of each text and of each map key.
pub(crate) fn filled_with(
    descriptor: &MessageDescriptor,
    end: &str,
    alternative: Alternative,
) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    let mut oneofs = Vec::new();
    let mut fields: Vec<_> = descriptor.fields().collect();
    if alternative == Alternative::Last {
        fields.reverse();
    }
    for field in fields {
        let oneof = field.containing_oneof().map(|oneof| oneof.name().to_owned());
        if let Some(oneof) = oneof {
            if oneofs.contains(&oneof) {
                continue;
            }
            oneofs.push(oneof);
        }
        let value = of(&field, end, alternative);
        let value = match () {
            () if field.is_map() => {
                Value::Map([(MapKey::String(format!("key of {}{end}", field.name())), value)].into())
            }
            () if field.is_list() => Value::List(vec![value.clone(), value]),
            () => value,
        };
        message.set_field(&field, value);
    }
    message
}

fn of(field: &FieldDescriptor, end: &str, alternative: Alternative) -> Value {
    let kind = match field.kind() {
        // For the entry of a map, the kind of its value.
        Kind::Message(entry) if field.is_map() => entry.map_entry_value_field().kind(),
        kind => kind,
    };
    let number = i32::try_from(field.number()).unwrap();
    match kind {
        Kind::String => Value::String(format!("a {}{end}", field.name())),
        Kind::Bool => Value::Bool(true),
        Kind::Int32 => Value::I32(1000 + number),
        Kind::Int64 if field.full_name() == "google.protobuf.Timestamp.seconds" => Value::I64(1_800_000_000),
        Kind::Int64 => Value::I64((1 << 40) + i64::from(number)),
        Kind::Enum(known) => Value::EnumNumber(known.values().last().unwrap().number()),
        Kind::Message(inner) => Value::Message(filled_with(&inner, end, alternative)),
        other => panic!("{other:?} in {}", field.full_name()),
    }
}

/// A plugin with a controller service.
pub(crate) fn has_a_controller() -> v1::GetPluginCapabilitiesResponse {
    use v1::plugin_capability::{Service, Type};
    plugin_offers([Type::Service(Service { r#type: 1 })])
}

/// Confirms all capabilities that ValidateVolumeCapabilities asks about.
pub(crate) fn confirmed(bytes: &[u8], message: &str) -> v1::ValidateVolumeCapabilitiesResponse {
    let v1::ValidateVolumeCapabilitiesRequest { volume_capabilities, .. } = Message::decode(bytes).unwrap();
    let confirmed =
        v1::validate_volume_capabilities_response::Confirmed { volume_capabilities, ..Default::default() };
    v1::ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: message.to_owned() }
}

pub(crate) fn plugin_offers(
    types: impl IntoIterator<Item = v1::plugin_capability::Type>,
) -> v1::GetPluginCapabilitiesResponse {
    let one = |kind| v1::PluginCapability { r#type: Some(kind) };
    v1::GetPluginCapabilitiesResponse { capabilities: types.into_iter().map(one).collect() }
}

pub(crate) fn controller_offers(
    kinds: impl IntoIterator<Item = impl Into<i32>>,
) -> v1::ControllerGetCapabilitiesResponse {
    use v1::controller_service_capability::{Rpc, Type};
    let types = kinds.into_iter().map(|kind| Type::Rpc(Rpc { r#type: kind.into() }));
    let capabilities = types.map(|kind| v1::ControllerServiceCapability { r#type: Some(kind) }).collect();
    v1::ControllerGetCapabilitiesResponse { capabilities }
}

pub(crate) fn node_offers(
    kinds: impl IntoIterator<Item = impl Into<i32>>,
) -> v1::NodeGetCapabilitiesResponse {
    use v1::node_service_capability::{Rpc, Type};
    let types = kinds.into_iter().map(|kind| Type::Rpc(Rpc { r#type: kind.into() }));
    let capabilities = types.map(|kind| v1::NodeServiceCapability { r#type: Some(kind) }).collect();
    v1::NodeGetCapabilitiesResponse { capabilities }
}
