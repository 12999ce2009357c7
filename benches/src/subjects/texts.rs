//! Requests decoded and printed, without a server.

use std::collections::BTreeMap;

use csi_core::NodePublishVolumeRequest;
use csi_proto::v1;
use prost::Message as _;

use crate::rpc::request;
use crate::{Bench, Contestant, looped};

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
