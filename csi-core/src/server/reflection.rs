//! gRPC's reflection: describes the services that this plugin serves, with the RPCs of the spec's version that
//! it serves.
//!
//! Messages are described as they are in the newest version: a field that is never set says nothing.

use csi_proto::Rpc;
use prost::Message;
use prost::bytes::Buf;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field};
use prost_types::{MethodDescriptorProto, ServiceDescriptorProto};

use super::services::Services;
use super::{Failure, ServeError};
use crate::adapters::Core;

/// The fields of descriptors that are filtered (`google/protobuf/descriptor.proto`).
const FILES_OF_SET: u32 = 1;
const SERVICES_OF_FILE: u32 = 6;
const METHODS_OF_SERVICE: u32 = 2;

/// What an embedded message is replaced with; none leaves it out.
type Replaced = Result<Option<Vec<u8>>, prost::DecodeError>;

pub(super) fn add(services: Services, core: &Core) -> Result<Services, ServeError> {
    let refuse =
        |error: &dyn std::fmt::Display| ServeError::from(Failure::Plugin(format!("reflection: {error}")));
    let described = described(core).map_err(|error| refuse(&error))?;
    let builder =
        || tonic_reflection::server::Builder::configure().register_encoded_file_descriptor_set(&described);
    Ok(services
        .add(builder().build_v1().map_err(|error| refuse(&error))?)
        .add(builder().build_v1alpha().map_err(|error| refuse(&error))?))
}

/// The descriptors of the spec, without the services and RPCs that are not served.
fn described(core: &Core) -> Result<Vec<u8>, prost::DecodeError> {
    let is_served = |rpc: &Rpc| core.serves(rpc.service()) && core.path.spec().has(*rpc);
    let served: Vec<Rpc> = Rpc::ALL.iter().copied().filter(is_served).collect();
    retain(csi_proto::FILE_DESCRIPTOR_SET, FILES_OF_SET, &mut |file| {
        let services = retain(file, SERVICES_OF_FILE, &mut |service| {
            let name = ServiceDescriptorProto::decode(service)?.name().to_owned();
            let served: Vec<Rpc> =
                served.iter().copied().filter(|rpc| rpc.service().to_string() == name).collect();
            if served.is_empty() {
                return Ok(None);
            }
            let methods = retain(service, METHODS_OF_SERVICE, &mut |method| {
                let name = MethodDescriptorProto::decode(method)?;
                let is_served = served.iter().any(|rpc| rpc.name() == name.name());
                Ok(is_served.then(|| method.to_vec()))
            });
            methods.map(Some)
        });
        services.map(Some)
    })
}

/// A message with each embedded message of the field `tag` replaced, or left out. The bytes of all else stay:
/// decoded and encoded again, a descriptor would lose the spec's own options, such as `csi_secret`.
fn retain(
    message: &[u8],
    tag: u32,
    replace: &mut dyn FnMut(&[u8]) -> Replaced,
) -> Result<Vec<u8>, prost::DecodeError> {
    let mut rest = message;
    let mut kept = Vec::with_capacity(message.len());
    while rest.has_remaining() {
        let field = rest;
        let (found, wire_type) = decode_key(&mut rest)?;
        if found != tag {
            skip_field(wire_type, found, &mut rest, prost::encoding::DecodeContext::default())?;
            kept.extend_from_slice(&field[..field.len() - rest.len()]);
            continue;
        }
        let mut content = rest;
        let length = decode_varint(&mut content)?;
        skip_field(wire_type, found, &mut rest, prost::encoding::DecodeContext::default())?;
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(content.len());
        if let Some(replaced) = replace(&content[..length])? {
            encode_key(tag, WireType::LengthDelimited, &mut kept);
            encode_varint(replaced.len() as u64, &mut kept);
            kept.extend(replaced);
        }
    }
    Ok(kept)
}
