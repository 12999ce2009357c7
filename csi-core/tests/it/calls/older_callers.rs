//! VOLUME_CONDITION, as callers of spec v1.12.0 read it, derived from the driver's answers in the form
//! of v1.13.0.
#![allow(deprecated, reason = "the older form is what is tested")]

use std::sync::Arc;

use csi_core::controller::{Page, VolumeListing};
use csi_core::types::{Token, VolumeHealth};
use csi_core::*;
use csi_proto::v1;
use tonic::Code;

use crate::common::{Served, refused, stats};
use crate::driver::{TestDriver, id, page, unwell, volume};

/// Volumes a to d: b is degraded, c is gone when its health is asked for, the health of d is unknown.
fn ward() -> Arc<TestDriver> {
    let health = |volume_id: VolumeId| match volume_id.as_str() {
        "b" => Ok(unwell(volume_id)),
        "c" => Err(Error::VolumeNotFound(volume_id)),
        "d" => Err(Error::Unavailable("the pool does not answer".into())),
        _ => Ok(VolumeHealth::new(volume_id, vec![])),
    };
    let driver = Arc::new(TestDriver::default());
    driver.list_volumes.answers(|_| {
        Ok(page(["a", "b", "c", "d"].map(|name| VolumeListing::new(volume(&id(name)), vec![]))))
    });
    driver.controller_get_volume_health.answers(move |request| health(request.volume_id));
    // Two pages; the first one is about a volume that is in no listing.
    driver.controller_list_volume_health.answers(|request| {
        Ok(match request.starting_token {
            None => Page::new(vec![unwell(id("z"))], Some(Token::new("more")?)),
            Some(_) => page([unwell(id("b"))]),
        })
    });
    driver.node_get_volume_health.answers(move |request| {
        assert_eq!(request.volume_publish_path.unwrap(), std::path::Path::new("/target"));
        health(request.volume_id)
    });
    driver
}

/// How often the driver was asked for a volume's health.
fn asked(driver: &TestDriver) -> u32 {
    driver.controller_get_volume_health.calls() + driver.node_get_volume_health.calls()
}

fn plugin(ward: &Arc<TestDriver>, lists_health: bool) -> Plugin {
    let controller = ControllerService::new(ward.clone()).list_volumes().get_volume().get_volume_health();
    let node = NodeService::new(ward.clone()).get_volume_stats().get_volume_health();
    Plugin::new("test.csi.example.org", "1")
        .controller(if lists_health { controller.list_volume_health() } else { controller })
        .node(node)
}

async fn listed(served: &Served) -> Vec<Option<v1::VolumeCondition>> {
    let answer = served.call(v1::ListVolumesRequest::default()).await.unwrap();
    answer.entries.into_iter().map(|entry| entry.status.unwrap().volume_condition).collect()
}

async fn of_stats(served: &Served, volume_id: &str) -> Option<v1::VolumeCondition> {
    let answer = served.call(stats(volume_id, "/target")).await.unwrap();
    assert_eq!(answer.usage.len(), 1, "usage is told whatever the condition is");
    answer.volume_condition
}

fn well() -> Option<v1::VolumeCondition> {
    Some(v1::VolumeCondition { abnormal: false, message: "nothing is wrong".into() })
}

fn slow() -> Option<v1::VolumeCondition> {
    Some(v1::VolumeCondition { abnormal: true, message: "DiskSlow: a disk is slow".into() })
}

// spec: list-volumes.condition, controller-get-volume.condition, node-get-volume-stats.condition
#[tokio::test]
async fn health_is_reported_as_a_condition_to_older_callers() {
    let ward = ward();
    let plugin = plugin(&ward, false).spec(Spec::V1_13).serve_volume_condition();
    let served = Served::start(plugin).await;
    let unknown = Some(v1::VolumeCondition {
        abnormal: true,
        message: "its health is unknown: the pool does not answer".into(),
    });
    assert_eq!(listed(&served).await, [well(), slow(), None, unknown.clone()]);
    let request = v1::ControllerGetVolumeRequest { volume_id: "b".into() };
    let answer = served.call(request).await.unwrap();
    assert_eq!(answer.status.unwrap().volume_condition, slow());
    assert_eq!(of_stats(&served, "a").await, well());
    assert_eq!(of_stats(&served, "b").await, slow());
    assert_eq!(of_stats(&served, "d").await, unknown);

    let told = served.call(v1::ControllerGetCapabilitiesRequest {}).await.unwrap();
    assert!(format!("{told:?}").contains("VolumeCondition"), "{told:?}");
    let told = served.call(v1::NodeGetCapabilitiesRequest {}).await.unwrap();
    assert!(format!("{told:?}").contains("VolumeCondition"), "{told:?}");
}

