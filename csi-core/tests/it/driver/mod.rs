//! A driver that has every capability and knows every id. A test can replace each of its methods.
#![allow(dead_code, unreachable_pub, reason = "a module of each test file, which uses its part")]

use std::any::Any;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use csi_core::controller::*;
use csi_core::group_controller::*;
use csi_core::identity::Readiness;
use csi_core::node::*;
use csi_core::snapshot_metadata::*;
use csi_core::types::*;
use csi_core::*;
use tokio::sync::Semaphore;

use crate::common::eventually;

/// A method of [`TestDriver`]: what it answers, and how often it was called.
pub struct Method<Q, A> {
    run: Mutex<Run<Q, A>>,
    calls: AtomicU32,
}

type Run<Q, A> = Arc<dyn Fn(Q) -> Pin<Box<dyn Future<Output = Result<A>> + Send>> + Send + Sync>;

fn at_once<Q, A: Send + 'static>(answer: impl Fn(Q) -> Result<A> + Send + Sync + 'static) -> Run<Q, A> {
    Arc::new(move |request| Box::pin(std::future::ready(answer(request))))
}

impl<Q, A: Send + 'static> Method<Q, A> {
    fn new(answer: impl Fn(Q) -> Result<A> + Send + Sync + 'static) -> Self {
        Self { run: Mutex::new(at_once(answer)), calls: AtomicU32::new(0) }
    }

    /// Answers with this from now on.
    pub fn answers(&self, answer: impl Fn(Q) -> Result<A> + Send + Sync + 'static) {
        *self.run.lock().unwrap() = at_once(answer);
    }

    /// Runs this from now on.
    pub fn runs<F>(&self, run: impl Fn(Q) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<A>> + Send + 'static,
    {
        *self.run.lock().unwrap() = Arc::new(move |request| Box::pin(run(request)));
    }

    pub fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }
}

/// Declares the driver: for each method of a trait its field, with the name of the RPC, and what it answers at
/// first. An `operation` waits at the gate, a `question` does not.
macro_rules! driver {
    ($($trait:ident $how:ident {
        $($field:ident = $method:ident($request:ty) -> $answer:ty: $default:expr;)+
    })+) => {
        pub struct TestDriver {
            $($(pub $field: Method<$request, $answer>,)+)+
            pub lookup: Method<VolumeId, Option<Volume>>,
            pub supports: fn(&VolumeCapability) -> bool,
            pub volume_id_of_name: fn(&Name) -> Option<VolumeId>,
            pub probe: Method<(), Readiness>,
            pub node_get_info: Method<(), NodeInfo>,
            pub node_publish_volume: Method<NodePublishVolumeRequest, ()>,
            pub node_unpublish_volume: Method<NodeUnpublishVolumeRequest, ()>,
            pub published: Method<(), PublishedTargets>,
            /// The answer of the next call of any method but [`lookup`](Self::lookup), of that method's type.
            pub next_answer: Mutex<Option<Box<dyn Any + Send>>>,
            /// How many operations have begun, and how many of them are done.
            pub begun: AtomicU32,
            pub done: AtomicU32,
            /// Where operations wait, see [`gated`](Self::gated).
            pub gate: Option<Semaphore>,
        }

        impl Default for TestDriver {
            fn default() -> Self {
                Self {
                    $($($field: Method::<$request, $answer>::new($default),)+)+
                    lookup: Method::new(|id| Ok(Some(volume(&id)))),
                    supports: |_| true,
                    volume_id_of_name: |_| None,
                    probe: Method::new(|()| Ok(Readiness::Ready)),
                    node_get_info: Method::new(|()| Ok(NodeInfo::new("node-1")?.max_volumes(7))),
                    node_publish_volume: Method::new(|_| Ok(())),
                    node_unpublish_volume: Method::new(|_| Ok(())),
                    published: Method::new(|()| Ok(PublishedTargets::default())),
                    next_answer: Mutex::default(),
                    begun: AtomicU32::new(0),
                    done: AtomicU32::new(0),
                    gate: None,
                }
            }
        }

        $(#[async_trait]
        impl $trait for TestDriver {
            $(async fn $method(&self, request: $request) -> Result<$answer> {
                self.$how(&self.$field, request).await
            })+
        })+
    };
}

