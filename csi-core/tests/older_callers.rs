//! VOLUME_CONDITION, as callers of spec v1.12.0 read it, derived from the driver's answers in the form
//! of v1.13.0.
#![allow(deprecated, reason = "the older form is what is tested")]

mod common;
mod whole;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::Served;
use csi_core::*;
use csi_proto::v1;
use whole::{unwell, volume};

/// Volumes a to d: b is degraded, c is gone when its health is asked for, the health of d is unknown.
#[derive(Default)]
struct Ward {
    asked: AtomicU32,
}

fn id(text: &str) -> VolumeId {
    VolumeId::new(text).unwrap()
}

impl Ward {
    fn health(&self, volume_id: VolumeId) -> Result<VolumeHealth> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        match volume_id.as_str() {
            "b" => Ok(unwell(volume_id)),
            "c" => Err(Error::VolumeNotFound(volume_id)),
            "d" => Err(Error::Unavailable("the pool does not answer".into())),
            _ => Ok(VolumeHealth::new(volume_id, vec![])),
        }
    }
}

#[async_trait]
impl Controller for Ward {
    async fn lookup(&self, volume_id: &VolumeId) -> Result<Option<Volume>> {
        Ok(Some(volume(volume_id)))
    }

    fn supports(&self, _: &VolumeCapability) -> bool {
        true
    }
}

#[async_trait]
impl ListVolumes for Ward {
    async fn list_volumes(&self, _: ListVolumesRequest) -> Result<Page<VolumeListing>> {
        let entries = ["a", "b", "c", "d"].map(|name| VolumeListing::new(volume(&id(name)), vec![])).into();
        Ok(Page::new(entries, None))
    }
}

#[async_trait]
impl ControllerGetVolume for Ward {
    async fn get_volume(&self, request: ControllerGetVolumeRequest) -> Result<VolumeListing> {
        Ok(VolumeListing::new(volume(&request.volume_id), vec![]))
    }
}

#[async_trait]
impl ControllerGetVolumeHealth for Ward {
    async fn volume_health(&self, request: ControllerGetVolumeHealthRequest) -> Result<VolumeHealth> {
        self.health(request.volume_id)
    }
}

#[async_trait]
impl ControllerListVolumeHealth for Ward {
    /// Two pages; the first one is about a volume that is in no listing.
    async fn list_volume_health(
        &self,
        request: ControllerListVolumeHealthRequest,
    ) -> Result<Page<VolumeHealth>> {
        Ok(match request.starting_token {
            None => Page::new(vec![unwell(id("z"))], Some(Token::new("more")?)),
            Some(_) => Page::new(vec![unwell(id("b"))], None),
        })
    }
}

#[async_trait]
impl Node for Ward {
    async fn info(&self) -> Result<NodeInfo> {
        NodeInfo::new("n")
    }

    async fn publish_volume(&self, _: NodePublishVolumeRequest) -> Result<()> {
        Ok(())
    }

