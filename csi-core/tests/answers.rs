//! A driver's answer that breaks the spec becomes INTERNAL, and an error in the log names the broken rule.
//! An answer that does not match the request gets the code that the spec gives for this case.

mod common;
mod whole;

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use common::Served;
use csi_core::*;
use tonic::Code;
use whole::{ranges, samples::samples, snapshot, unwell, volume};

/// A driver that returns the answer that the test stored in it.
#[derive(Default)]
struct Puppet(Mutex<Option<Box<dyn Any + Send>>>);

impl Puppet {
    fn say<T: 'static>(&self) -> Result<T> {
        let said = self.0.lock().unwrap().take().expect("an answer is put first");
        Ok(*said.downcast().expect("the answer is of the method's type"))
    }
}

/// Implements traits whose methods all return the stored answer.
macro_rules! says {
    ($($trait:ident { $($method:ident: $request:ty => $answer:ty),+ })+) => { $(
        #[async_trait]
        impl csi_core::$trait for Puppet {
            $(async fn $method(&self, _: $request) -> Result<$answer> {
                self.say()
            })+
        }
    )+ };
}

says! {
    CreateDeleteVolume { create_volume: CreateVolumeRequest => Volume, delete_volume: DeleteVolumeRequest => () }
    PublishUnpublishVolume {
        publish_volume: ControllerPublishVolumeRequest => Published,
        unpublish_volume: ControllerUnpublishVolumeRequest => ()
    }
    ListVolumes { list_volumes: ListVolumesRequest => Page<VolumeListing> }
    ControllerGetVolume { get_volume: ControllerGetVolumeRequest => VolumeListing }
    GetCapacity { capacity: GetCapacityRequest => Capacity }
    CreateDeleteSnapshot {
        create_snapshot: CreateSnapshotRequest => Snapshot,
        delete_snapshot: DeleteSnapshotRequest => ()
    }
    ListSnapshots { list_snapshots: ListSnapshotsRequest => Page<Snapshot> }
    GetSnapshot { get_snapshot: GetSnapshotRequest => Snapshot }
    ControllerExpandVolume { expand_volume: ControllerExpandVolumeRequest => Expanded }
    ControllerModifyVolume { modify_volume: ControllerModifyVolumeRequest => () }
    ControllerGetVolumeHealth { volume_health: ControllerGetVolumeHealthRequest => VolumeHealth }
    ControllerListVolumeHealth { list_volume_health: ControllerListVolumeHealthRequest => Page<VolumeHealth> }
    GroupController {
        create_volume_group_snapshot: CreateVolumeGroupSnapshotRequest => VolumeGroupSnapshot,
        delete_volume_group_snapshot: DeleteVolumeGroupSnapshotRequest => (),
        volume_group_snapshot: GetVolumeGroupSnapshotRequest => VolumeGroupSnapshot
    }
    SnapshotMetadata {
        metadata_allocated: GetMetadataAllocatedRequest => BlockMetadata,
        metadata_delta: GetMetadataDeltaRequest => BlockMetadata
    }
    StageUnstageVolume { stage_volume: NodeStageVolumeRequest => (), unstage_volume: NodeUnstageVolumeRequest => () }
    NodeGetVolumeStats { volume_stats: NodeGetVolumeStatsRequest => VolumeStats }
    NodeExpandVolume { expand_volume: NodeExpandVolumeRequest => u64 }
    NodeGetVolumeHealth { volume_health: NodeGetVolumeHealthRequest => VolumeHealth }
    NodeGetStorageHealth { storage_health: NodeGetStorageHealthRequest => Vec<StorageHealthEntry> }
}

#[async_trait]
impl Controller for Puppet {
    async fn lookup(&self, volume_id: &VolumeId) -> Result<Option<Volume>> {
        Ok(Some(volume(volume_id)))
    }

    fn supports(&self, _: &VolumeCapability) -> bool {
        true
    }
}

#[async_trait]
impl Node for Puppet {
    async fn info(&self) -> Result<NodeInfo> {
        self.say()
    }

    async fn publish_volume(&self, _: NodePublishVolumeRequest) -> Result<()> {
        self.say()
    }