driver! {
    CreateDeleteVolume operation {
        create_volume = create_volume(CreateVolumeRequest) -> Volume:
            |request| Ok(volume(&VolumeId::new(request.name.as_str())?));
        delete_volume = delete_volume(DeleteVolumeRequest) -> (): |_| Ok(());
    }
    PublishUnpublishVolume operation {
        controller_publish_volume = publish_volume(ControllerPublishVolumeRequest) -> Published:
            |_| Ok(Published::new(BTreeMap::from([("device".to_owned(), "sdx".to_owned())])));
        controller_unpublish_volume = unpublish_volume(ControllerUnpublishVolumeRequest) -> (): |_| Ok(());
    }
    ListVolumes question {
        list_volumes = list_volumes(ListVolumesRequest) -> Page<VolumeListing>:
            |_| Ok(page([VolumeListing::new(volume(&id("any")), vec![NodeId::new("any")?])]));
    }
    ControllerGetVolume question {
        controller_get_volume = get_volume(ControllerGetVolumeRequest) -> VolumeListing:
            |request| Ok(VolumeListing::new(volume(&request.volume_id), vec![]));
    }
    GetCapacity question {
        get_capacity = capacity(GetCapacityRequest) -> Capacity:
            |_| Ok(Capacity::new(5).maximum_volume_size(4).minimum_volume_size(1));
    }
    CreateDeleteSnapshot operation {
        create_snapshot = create_snapshot(CreateSnapshotRequest) -> Snapshot:
            |request| Ok(snapshot(request.name.as_str(), request.source_volume_id.as_str()));
        delete_snapshot = delete_snapshot(DeleteSnapshotRequest) -> (): |_| Ok(());
    }
    ListSnapshots question {
        list_snapshots = list_snapshots(ListSnapshotsRequest) -> Page<Snapshot>: |request| {
            let id = request.snapshot_id.map_or("any".to_owned(), String::from);
            let source = request.source_volume_id.map_or("any".to_owned(), String::from);
            Ok(page([snapshot(&id, &source)]))
        };
    }
    GetSnapshot question {
        get_snapshot = get_snapshot(GetSnapshotRequest) -> Snapshot:
            |request| Ok(snapshot(request.snapshot_id.as_str(), "any"));
    }
    ControllerExpandVolume operation {
        controller_expand_volume = expand_volume(ControllerExpandVolumeRequest) -> Expanded:
            |request| Ok(Expanded::node_expansion_required(request.capacity_range.choose(0, 1)?));
    }
    ControllerModifyVolume operation {
        controller_modify_volume = modify_volume(ControllerModifyVolumeRequest) -> (): |_| Ok(());
    }
    ControllerGetVolumeHealth question {
        controller_get_volume_health = volume_health(ControllerGetVolumeHealthRequest) -> VolumeHealth:
            |request| Ok(VolumeHealth::new(request.volume_id, vec![]));
    }
    ControllerListVolumeHealth question {
        controller_list_volume_health = list_volume_health(ControllerListVolumeHealthRequest)
            -> Page<VolumeHealth>: |_| Ok(page([unwell(id("any"))]));
    }
    GroupController operation {
        create_volume_group_snapshot = create_volume_group_snapshot(CreateVolumeGroupSnapshotRequest)
            -> VolumeGroupSnapshot: |request| {
                let sources = request.source_volume_ids.iter();
                let members = sources.map(|source| snapshot("any", source.as_str())).collect();
                Ok(group_snapshot(request.name.as_str(), members))
            };
        delete_volume_group_snapshot = delete_volume_group_snapshot(DeleteVolumeGroupSnapshotRequest) -> ():
            |_| Ok(());
        get_volume_group_snapshot = volume_group_snapshot(GetVolumeGroupSnapshotRequest)
            -> VolumeGroupSnapshot: |request| {
                let members = request.snapshot_ids.iter().map(|id| snapshot(id.as_str(), "any")).collect();
                Ok(group_snapshot(request.group_snapshot_id.as_str(), members))
            };
    }
    SnapshotMetadata question {
        get_metadata_allocated = metadata_allocated(GetMetadataAllocatedRequest) -> BlockMetadata:
            |_| Ok(ranges(vec![Ok(BlockRange::new(0, 10))]));
        get_metadata_delta = metadata_delta(GetMetadataDeltaRequest) -> BlockMetadata:
            |_| Ok(ranges(vec![Ok(BlockRange::new(0, 10))]));
    }
    StageUnstageVolume operation {
        node_stage_volume = stage_volume(NodeStageVolumeRequest) -> (): |_| Ok(());
        node_unstage_volume = unstage_volume(NodeUnstageVolumeRequest) -> (): |_| Ok(());
    }
    NodeGetVolumeStats question {
        node_get_volume_stats = volume_stats(NodeGetVolumeStatsRequest) -> VolumeStats: |request| {
            let exists = request.volume_path.is_absolute();
            if exists { Ok(VolumeStats::from_device_size(5)) } else { Err(Error::VolumeNotFound(request.volume_id)) }
        };
    }
    NodeExpandVolume operation {
        node_expand_volume = expand_volume(NodeExpandVolumeRequest) -> u64: |request| {
            let exists = request.volume_path.is_absolute();
            if exists { Ok(9) } else { Err(Error::VolumeNotFound(request.volume_id)) }
        };
    }
    NodeGetVolumeHealth question {
        node_get_volume_health = volume_health(NodeGetVolumeHealthRequest) -> VolumeHealth:
            |request| Ok(VolumeHealth::new(request.volume_id, vec![]));
    }
    NodeGetStorageHealth question {
        node_get_storage_health = storage_health(NodeGetStorageHealthRequest) -> Vec<StorageHealthEntry>:
            |_| Ok(vec![]);
    }
}

