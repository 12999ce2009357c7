//! The overview of a driver's capabilities.

use csi_core::Rpc;
use csi_proto::{ControllerCapability, NodeCapability, v1};
use prost::Message;
use serde_json::json;
use tonic::Status;

use crate::support::*;

fn fake() -> Fake {
    use v1::plugin_capability::{Service, Type, VolumeExpansion};
    Fake::new(async |rpc, _| match rpc {
        Rpc::GetPluginInfo => answer(&v1::GetPluginInfoResponse {
            name: "a.csi.example.org".into(),
            vendor_version: "1.2.3".into(),
            ..Default::default()
        }),
        Rpc::Probe => answer(&v1::ProbeResponse { ready: Some(false) }),
        Rpc::GetPluginCapabilities => {
            let expansion = Type::VolumeExpansion(VolumeExpansion { r#type: 1 });
            answer(&plugin_offers([Type::Service(Service { r#type: 1 }), expansion]))
        }
        Rpc::ControllerGetCapabilities => {
            answer(&controller_offers([ControllerCapability::CreateDeleteVolume.into(), 99]))
        }
        Rpc::NodeGetCapabilities => answer(&node_offers([NodeCapability::StageUnstageVolume])),
        Rpc::NodeGetInfo => answer(&v1::NodeGetInfoResponse {
            node_id: "node-a".into(),
            max_volumes_per_node: 8,
            accessible_topology: Some(v1::Topology { segments: [("zone".into(), "a".into())].into() }),
        }),
        _ => Err(Status::unimplemented("no")),
    })
}

#[test]
fn it_is_a_page_for_people() {
    let fake = fake();
    let page = ok(&run(&fake.socket(), &["capabilities"]));
    let endpoint = format!("unix://{}", fake.socket().display());
    let mut lines = page.lines();
    assert_eq!(lines.next().unwrap(), format!("a.csi.example.org 1.2.3 at {endpoint}: still starting"));
    assert_eq!(lines.next().unwrap(), "node node-a, at most 8 volumes, zone=a");
    for part in [
        "plugin\n  CONTROLLER_SERVICE       has a controller\n  VOLUME_EXPANSION_ONLINE  expands volumes",
        "controller\n  CREATE_DELETE_VOLUME  creates and deletes volumes\n  99 (unknown)\n  not offered: CLONE",
        "group\n  not available on this socket\n",
        "node\n  STAGE_UNSTAGE_VOLUME  prepares a volume once",
    ] {
        assert!(page.contains(part), "{part}\nin\n{page}");
    }
    assert!(page.lines().all(|line| line.len() <= 100), "{page}");
}

#[test]
fn it_is_json_for_programs() {
    let fake = fake();
    let printed = ok(&run(&fake.socket(), &["capabilities", "--output", "json"]));
    let printed: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let due = json!({
        "endpoint": format!("unix://{}", fake.socket().display()),
        "name": "a.csi.example.org",
        "vendorVersion": "1.2.3",
        "manifest": {},
        "ready": false,
        "plugin": ["CONTROLLER_SERVICE", "VOLUME_EXPANSION_ONLINE"],
        "controller": ["CREATE_DELETE_VOLUME", "99 (unknown)"],
        "group": null,
        "node": ["STAGE_UNSTAGE_VOLUME"],
        "nodeInfo": {
            "nodeId": "node-a",
            "maxVolumesPerNode": "8",
            "accessibleTopology": { "segments": { "zone": "a" } },
        },
    });
    assert_eq!(printed, due);
}

#[test]
fn a_controller_at_a_socket_of_its_own_is_asked_there() {
    let node = Fake::new(async |rpc, _| match rpc {
        Rpc::ControllerGetCapabilities => Err(Status::unimplemented("elsewhere")),
        Rpc::GetPluginInfo | Rpc::Probe | Rpc::GetPluginCapabilities => empty(),
        _ => Err(Status::unimplemented("no")),
    });
    let whole = fake();
    let at = whole.socket();
    let words = ["capabilities", "--controller-endpoint", at.to_str().unwrap()];
    let page = ok(&run(&node.socket(), &words));
    assert!(
        page.contains("CREATE_DELETE_VOLUME") && page.contains("node\n  not available on this socket"),
        "{page}"
    );
}

fn empty() -> Result<Answers, Status> {
    #[derive(Clone, PartialEq, Message)]
    struct Empty {}
    answer(&Empty {})
}

#[test]
fn one_that_is_not_healthy_is_shown_all_the_same() {
    let fake = Fake::new(async |rpc, _| match rpc {
        Rpc::Probe => Err(Status::failed_precondition("the array is away")),
        Rpc::GetPluginInfo | Rpc::GetPluginCapabilities => empty(),
        _ => Err(Status::unimplemented("no")),
    });
    let page = ok(&run(&fake.socket(), &["capabilities"]));
    assert!(
        page.contains("not healthy: the array is away") && page.contains("not offered: CONTROLLER_SERVICE"),
        "{page}"
    );
}