    async fn unpublish_volume(&self, _: NodeUnpublishVolumeRequest) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl NodeGetVolumeStats for Ward {
    async fn volume_stats(&self, _: NodeGetVolumeStatsRequest) -> Result<VolumeStats> {
        Ok(VolumeStats::from_device_size(5))
    }
}

#[async_trait]
impl NodeGetVolumeHealth for Ward {
    async fn volume_health(&self, request: NodeGetVolumeHealthRequest) -> Result<VolumeHealth> {
        assert_eq!(request.volume_publish_path.as_ref().map(ToString::to_string).as_deref(), Some("/target"));
        self.health(request.volume_id)
    }
}

fn plugin(ward: &Arc<Ward>, lists_health: bool) -> Plugin {
    let controller = ControllerService::new(ward.clone()).list_volumes().get_volume().get_volume_health();
    let node = NodeService::new(ward.clone()).get_volume_stats().get_volume_health();
    Plugin::new("ward.csi.example.org", "1")
        .controller(if lists_health { controller.list_volume_health() } else { controller })
        .node(node)
}

async fn listed(served: &Served) -> Vec<Option<v1::VolumeCondition>> {
    let answer = served.controller().list_volumes(v1::ListVolumesRequest::default()).await.unwrap();
    answer.into_inner().entries.into_iter().map(|entry| entry.status.unwrap().volume_condition).collect()
}

async fn of_stats(served: &Served, volume_id: &str) -> Option<v1::VolumeCondition> {
    let request = v1::NodeGetVolumeStatsRequest {
        volume_id: volume_id.into(),
        volume_path: "/target".into(),
        ..Default::default()
    };
    let answer = served.node().node_get_volume_stats(request).await.unwrap().into_inner();
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
    let ward = Arc::new(Ward::default());
    let plugin = plugin(&ward, false).spec(Spec::V1_13).serve_volume_condition();
    let served = Served::start(plugin).await;
    let unknown = Some(v1::VolumeCondition {
        abnormal: true,
        message: "its health is unknown: the pool does not answer".into(),
    });
    assert_eq!(listed(&served).await, [well(), slow(), None, unknown.clone()]);
    let request = v1::ControllerGetVolumeRequest { volume_id: "b".into() };
    let answer = served.controller().controller_get_volume(request).await.unwrap().into_inner();
    assert_eq!(answer.status.unwrap().volume_condition, slow());
    assert_eq!(of_stats(&served, "a").await, well());
    assert_eq!(of_stats(&served, "b").await, slow());
    assert_eq!(of_stats(&served, "d").await, unknown);

    let request = v1::ControllerGetCapabilitiesRequest {};
    let told = served.controller().controller_get_capabilities(request).await.unwrap().into_inner();
    assert!(format!("{told:?}").contains("VolumeCondition"), "{told:?}");
    let told =
        served.node().node_get_capabilities(v1::NodeGetCapabilitiesRequest {}).await.unwrap().into_inner();
    assert!(format!("{told:?}").contains("VolumeCondition"), "{told:?}");
}

// spec: list-volumes.condition
#[tokio::test]
async fn one_listing_of_what_is_not_well_serves_a_whole_page() {
    let ward = Arc::new(Ward::default());
    let served = Served::start(plugin(&ward, true)).await;
    assert_eq!(listed(&served).await, [well(), slow(), well(), well()]);
    assert_eq!(ward.asked.load(Ordering::SeqCst), 0, "no volume was asked about by itself");
}

#[tokio::test]
async fn nothing_of_it_where_they_are_not_served() {
    let ward = Arc::new(Ward::default());
    let served = Served::start(plugin(&ward, false).spec(Spec::V1_13)).await;
    assert_eq!(listed(&served).await, [None, None, None, None]);
    assert_eq!(of_stats(&served, "b").await, None);
    assert_eq!(ward.asked.load(Ordering::SeqCst), 0);
    let request = v1::ControllerGetCapabilitiesRequest {};
    let told = served.controller().controller_get_capabilities(request).await.unwrap().into_inner();
    assert!(!format!("{told:?}").contains("VolumeCondition"), "{told:?}");
}

/// The numbers of the capabilities of controller and node.
async fn capabilities(served: &Served) -> (Vec<i32>, Vec<i32>) {
    use v1::{controller_service_capability as controller, node_service_capability as node};
    let request = v1::ControllerGetCapabilitiesRequest {};
    let answer = served.controller().controller_get_capabilities(request).await.unwrap().into_inner();
    let of_controller = answer.capabilities.into_iter().map(|one| match one.r#type.unwrap() {
        controller::Type::Rpc(rpc) => rpc.r#type,
    });
    let answer = served.node().node_get_capabilities(v1::NodeGetCapabilitiesRequest {}).await.unwrap();
    let of_node = answer.into_inner().capabilities.into_iter().map(|one| match one.r#type.unwrap() {
        node::Type::Rpc(rpc) => rpc.r#type,
    });
    (of_controller.collect(), of_node.collect())
}

#[tokio::test]
async fn by_default_callers_see_v1_12_only() {
    let ward = Arc::new(Ward::default());
    let served = Served::start(plugin(&ward, true)).await;
    let (list, condition, get) = (3, 11, 12);
    let (stats, node_condition) = (2, 4);
    assert_eq!(capabilities(&served).await, (vec![list, condition, get], vec![stats, node_condition]));
    let asked = v1::ControllerGetVolumeHealthRequest { volume_id: "b".into(), ..Default::default() };
    let refused = served.controller().controller_get_volume_health(asked).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
    let asked = v1::NodeGetVolumeHealthRequest { volume_id: "b".into(), ..Default::default() };
    let refused = served.node().node_get_volume_health(asked).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
    assert_eq!(of_stats(&served, "b").await, slow());
}

#[tokio::test]
async fn with_v1_13_the_newer_capabilities_are_offered() {
    let ward = Arc::new(Ward::default());
    let served = Served::start(plugin(&ward, true).spec(Spec::V1_13)).await;
    let (list, get, get_health, list_health) = (3, 12, 16, 17);
    let (stats, node_health) = (2, 7);
    let due = (vec![list, get, get_health, list_health], vec![stats, node_health]);
    assert_eq!(capabilities(&served).await, due);
}

#[tokio::test]
async fn a_withdrawn_condition_is_not_served() {
    let ward = Arc::new(Ward::default());
    let controller = ControllerService::new(ward.clone())
        .list_volumes()
        .get_volume_health()
        .without(ControllerCapability::VolumeCondition);
    let node = NodeService::new(ward.clone())
        .get_volume_stats()
        .get_volume_health()
        .without(NodeCapability::VolumeCondition);
    let served =
        Served::start(Plugin::new("ward.csi.example.org", "1").controller(controller).node(node)).await;
    assert_eq!(capabilities(&served).await, (vec![3], vec![2]));
    assert_eq!(listed(&served).await, [None, None, None, None]);
    assert_eq!(ward.asked.load(Ordering::SeqCst), 0);
}