#[async_trait]
impl Controller for TestDriver {
    async fn lookup(&self, volume_id: &VolumeId) -> Result<Option<Volume>> {
        let run = Arc::clone(&self.lookup.run.lock().unwrap());
        run(volume_id.clone()).await
    }

    fn supports(&self, capability: &VolumeCapability) -> bool {
        (self.supports)(capability)
    }

    fn volume_id_of_name(&self, name: &Name) -> Option<VolumeId> {
        (self.volume_id_of_name)(name)
    }
}

#[async_trait]
impl Node for TestDriver {
    async fn info(&self) -> Result<NodeInfo> {
        self.question(&self.node_get_info, ()).await
    }

    async fn publish_volume(&self, request: NodePublishVolumeRequest) -> Result<()> {
        self.operation(&self.node_publish_volume, request).await
    }

    async fn published(&self, _: &NodePublishVolumeRequest) -> Result<PublishedTargets> {
        self.question(&self.published, ()).await
    }

    async fn unpublish_volume(&self, request: NodeUnpublishVolumeRequest) -> Result<()> {
        self.operation(&self.node_unpublish_volume, request).await
    }
}

#[async_trait]
impl Identity for TestDriver {
    async fn probe(&self) -> Result<Readiness> {
        self.question(&self.probe, ()).await
    }
}

impl TestDriver {
    /// A driver whose operations wait until a test releases them.
    pub fn gated() -> Self {
        Self { gate: Some(Semaphore::new(0)), ..Self::default() }
    }

    /// Lets this many operations of a gated driver continue.
    pub fn release(&self, operations: usize) {
        self.gate.as_ref().expect("the driver is gated").add_permits(operations);
    }

    /// Waits, for a bounded time, until this many operations have begun.
    pub async fn until_begun(&self, operations: u32) {
        eventually("operations begin", || self.begun.load(Ordering::SeqCst) >= operations).await;
    }

