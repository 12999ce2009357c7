//! A canary in every secret field, token and mount flag of every RPC: no log has it, at any level, in any format.

mod program;

use std::collections::HashMap;

use csi_core::client::Client;
use csi_proto::FILE_DESCRIPTOR_SET;
use csi_proto::redact::TOKENS_KEY;
use program::Program;
use prost::Message;
use prost::bytes::{Buf, BufMut};
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value,
};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;

const CANARY: &str = "canary-d41c";

/// Messages as they are on the wire.
#[derive(Clone, Copy, Default)]
struct Wire;

impl Codec for Wire {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        Self
    }
    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Wire {
    type Item = Vec<u8>;
    type Error = Status;
    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Wire {
    type Item = Vec<u8>;
    type Error = Status;
    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

fn map(entries: &[(&str, &str)]) -> Value {
    let entry =
        |(key, value): &(&str, &str)| (MapKey::String((*key).to_owned()), Value::String((*value).to_owned()));
    Value::Map(entries.iter().map(entry).collect::<HashMap<_, _>>())
}

/// A request that goes far: every field is set, the canary where a secret may be. Counts the canaries.
fn fill(descriptor: &MessageDescriptor, canaries: &mut usize) -> DynamicMessage {
    let secret = descriptor.parent_pool().get_extension_by_name("csi.v1.csi_secret").expect("the option");
    let is_secret = |field: &FieldDescriptor| *field.options().get_extension(&secret) == Value::Bool(true);
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        let value = if is_secret(&field) {
            *canaries += 1;
            map(&[("password", CANARY), (TOKENS_KEY, CANARY)])
        } else if field.is_map() {
            if field.name().contains("segments") {
                continue;
            }
            *canaries += 1;
            map(&[(TOKENS_KEY, CANARY), ("harmless", "value")])
        } else if field.name() == "mount_flags" {
            *canaries += 1;
            Value::List(vec![Value::String(format!("password={CANARY}"))])
        } else {
            match field.kind() {
                Kind::Message(nested) if field.is_list() => {
                    Value::List(vec![Value::Message(fill(&nested, canaries))])
                }
                Kind::Message(nested) => Value::Message(fill(&nested, canaries)),
                Kind::String if field.is_list() => Value::List(vec![Value::String("one".to_owned())]),
                Kind::String if field.name().ends_with("path") => Value::String("/nowhere".to_owned()),
                Kind::String => Value::String("volume-1".to_owned()),
                Kind::Enum(_) => Value::EnumNumber(1),
                _ => continue,
            }
        };
        message.set_field(&field, value);
    }
    // What would be refused at the door: topology, sources and the block access of the oneof's other half.
    for field in ["accessibility_requirements", "volume_content_source", "block"] {
        message.clear_field_by_name(field);
    }
    if message.has_field_by_name("access_mode") {
        let mount =
            descriptor.get_field_by_name("mount").and_then(|field| field.kind().as_message().cloned());
        if let Some(mount) = mount {
            message.set_field_by_name("mount", Value::Message(fill(&mount, canaries)));
        }
    }
    message
}

/// Calls everything. Gives how many calls and canaries there were, and how many calls succeeded.
async fn call_all(client: &Client) -> (usize, usize, usize) {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the descriptor decodes");
    let (mut calls, mut canaries, mut successes) = (0, 0, 0);
    for service in pool.services().filter(|service| service.package_name() == "csi.v1") {
        for method in service.methods() {
            let request = fill(&method.input(), &mut canaries).encode_to_vec();
            let path: PathAndQuery =
                format!("/{}/{}", service.full_name(), method.name()).parse().expect("a path");
            let mut grpc = tonic::client::Grpc::new(client.channel());
            grpc.ready().await.expect("the server is there");
            let request = tonic::Request::new(request);
            let failed = match method.is_server_streaming() {
                false => grpc.unary(request, path, Wire).await.err(),
                true => grpc.server_streaming(request, path, Wire).await.err(),
            };
            calls += 1;
            successes += usize::from(failed.is_none());
            if let Some(status) = failed {
                assert!(!status.message().contains(CANARY), "{method:?}: {status}");
            }
        }
    }
    (calls, canaries, successes)
}

#[tokio::test]
async fn no_log_has_the_canary() {
    for format in ["text", "json"] {
        for level in ["error", "warn", "info", "debug", "trace"] {
            let mut program = Program::start(&["--log-format", format, "--log-level", level]);
            let client = program.client().await;
            let (calls, canaries, successes) = call_all(&client).await;
            program.terminate();
            assert!(program.ended().await.success());
            let log = program.log();
            println!(
                "{format} {level}: {calls} calls, {successes} succeed, {canaries} canaries, {} lines of log",
                log.lines().count()
            );
            assert_eq!(calls, 36);
            assert!(canaries > 40 && successes >= 8, "{canaries} canaries, {successes} successes");
            if let Some(line) = log.lines().find(|line| line.contains(CANARY)) {
                panic!("{format} {level}: {line}");
            }
            // It is the right log, and it has the requests.
            if ["debug", "trace"].contains(&level) {
                assert!(log.contains("NodePublishVolume") && log.contains("harmless"), "{log}");
            }
            if format == "json" {
                log.lines().for_each(|line| assert!(line.starts_with('{') && line.ends_with('}'), "{line}"));
            }
        }
    }
}