    async fn unpublish_volume(&self, _: NodeUnpublishVolumeRequest) -> Result<()> {
        self.say()
    }
}

fn plugin(puppet: &Arc<Puppet>) -> Plugin {
    let controller = ControllerService::new(puppet.clone())
        .create_delete_volume()
        .clone_volume()
        .publish_unpublish_volume()
        .publish_readonly()
        .list_volumes()
        .get_capacity()
        .create_delete_snapshot()
        .list_snapshots()
        .get_snapshot()
        .expand_volume(Expansion::Online)
        .get_volume()
        .modify_volume()
        .list_volume_health()
        .single_node_multi_writer();
    let node = NodeService::new(puppet.clone())
        .stage_unstage_volume()
        .get_volume_stats()
        .expand_volume()
        .get_volume_health()
        .get_storage_health()
        .volume_mount_group()
        .single_node_multi_writer();
    Plugin::new("puppet.csi.example.org", "1")
        .controller(controller)
        .node(node)
        .group_controller(puppet.clone())
        .snapshot_metadata(puppet.clone())
        .volume_accessibility_constraints()
        .spec(Spec::V1_13)
        .snapshot_accessibility_constraints()
}

fn id<T>(make: impl Fn(String) -> Result<T>, text: &str) -> T {
    make(text.to_owned()).unwrap()
}

fn vol(text: &str) -> Volume {
    volume(&id(VolumeId::new, text))
}

fn sized(bytes: u64) -> Volume {
    Volume::new(id(VolumeId::new, "v"), bytes)
}

fn snap(text: &str, source: &str) -> Snapshot {
    snapshot(&id(SnapshotId::new, text), &id(VolumeId::new, source))
}

fn listed(volume: Volume) -> VolumeListing {
    VolumeListing::new(volume, vec![])
}

fn page<T>(entries: Vec<T>) -> Page<T> {
    Page::new(entries, None)
}

/// A page whose next token is the token that the sample request starts from.
fn round<T>(entries: Vec<T>) -> Page<T> {
    Page::new(entries, Some(id(Token::new, "t")))
}

fn health(text: &str, reasons: &[&str]) -> VolumeHealth {
    let entry = |reason: &&str| {
        VolumeHealthEntry::new(VolumeHealthStatus::Degraded, (*reason).to_owned(), "m".repeat(1000))
    };
    VolumeHealth::new(id(VolumeId::new, text), reasons.iter().map(entry))
}

fn storage(reasons: &[&str]) -> Vec<StorageHealthEntry> {
    let entry = |reason: &&str| {
        StorageHealthEntry::new(StorageHealthStatus::Degraded, (*reason).to_owned(), String::new())
    };
    reasons.iter().map(entry).collect()
}

fn group(text: &str, snapshots: Vec<Snapshot>) -> VolumeGroupSnapshot {
    VolumeGroupSnapshot::new(id(GroupSnapshotId::new, text), snapshots, SystemTime::UNIX_EPOCH)
}

fn in_zone(key: &str) -> Topology {
    Topology::new(key, "a")
}

