//! What a plugin reports about itself, what it answers if something is missing, and how it treats the
//! driver's answers.

mod common;

use std::sync::Arc;

use common::*;
use csi_core::{AccessMode, Mode, NodeService, Plugin};
use csi_proto::v1;
use tonic::Code;

// spec: services.capabilities-are-served, get-plugin-info.version
#[tokio::test]
async fn capabilities_are_what_is_registered() {
    let served = Served::start(plugin(Default::default())).await;
    let info = served.identity().get_plugin_info(v1::GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.name.as_str(), info.vendor_version.as_str()), ("memory.csi.example.org", "1.2.3"));
    let probe = served.identity().probe(v1::ProbeRequest {}).await.unwrap().into_inner();
    assert_eq!(probe.ready, Some(true));

    let plugin =
        served.identity().get_plugin_capabilities(v1::GetPluginCapabilitiesRequest {}).await.unwrap();
    let text = format!("{:?}", plugin.into_inner().capabilities);
    assert!(text.contains("ControllerService") && text.contains("Online"), "{text}");

    let request = v1::ControllerGetCapabilitiesRequest {};
    let controller = served.controller().controller_get_capabilities(request).await.unwrap().into_inner();
    use v1::controller_service_capability::{Type, rpc};
    let offered: Vec<i32> = controller
        .capabilities
        .iter()
        .map(|capability| match capability.r#type.as_ref().unwrap() {
            Type::Rpc(rpc) => rpc.r#type,
        })
        .collect();
    let due = [rpc::Type::CreateDeleteVolume, rpc::Type::PublishUnpublishVolume, rpc::Type::ExpandVolume];
    assert_eq!(offered, due.map(|capability| capability as i32));

    let node = served.node().node_get_info(v1::NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((node.node_id.as_str(), node.max_volumes_per_node), ("node-1", 7));
}

// spec: services.unsupported-is-unimplemented, errors.message
#[tokio::test]
async fn what_is_not_offered_is_unimplemented_with_a_message() {
    let memory: Arc<Memory> = Arc::default();
    let bare = Plugin::new("bare.csi.example.org", "1").node(NodeService::new(memory));
    let served = Served::start(bare).await;
    let statuses = [
        served.node().node_stage_volume(stage("v")).await.unwrap_err(),
        served.controller().create_volume(create("v")).await.unwrap_err(),
        served.controller().list_volumes(v1::ListVolumesRequest::default()).await.unwrap_err(),
        served.node().node_get_storage_health(v1::NodeGetStorageHealthRequest::default()).await.unwrap_err(),
        served
            .controller()
            .controller_get_capabilities(v1::ControllerGetCapabilitiesRequest {})
            .await
            .unwrap_err(),
    ];
    for status in statuses {
        assert_eq!(status.code(), Code::Unimplemented, "{status}");
        assert!(!status.message().is_empty());
    }
    // A publish needs no staging path if the driver never stages.
    let mut request = publish("v", "/target");
    request.staging_target_path.clear();
    served.node().node_publish_volume(request).await.unwrap();
}

// spec: services.identity-everywhere, services.unsupported-is-unimplemented, process.knows-its-mode
// spec: get-plugin-capabilities.same-everywhere
#[tokio::test]
async fn a_mode_hides_services_and_not_capabilities() {
    let served = Served::start(plugin(Default::default()).mode(Mode::Node)).await;
    let status = served.controller().create_volume(create("v")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("mode node"), "{status}");
    let plugin =
        served.identity().get_plugin_capabilities(v1::GetPluginCapabilitiesRequest {}).await.unwrap();
    assert!(format!("{plugin:?}").contains("ControllerService"));
}

// spec: create-volume.same-name-same-volume, create-volume.one-volume-a-name
// spec: create-volume.differs-is-already-exists
#[tokio::test]
async fn a_repeated_create_is_ok_when_it_fits_and_a_conflict_when_not() {
    let served = Served::start(plugin(Default::default())).await;
    let sized = |required_bytes, limit_bytes| {
        let mut request = create("v");
        request.capacity_range = Some(v1::CapacityRange { required_bytes, limit_bytes });
        request
    };
    let first = served.controller().create_volume(sized(100, 200)).await.unwrap().into_inner().volume;
    let again = served.controller().create_volume(sized(50, 100)).await.unwrap().into_inner().volume;
    assert_eq!(first, again);
    let status = served.controller().create_volume(sized(101, 0)).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
}

// spec: delete-volume.missing-is-ok
#[tokio::test]
async fn deleting_what_is_not_there_is_done() {
    let served = Served::start(plugin(Default::default())).await;
    let request = v1::DeleteVolumeRequest { volume_id: "never".into(), ..Default::default() };
    served.controller().delete_volume(request).await.expect("the driver said not found, and that is done");
}

// spec: create-volume.all-capabilities, validate-volume-capabilities.all-or-none
// spec: validate-volume-capabilities.confirms-what-was-asked, validate-volume-capabilities.missing
#[tokio::test]
async fn capabilities_are_confirmed_all_or_none() {
    let served = Served::start(plugin(Default::default())).await;
    served.controller().create_volume(create("v")).await.unwrap();
    let ask = |capabilities: Vec<v1::VolumeCapability>| v1::ValidateVolumeCapabilitiesRequest {
        volume_id: "v".into(),
        volume_capabilities: capabilities,
        ..Default::default()
    };
    for mode in AccessMode::ALL {
        let number = AccessMode::ALL.iter().position(|other| *other == mode).unwrap() as i32 + 1;
        let request = ask(vec![mount_capability(number)]);
        let answer = served.controller().validate_volume_capabilities(request).await.unwrap().into_inner();
        // The driver does not support the first mode, and lacks SINGLE_NODE_MULTI_WRITER for the other two.
        let refused = [
            AccessMode::MultiNodeMultiWriter,
            AccessMode::SingleNodeSingleWriter,
            AccessMode::SingleNodeMultiWriter,
        ];
        assert_eq!(answer.confirmed.is_none(), refused.contains(&mode), "{mode}");
    }
    let mixed = ask(vec![mount_capability(1), block_capability(1)]);
    let answer = served.controller().validate_volume_capabilities(mixed).await.unwrap().into_inner();
    assert!(answer.confirmed.is_none());
    assert!(answer.message.contains("volume_capabilities[1]"), "{}", answer.message);
}
