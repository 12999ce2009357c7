//! A call through the whole call path, compared with a handler on tonic alone, over the same kind of socket. And
//! requests decoded and printed, without a server.

use std::collections::BTreeMap;

use csi_core::node::NodePublishVolumeRequest;
use csi_proto::v1;
use prost::Message as _;

use super::Bench;
use crate::rpc::{Call, Server, Servers, request};
use crate::{Contestant, Place, looped};

/// Decoding to the driver's typed request, compared with decoding to the message.
pub(super) fn request_of(bytes: usize) -> Vec<u8> {
    request(1, bytes).encode_to_vec()
}

fn decoded(encoded: &[u8]) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest::decode(encoded).expect("decode")
}

pub(super) fn request_subject(bench: &mut Bench<'_>, bytes: usize) {
    let encoded = request_of(bytes);
    bench.compare([
        Contestant::bare("prost alone", looped(|| decoded(&encoded))),
        Contestant::ours(
            "prost, NodePublishVolumeRequest",
            looped(|| NodePublishVolumeRequest::try_from(decoded(&encoded)).expect("a valid request")),
        ),
    ]);
}

/// The printed fields of a request, with a derived `Debug`: the cost without hiding secrets.
#[derive(Debug)]
#[expect(dead_code, reason = "read by Debug")]
struct Plain {
    name: String,
    capacity_range: Option<v1::CapacityRange>,
    volume_capabilities: Vec<v1::VolumeCapability>,
    parameters: BTreeMap<String, String>,
    secrets: BTreeMap<String, String>,
}

pub(super) fn debug(bench: &mut Bench<'_>, bytes: usize) {
    let parameters = request(1, bytes).volume_context;
    let secrets: BTreeMap<String, String> = [("token".to_owned(), "s3cret".repeat(20))].into();
    let message = v1::CreateVolumeRequest {
        name: "pvc-1".to_owned(),
        parameters: parameters.clone(),
        secrets: secrets.clone(),
        ..Default::default()
    };
    let plain = Plain {
        name: "pvc-1".to_owned(),
        capacity_range: None,
        volume_capabilities: Vec::new(),
        parameters,
        secrets,
    };
    bench.compare([
        Contestant::bare("derived, nothing hidden", looped(|| format!("{plain:?}"))),
        Contestant::ours("secrets hidden", looped(|| format!("{message:?}"))),
    ]);
}

/// The number of ids that take turns when their number is not measured.
const SOME: usize = 1000;

fn calls(bench: &mut Bench<'_>, call: Call, clients: usize) {
    let place = Place::new();
    let servers = Servers::start(place.directory("sockets"));
    let mut bare = servers.clients(Server::Bare, clients);
    let mut whole = servers.clients(Server::Whole, clients);
    bench.compare([
        Contestant::bare("tonic alone", move |times| bare.run(call, times)),
        Contestant::ours("csi-core", move |times| whole.run(call, times)),
    ]);
}

pub(super) fn publish(bench: &mut Bench<'_>, clients: usize) {
    calls(bench, Call::Publish { volumes: SOME, parameters: 0 }, clients);
}

pub(super) fn question(bench: &mut Bench<'_>, clients: usize) {
    calls(bench, Call::Question, clients);
}

pub(super) fn volumes(bench: &mut Bench<'_>, volumes: usize) {
    calls(bench, Call::Publish { volumes, parameters: 0 }, 1);
}

pub(super) fn parameters(bench: &mut Bench<'_>, bytes: usize) {
    calls(bench, Call::Publish { volumes: SOME, parameters: bytes }, 1);
}