struct Case(Rpc, Box<dyn Any + Send>, Code, &'static str);

fn case(rpc: Rpc, answer: impl Any + Send, code: Code, says: &'static str) -> Case {
    Case(rpc, Box::new(answer), code, says)
}

fn large_map() -> BTreeMap<String, String> {
    BTreeMap::from([("k".to_owned(), "x".repeat(4096))])
}

fn volume_cases() -> Vec<Case> {
    use Code::{AlreadyExists, Internal, Ok as Good, OutOfRange};
    use Rpc::*;
    let mut large_context = vol("v");
    large_context.volume_context = large_map();
    let other_source = sized(0).source(ContentSource::Volume(id(VolumeId::new, "other")));
    let expanded = |capacity_bytes| Expanded::complete(capacity_bytes);
    let capacity = Capacity::new(1);
    vec![
        case(CreateVolume, vol("v").accessible_from(in_zone("zone")), Good, ""),
        case(CreateVolume, large_context, Internal, "volume.volume_context: is 4097 bytes"),
        case(
            CreateVolume,
            sized(51),
            AlreadyExists,
            "capacity_range: a volume of this name exists and has 51 bytes",
        ),
        case(CreateVolume, sized(4), AlreadyExists, "capacity_range"),
        case(CreateVolume, other_source, AlreadyExists, "volume_content_source"),
        case(
            CreateVolume,
            vol("v").accessible_from(Topology::new("zone", "b")),
            AlreadyExists,
            "accessibility_req",
        ),
        case(
            CreateVolume,
            vol("v").accessible_from(in_zone("-")),
            Internal,
            "volume.accessible_topology: key \"-\"",
        ),
        case(ControllerPublishVolume, Published::new(large_map()), Internal, "publish_context: is"),
        case(ListVolumes, page(vec![listed(vol("a")), listed(vol("b"))]), Good, ""),
        case(ListVolumes, page(vec![listed(vol("a")); 3]), Internal, "3 of them, max_entries is 2"),
        case(ListVolumes, round(vec![listed(vol("a"))]), Internal, "next_token is the starting_token"),
        case(
            ControllerGetVolume,
            listed(vol("w")),
            Internal,
            "volume.volume_id is w, not the volume asked about",
        ),
        case(ControllerGetVolume, listed(sized(u64::MAX)), Internal, "does not fit an int64"),
        case(GetCapacity, Capacity::new(u64::MAX), Internal, "available_capacity"),
        case(GetCapacity, capacity.maximum_volume_size(u64::MAX), Internal, "maximum_volume"),
        case(GetCapacity, capacity.minimum_volume_size(u64::MAX), Internal, "minimum_volume"),
        case(ControllerExpandVolume, expanded(50), Good, ""),
        case(ControllerExpandVolume, expanded(4), Internal, "capacity_bytes 4 is less than was required"),
        case(ControllerExpandVolume, expanded(51), OutOfRange, "capacity_range.limit_bytes"),
        case(ControllerExpandVolume, expanded(u64::MAX), Internal, "does not fit an int64"),
    ]
}

fn snapshot_cases() -> Vec<Case> {
    use Code::{AlreadyExists, Internal, Ok as Good};
    use Rpc::*;
    let far = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_800);
    let mut late = snap("s", "v");
    late.creation_time = far;
    let mut placed = snap("s", "v");
    placed.accessible_topology = vec![Topology::new("zone", "b")];
    let mut misplaced = snap("s", "v");
    misplaced.accessible_topology = vec![in_zone("a/b/c")];
    let mut large = snap("s", "v");
    large.size_bytes = u64::MAX;
    let mut foreign = snap("s", "v");
    foreign.group_snapshot_id = Some(id(GroupSnapshotId::new, "other"));
    let mut starting = snap("s", "v");
    starting.ready_to_use = false;
    let mut late_group = group("g", vec![snap("s", "v")]);
    late_group.creation_time = far;
    vec![
        case(
            CreateSnapshot,
            snap("s", "other"),
            AlreadyExists,
            "source_volume_id: a snapshot of this name exists",
        ),
        case(CreateSnapshot, placed, AlreadyExists, "accessibility_requirements"),
        case(CreateSnapshot, late, Internal, "snapshot.creation_time"),
        case(CreateSnapshot, large, Internal, "snapshot.size_bytes"),
        case(GetSnapshot, misplaced, Internal, "snapshot.accessible_topology"),
        case(GetSnapshot, snap("other", "v"), Internal, "snapshot.snapshot_id is other"),
        case(ListSnapshots, page(vec![snap("s", "v")]), Good, ""),
        case(ListSnapshots, page::<Snapshot>(vec![]), Good, ""),
        case(
            ListSnapshots,
            page(vec![snap("other", "v")]),
            Internal,
            "snapshot other does not pass the filter",
        ),
        case(ListSnapshots, page(vec![snap("s", "other")]), Internal, "does not pass the filter"),
        case(ListSnapshots, page(vec![snap("s", "v"); 3]), Internal, "max_entries"),
        case(ListSnapshots, round(vec![snap("s", "v")]), Internal, "next_token"),
        case(CreateVolumeGroupSnapshot, group("g", vec![snap("a", "v"), snap("b", "w")]), Good, ""),
        case(CreateVolumeGroupSnapshot, group("g", vec![snap("a", "v")]), AlreadyExists, "source_volume_ids"),
        case(GetVolumeGroupSnapshot, group("h", vec![snap("s", "v")]), Internal, "group_snapshot_id is h"),
        case(GetVolumeGroupSnapshot, group("g", vec![]), Internal, "group_snapshot.snapshots is empty"),
        case(GetVolumeGroupSnapshot, group("g", vec![foreign]), Internal, "belongs to group other"),
        case(GetVolumeGroupSnapshot, group("g", vec![starting]), Internal, "a snapshot of it is not ready"),
        case(GetVolumeGroupSnapshot, late_group, Internal, "group_snapshot.creation_time"),
        case(GetMetadataAllocated, ranges(vec![]), Good, ""),
        case(
            GetMetadataDelta,
            BlockMetadata::new(BlockMetadataType::VariableLength, u64::MAX, tokio_stream::empty()),
            Internal,
            "volume_capacity_bytes",
        ),
        case(
            GetMetadataDelta,
            ranges(vec![Ok(BlockRange::new(7, 0))]),
            Internal,
            "block_metadata at 7: its size is 0",
        ),
    ]
}

