//! What a driver says about its volumes for admission, and the claims of its own work.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{Served, create, eventually, expand};
use csi_core::*;
use csi_proto::v1;
use tokio::sync::Semaphore;
use tonic::{Code, Status};

/// Its volumes have their names as ids. Operations wait until a test adds permits.
struct Named {
    begun: AtomicU32,
    gate: Semaphore,
}

impl Named {
    fn new() -> Arc<Self> {
        Arc::new(Self { begun: AtomicU32::new(0), gate: Semaphore::new(0) })
    }

    async fn work(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.gate.acquire().await.unwrap().forget();
    }

    async fn until_begun(&self, count: u32) {
        eventually("operations begin", || self.begun.load(Ordering::SeqCst) == count).await;
    }
}

#[async_trait]
impl Controller for Named {
    async fn lookup(&self, volume_id: &VolumeId) -> Result<Option<Volume>> {
        Ok(Some(Volume::new(volume_id.clone(), 0)))
    }

    fn supports(&self, _: &VolumeCapability) -> bool {
        true
    }

    fn volume_id_of_name(&self, name: &VolumeName) -> Option<VolumeId> {
        VolumeId::new(name.as_str()).ok()
    }
}

#[async_trait]
impl CreateDeleteVolume for Named {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume> {
        self.work().await;
        Ok(Volume::new(VolumeId::new(request.name.as_str())?, 0))
    }

    async fn delete_volume(&self, _: DeleteVolumeRequest) -> Result<()> {
        self.work().await;
        Ok(())
    }
}

#[async_trait]
impl ControllerExpandVolume for Named {
    async fn expand_volume(&self, request: ControllerExpandVolumeRequest) -> Result<Expanded> {
        self.work().await;
        Ok(Expanded::complete(request.capacity_range.required_bytes.unwrap_or(0)))
    }
}

#[async_trait]
impl ControllerModifyVolume for Named {
    async fn modify_volume(&self, _: ControllerModifyVolumeRequest) -> Result<()> {
        self.work().await;
        Ok(())
    }
}

fn plugin(named: &Arc<Named>, together: bool) -> Plugin {
    let service = ControllerService::new(named.clone()).create_delete_volume().modify_volume();
    let service = service.expand_volume(Expansion::Online);
    let service = if together { service.modify_while_expanding() } else { service };
    Plugin::new("named.csi.example.org", "1").controller(service)
}

async fn delete(served: &Served, volume_id: &str) -> Result<(), Status> {
    let request = v1::DeleteVolumeRequest { volume_id: volume_id.into(), ..Default::default() };
    served.controller().delete_volume(request).await.map(drop)
}

fn modify(volume_id: &str) -> v1::ControllerModifyVolumeRequest {
    let mutable_parameters = [("iops".to_owned(), "9".to_owned())].into();
    v1::ControllerModifyVolumeRequest {
        volume_id: volume_id.into(),
        mutable_parameters,
        ..Default::default()
    }
}

#[tokio::test]
async fn a_create_and_a_delete_of_one_volume_exclude_each_other_by_its_name() {
    let named = Named::new();
    let served = Served::start(plugin(&named, false)).await;
    let mut controller = served.controller();
    let creating = tokio::spawn(async move { controller.create_volume(create("v")).await });
    named.until_begun(1).await;
    let refused = delete(&served, "v").await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    assert!(refused.message().contains("CreateVolume"), "{refused:?}");
    named.gate.add_permits(2);
    delete(&served, "other").await.unwrap();
    creating.await.unwrap().unwrap();
    named.gate.add_permits(1);
    delete(&served, "v").await.unwrap();
}

#[tokio::test]
async fn a_volume_is_modified_while_it_is_expanded_where_the_driver_says_so() {
    for together in [true, false] {
        let named = Named::new();
        let served = Served::start(plugin(&named, together)).await;
        let mut controller = served.controller();
        let expanding =
            tokio::spawn(async move { controller.controller_expand_volume(expand("v", 9)).await });
        named.until_begun(1).await;
        let other_size = served.controller().controller_expand_volume(expand("v", 10)).await.unwrap_err();
        assert_eq!(other_size.code(), Code::Aborted);
        assert_eq!(delete(&served, "v").await.unwrap_err().code(), Code::Aborted);
        let mut controller = served.controller();
        let modifying = tokio::spawn(async move { controller.controller_modify_volume(modify("v")).await });
        if together {
            named.until_begun(2).await;
            named.gate.add_permits(2);
            modifying.await.unwrap().unwrap();
        } else {
            assert_eq!(modifying.await.unwrap().unwrap_err().code(), Code::Aborted);
            named.gate.add_permits(1);
        }
        expanding.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn the_driver_s_own_work_excludes_operations_and_waits_for_them() {
    let named = Named::new();
    let plugin = plugin(&named, false);
    let claims = plugin.claims();
    let served = Served::start(plugin).await;
    let id = VolumeId::new("v").unwrap();
    let claim = claims.volume(&id).await;
    let refused = delete(&served, "v").await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    assert!(refused.message().contains("work of the driver"), "{refused:?}");
    drop(claim);
    // The volume on the node is another key: the controller's operations are not excluded.
    let on_node = claims.volume_on_node(&id).await;
    named.gate.add_permits(1);
    delete(&served, "v").await.unwrap();
    let second = tokio::time::timeout(Duration::from_millis(50), claims.volume_on_node(&id)).await;
    assert!(second.is_err(), "the volume is claimed on the node");
    drop(on_node);

    let mut controller = served.controller();
    let expanding = tokio::spawn(async move { controller.controller_expand_volume(expand("v", 9)).await });
    named.until_begun(2).await;
    let early = tokio::time::timeout(Duration::from_millis(50), claims.volume(&id)).await;
    assert!(early.is_err(), "the volume is being expanded");
    let waiting = tokio::spawn(async move { claims.volume(&id).await });
    named.gate.add_permits(1);
    let _claim = waiting.await.unwrap();
    expanding.await.unwrap().unwrap();
}
