//! gRPC's reflection: it describes what is served, and nothing else.

use std::sync::Arc;

use csi_core::*;
use prost::Message as _;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::common::Served;
use crate::driver::whole_plugin;

/// The services of the spec that reflection lists, without their prefix, and the descriptor of the spec's file.
async fn described(plugin: Plugin) -> (Vec<String>, Vec<u8>) {
    let served = Served::start(plugin).await;
    let mut client = ServerReflectionClient::new(served.client.channel());
    let mut ask = async |request| {
        let request = ServerReflectionRequest { message_request: Some(request), ..Default::default() };
        let asked = client.server_reflection_info(tokio_stream::once(request)).await;
        asked.unwrap().into_inner().message().await.unwrap().unwrap().message_response.unwrap()
    };
    let MessageResponse::ListServicesResponse(list) = ask(MessageRequest::ListServices(String::new())).await
    else {
        panic!("not a list");
    };
    let listed = list.service.into_iter().map(|service| service.name);
    let mut listed: Vec<_> =
        listed.filter_map(|name| Some(name.strip_prefix("csi.v1.")?.to_owned())).collect();
    listed.sort();
    let symbol = MessageRequest::FileContainingSymbol("csi.v1.Identity".to_owned());
    let MessageResponse::FileDescriptorResponse(mut files) = ask(symbol).await else {
        panic!("not a file");
    };
    (listed, files.file_descriptor_proto.remove(0))
}

/// The services in a file, sorted, and all their RPCs.
fn parts(file: &[u8]) -> (Vec<String>, Vec<String>) {
    let file = prost_types::FileDescriptorProto::decode(file).unwrap();
    let rpcs = file.service.iter().flat_map(|service| &service.method).map(|rpc| rpc.name().to_owned());
    let mut services: Vec<_> = file.service.iter().map(|service| service.name().to_owned()).collect();
    services.sort();
    (services, rpcs.collect())
}

const NEWER: [&str; 4] = [
    "ControllerListVolumeHealth",
    "ControllerGetVolumeHealth",
    "NodeGetVolumeHealth",
    "NodeGetStorageHealth",
];

// spec: endpoint.all-services
#[tokio::test]
async fn the_spec_s_file_is_described_as_it_is() {
    let (listed, file) = described(whole_plugin(&Arc::default()).spec(Spec::V1_13)).await;
    assert_eq!(listed, ["Controller", "GroupController", "Identity", "Node", "SnapshotMetadata"]);
    assert_eq!(parts(&file).1.len(), Rpc::ALL.len());
    let is_unchanged = csi_proto::FILE_DESCRIPTOR_SET.windows(file.len()).any(|part| part == file);
    assert!(is_unchanged, "with the spec's own options");
}

#[tokio::test]
async fn only_the_rpcs_of_the_served_version_are_described() {
    let (listed, file) = described(whole_plugin(&Arc::default()).spec(Spec::V1_12)).await;
    let (services, rpcs) = parts(&file);
    assert_eq!(services, listed);
    assert_eq!(rpcs.len(), Rpc::ALL.len() - NEWER.len(), "{rpcs:?}");
    assert!(NEWER.iter().all(|name| !rpcs.iter().any(|rpc| rpc == name)), "{rpcs:?}");
}

#[tokio::test]
async fn only_served_services_are_described() {
    for (plugin, due) in [
        (whole_plugin(&Arc::default()).mode(Mode::Node), &["Identity", "Node"][..]),
        (Plugin::new("identity.csi.example.org", "1"), &["Identity"]),
    ] {
        let (listed, file) = described(plugin).await;
        assert_eq!(listed, due);
        assert_eq!(parts(&file).0, due);
    }
}