fn health_and_node_cases() -> Vec<Case> {
    use Code::{Internal, Ok as Good};
    use Rpc::*;
    let info = || NodeInfo::new("n").unwrap();
    let usage = Usage::new(u64::MAX, 0, 0);
    vec![
        case(ControllerGetVolumeHealth, health("v", &["DiskSlow", "PoolFull"]), Good, ""),
        case(ControllerGetVolumeHealth, health("w", &[]), Internal, "volume_health.volume_id is w"),
        case(
            ControllerGetVolumeHealth,
            health("v", &["DiskSlow"; 2]),
            Internal,
            "Degraded and DiskSlow are there twice",
        ),
        case(ControllerGetVolumeHealth, health("v", &["disk slow"]), Internal, "is not one CamelCase word"),
        case(
            ControllerListVolumeHealth,
            page(vec![health("v", &[])]),
            Internal,
            "nothing is wrong with volume v",
        ),
        case(
            ControllerListVolumeHealth,
            page(vec![unwell(id(VolumeId::new, "v")); 3]),
            Internal,
            "max_entries",
        ),
        case(ControllerListVolumeHealth, round(vec![unwell(id(VolumeId::new, "v"))]), Internal, "next_token"),
        case(NodeGetVolumeHealth, health("w", &[]), Internal, "volume_health.volume_id is w"),
        case(NodeGetStorageHealth, storage(&["LinkDown", "LinkSlow"]), Good, ""),
        case(
            NodeGetStorageHealth,
            storage(&["LinkDown"; 2]),
            Internal,
            "there twice for one volume_capability",
        ),
        case(NodeGetStorageHealth, storage(&["link-down"]), Internal, "is not one CamelCase word"),
        case(NodeGetInfo, info().max_volumes(u64::MAX), Internal, "max_volumes_per_node"),
        case(NodeGetInfo, info().at(Topology::new("zone", "")), Internal, "accessible_topology: value"),
        // The first prefix that an answer contains is required in all later answers.
        case(NodeGetInfo, info().at(in_zone("one.example.org/zone")), Good, ""),
        case(NodeGetInfo, info().at(in_zone("two.example.org/zone")), Internal, "all must have one"),
        case(
            CreateVolume,
            vol("v").accessible_from(in_zone("two.example.org/zone")),
            Internal,
            "all must have one",
        ),
        case(NodeGetVolumeStats, VolumeStats::default(), Internal, "neither bytes nor inodes"),
        case(NodeGetVolumeStats, VolumeStats::from_usage(usage, None), Internal, "usage.total"),
        case(NodeExpandVolume, u64::MAX, Internal, "capacity_bytes"),
    ]
}