    async fn operation<Q, A: Send + 'static>(&self, method: &Method<Q, A>, request: Q) -> Result<A> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        if let Some(gate) = &self.gate {
            gate.acquire().await.unwrap().forget();
        }
        let answer = self.question(method, request).await;
        self.done.fetch_add(1, Ordering::SeqCst);
        answer
    }

    async fn question<Q, A: Send + 'static>(&self, method: &Method<Q, A>, request: Q) -> Result<A> {
        method.calls.fetch_add(1, Ordering::SeqCst);
        let next = self.next_answer.lock().unwrap().take();
        if let Some(answer) = next {
            return Ok(*answer.downcast().expect("the answer is of the method's type"));
        }
        let run = Arc::clone(&method.run.lock().unwrap());
        run(request).await
    }
}

/// A plugin with some of the driver's capabilities.
pub fn plugin(driver: &Arc<TestDriver>) -> Plugin {
    let controller = ControllerService::new(driver.clone())
        .create_delete_volume()
        .publish_unpublish_volume()
        .expand_volume(Expansion::Online);
    let node = NodeService::new(driver.clone()).stage_unstage_volume().get_volume_stats().expand_volume();
    Plugin::new("test.csi.example.org", "1.2.3").identity(driver.clone()).controller(controller).node(node)
}

/// The controller with all of its capabilities.
pub fn whole_controller(driver: &Arc<TestDriver>) -> ControllerService<TestDriver> {
    ControllerService::new(driver.clone())
        .create_delete_volume()
        .clone_volume()
        .publish_unpublish_volume()
        .publish_readonly()
        .list_volumes()
        .list_volumes_published_nodes()
        .get_capacity()
        .create_delete_snapshot()
        .list_snapshots()
        .get_snapshot()
        .expand_volume(Expansion::Online)
        .get_volume()
        .modify_volume()
        .list_volume_health()
        .single_node_multi_writer()
}

/// The node with all of its capabilities.
pub fn whole_node(driver: &Arc<TestDriver>) -> NodeService<TestDriver> {
    NodeService::new(driver.clone())
        .stage_unstage_volume()
        .get_volume_stats()
        .expand_volume()
        .get_volume_health()
        .get_storage_health()
        .volume_mount_group()
        .single_node_multi_writer()
}

/// The plugin with all services and all capabilities.
pub fn whole_plugin(driver: &Arc<TestDriver>) -> Plugin {
    Plugin::new("whole.csi.example.org", "1.2.3")
        .controller(whole_controller(driver))
        .node(whole_node(driver))
        .group_controller(driver.clone())
        .snapshot_metadata(driver.clone())
        .volume_accessibility_constraints()
        .spec(Spec::V1_13)
        .snapshot_accessibility_constraints()
        .serve_volume_condition()
}

pub fn id(text: &str) -> VolumeId {
    VolumeId::new(text).unwrap()
}

pub fn volume(id: &VolumeId) -> Volume {
    Volume::new(id.clone(), 0).context("made", "here")
}

pub fn snapshot(id: &str, source: &str) -> Snapshot {
    let source = VolumeId::new(source).unwrap();
    Snapshot::new(SnapshotId::new(id).unwrap(), source, SystemTime::UNIX_EPOCH)
}

pub fn group_snapshot(id: &str, members: Vec<Snapshot>) -> VolumeGroupSnapshot {
    VolumeGroupSnapshot::new(GroupSnapshotId::new(id).unwrap(), members, SystemTime::UNIX_EPOCH)
}

/// The only page of a list.
pub fn page<T>(entries: impl Into<Vec<T>>) -> Page<T> {
    Page::new(entries.into(), None)
}

pub fn unwell(volume_id: VolumeId) -> VolumeHealth {
    let entry = VolumeHealthEntry::new(VolumeHealthStatus::Degraded, "DiskSlow", "a disk is slow");
    VolumeHealth::new(volume_id, vec![entry])
}

pub fn ranges(ranges: Vec<Result<BlockRange>>) -> BlockMetadata {
    BlockMetadata::new(BlockMetadataType::VariableLength, 100, tokio_stream::iter(ranges))
}