// spec: list-volumes.condition
#[tokio::test]
async fn one_listing_of_what_is_not_well_serves_a_whole_page() {
    let ward = ward();
    let served = Served::start(plugin(&ward, true)).await;
    assert_eq!(listed(&served).await, [well(), slow(), well(), well()]);
    assert_eq!(asked(&ward), 0, "no volume was asked about by itself");
}

#[tokio::test]
async fn nothing_of_it_where_they_are_not_served() {
    let ward = ward();
    let served = Served::start(plugin(&ward, false).spec(Spec::V1_13)).await;
    assert_eq!(listed(&served).await, [None, None, None, None]);
    assert_eq!(of_stats(&served, "b").await, None);
    assert_eq!(asked(&ward), 0);
    let told = served.call(v1::ControllerGetCapabilitiesRequest {}).await.unwrap();
    assert!(!format!("{told:?}").contains("VolumeCondition"), "{told:?}");
}

/// The numbers of the capabilities of controller and node.
async fn capabilities(served: &Served) -> (Vec<i32>, Vec<i32>) {
    use v1::{controller_service_capability as controller, node_service_capability as node};
    let answer = served.call(v1::ControllerGetCapabilitiesRequest {}).await.unwrap();
    let of_controller = answer.capabilities.into_iter().map(|one| match one.r#type.unwrap() {
        controller::Type::Rpc(rpc) => rpc.r#type,
    });
    let answer = served.call(v1::NodeGetCapabilitiesRequest {}).await.unwrap();
    let of_node = answer.capabilities.into_iter().map(|one| match one.r#type.unwrap() {
        node::Type::Rpc(rpc) => rpc.r#type,
    });
    (of_controller.collect(), of_node.collect())
}

#[tokio::test]
async fn by_default_callers_see_v1_12_only() {
    let ward = ward();
    let served = Served::start(plugin(&ward, true)).await;
    let list = 3;
    let condition = 11;
    let get = 12;
    let stats = 2;
    let node_condition = 4;
    assert_eq!(capabilities(&served).await, (vec![list, condition, get], vec![stats, node_condition]));
    let asked = v1::ControllerGetVolumeHealthRequest { volume_id: "b".into(), ..Default::default() };
    refused(served.call(asked).await, Code::Unimplemented);
    let asked = v1::NodeGetVolumeHealthRequest { volume_id: "b".into(), ..Default::default() };
    refused(served.call(asked).await, Code::Unimplemented);
    assert_eq!(of_stats(&served, "b").await, slow());
}

#[tokio::test]
async fn with_v1_13_the_newer_capabilities_are_offered() {
    let ward = ward();
    let served = Served::start(plugin(&ward, true).spec(Spec::V1_13)).await;
    let list = 3;
    let get = 12;
    let get_health = 16;
    let list_health = 17;
    let stats = 2;
    let node_health = 7;
    let due = (vec![list, get, get_health, list_health], vec![stats, node_health]);
    assert_eq!(capabilities(&served).await, due);
}

#[tokio::test]
async fn a_withdrawn_condition_is_not_served() {
    let ward = ward();
    let controller = ControllerService::new(ward.clone())
        .list_volumes()
        .get_volume_health()
        .without(ControllerCapability::VolumeCondition);
    let node = NodeService::new(ward.clone())
        .get_volume_stats()
        .get_volume_health()
        .without(NodeCapability::VolumeCondition);
    let served =
        Served::start(Plugin::new("test.csi.example.org", "1").controller(controller).node(node)).await;
    assert_eq!(capabilities(&served).await, (vec![3], vec![2]));
    assert_eq!(listed(&served).await, [None, None, None, None]);
    assert_eq!(asked(&ward), 0);
}