async fn check(served: &Served, puppet: &Puppet, log: &whole::log::Log, cases: Vec<Case>) {
    for Case(rpc, answer, due, says) in cases {
        *puppet.0.lock().unwrap() = Some(answer);
        log.take();
        let (_, request) = samples().into_iter().find(|(sample, _)| *sample == rpc).unwrap();
        let answer = whole::client::call(&served.channel, rpc, request).await;
        let (code, message) = match &answer {
            Ok(_) => (Code::Ok, ""),
            Err(status) => (status.code(), status.message()),
        };
        assert_eq!(code, due, "{rpc}, {says:?}: {message}");
        assert!(message.contains(says), "{rpc}: {says:?} is due, not {message:?}");
        if due == Code::Internal {
            let log = log.take();
            let line = log.lines().find(|line| line.starts_with("ERROR"));
            assert!(
                line.is_some_and(|line| line.contains(says)),
                "{rpc}: {says:?} is not in the log: {line:?}"
            );
        }
    }
}

// spec: size-limits.string, size-limits.map, fields.not-negative, topology.one-prefix
// spec: create-volume.capacity-range, create-volume.source-told
// spec: create-volume.topology-met, create-volume.topology-needs-capability, create-volume.answers-an-id
// spec: list-volumes.max-entries, controller-get-volume.current, get-capacity.not-negative
// spec: controller-expand-volume.grows, controller-expand-volume.out-of-range
// spec: controller-get-volume-health.current, controller-list-volume-health.only-unwell
// spec: controller-list-volume-health.pages, volume-health.reason, volume-health.unique
// spec: create-snapshot.other-source, create-snapshot.answer-complete
// spec: create-snapshot.topology-needs-capability, list-snapshots.filters, list-snapshots.max-entries
// spec: get-snapshot.current, create-volume-group-snapshot.differs-is-already-exists
// spec: create-volume-group-snapshot.answer-complete, create-volume-group-snapshot.members-name-it
// spec: create-volume-group-snapshot.ready-when-all-are, get-volume-group-snapshot.current
// spec: node-get-volume-stats.usage, node-get-info.max-volumes, node-get-info.topology-needs-capability
// spec: node-get-volume-health.current, node-get-storage-health.unique
#[tokio::test]
async fn answers_keep_the_spec_or_are_internal() {
    let log = whole::log::Log::start();
    let puppet = Arc::new(Puppet::default());
    let served = Served::start(plugin(&puppet)).await;
    check(&served, &puppet, &log, volume_cases()).await;
    check(&served, &puppet, &log, snapshot_cases()).await;
    check(&served, &puppet, &log, health_and_node_cases()).await;

    let bare = Plugin::new("puppet.csi.example.org", "1")
        .controller(ControllerService::new(puppet.clone()).get_volume().get_snapshot())
        .node(NodeService::new(puppet.clone()));
    let served = Served::start(bare).await;
    let mut placed = snap("s", "v");
    placed.accessible_topology = vec![in_zone("zone")];
    let not_offered = vec![
        case(
            Rpc::ControllerGetVolume,
            listed(vol("v").accessible_from(in_zone("zone"))),
            Code::Internal,
            "volume.accessible_topology is set, but VOLUME_ACCESSIBILITY_CONSTRAINTS is not offered",
        ),
        case(
            Rpc::NodeGetInfo,
            NodeInfo::new("n").unwrap().at(in_zone("zone")),
            Code::Internal,
            "accessible_topology is set, but VOLUME_ACCESSIBILITY_CONSTRAINTS is not offered",
        ),
        case(
            Rpc::GetSnapshot,
            placed,
            Code::Internal,
            "snapshot.accessible_topology is set, but SNAPSHOT_ACCESSIBILITY_CONSTRAINTS is not offered",
        ),
    ];
    check(&served, &puppet, &log, not_offered).await;

    let older = Served::start(plugin(&puppet).spec(Spec::V1_12)).await;
    let mut placed = snap("s", "v");
    placed.accessible_topology = vec![in_zone("zone")];
    *puppet.0.lock().unwrap() = Some(Box::new(placed));
    let request = csi_core::proto::v1::GetSnapshotRequest { snapshot_id: "s".into(), ..Default::default() };
    let told = older.controller().get_snapshot(request).await.unwrap().into_inner().snapshot.unwrap();
    assert_eq!(told.accessible_topology, [], "v1.12.0 has no such field");
}
